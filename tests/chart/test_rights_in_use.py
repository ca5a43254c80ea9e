"""A real operator at work under the chart's rights: they suffice, and each of them is used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from tests.chart.rendered import NAMESPACE, RELEASE, ROOT, of_kind, render
from tests.chart.test_rights import IN_A_RUN, IN_NEED, Right, rights
from tests.cluster.harness import Cluster
from tests.cluster.story import OPERATOR, Story, until

pytestmark = pytest.mark.cluster
RECORDING = """
import json, sys
import aiohttp
from curateevo_operator.__main__ import app
asked, log = aiohttp.ClientSession._request, open(sys.argv.pop(1), "a", buffering=1)
async def request(self, method, url, **more):
    answer = await asked(self, method, url, **more)
    log.write(json.dumps([method.upper(), str(answer.url), answer.status]) + "\\n")
    return answer
aiohttp.ClientSession._request = request
app()
"""
TRAINER = ("TrainJob", "TrainingRuntime")
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def right(method: str, url: str) -> Right | None:
    """What one request needs; None for what everybody may ask, such as which kinds there are."""
    parts = urlsplit(url)
    words = parts.path.strip("/").split("/")
    group, rest = ("", words[2:]) if words[0] == "api" else (words[1] if len(words) > 1 else "", words[3:])
    if not rest:
        return None
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    resource, name, below = (*rest, "", "")[:3]
    if method == "GET":
        verb = "get" if name else "watch" if "watch" in parse_qs(parts.query) else "list"
    else:
        verb = VERBS[method]
    return group, f"{resource}/{below}" if below else resource, verb


def test_a_request_needs_this_right() -> None:
    at = "https://server/apis/batch/v1/namespaces/n/jobs"
    assert right("GET", f"{at}/a") == ("batch", "jobs", "get") and right("POST", at) == ("batch", "jobs", "create")
    assert right("GET", f"{at}?watch=true") == ("batch", "jobs", "watch")
    assert right("GET", "https://server/api/v1/pods?limit=5") == ("", "pods", "list")
    assert right("PUT", f"{at}/a/status") == ("batch", "jobs/status", "update")
    assert right("GET", "https://server/apis/batch/v1") is right("GET", "https://server/api") is None


def bind(cluster: Cluster, folder: Path, namespaces: list[str]) -> Path:
    """Give the operator's account what the chart gives it, and nothing else. Returns its kubeconfig."""
    objects, _ = render({"namespaces": namespaces, "crds": {"install": False}})
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    given = [o for o in of_kind(objects, *kinds) if "annotations" not in o["metadata"]]
    for account in of_kind(given, "ServiceAccount"):
        assert account["metadata"]["name"] == RELEASE
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.apply(*given)
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", RELEASE, "-n", NAMESPACE).strip()}
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def take_back(cluster: Cluster) -> None:
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true", timeout=120)
    everything = "clusterroles,clusterrolebindings"
    cluster.kubectl("delete", everything, "-l", f"app.kubernetes.io/instance={RELEASE}", "--ignore-not-found")


def trainer_crds() -> list[dict[str, Any]]:
    """Kinds by the names of Kubeflow Trainer's, that take anything: nobody works on them here."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    made = []
    for kind in TRAINER:
        names = {"kind": kind, "listKind": f"{kind}List", "plural": f"{kind.lower()}s", "singular": kind.lower()}
        version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
        spec = {"group": "trainer.kubeflow.org", "scope": "Namespaced", "names": names, "versions": [version]}
        meta = {"name": f"{names['plural']}.trainer.kubeflow.org"}
        made.append(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": meta,
                "spec": spec,
            }
        )
    return made


def everything_that_an_operator_does(story: Story) -> None:
    """Model servers, claims, TrainJobs, a policy from a ConfigMap, refused pods, deletion by hand and by age."""
    source = ROOT / "examples/policies/000.py"
    story.kubectl("create", "configmap", "policy", f"--from-file=policy.py={source}")
    story.kubectl("create", "quota", "none", "--hard=pods=0")
    story.apply(
        rounds={"max": 1},
        policy={"initial": {"configMapKeyRef": {"name": "policy"}}},
        serving={"engine": "vllm"},
        sandbox={"isolation": "Pod"},
    )
    until(lambda: "exceeded quota" in story.condition("QuotaReserved").get("message", ""), "the pods to be refused")
    story.kubectl("delete", "quota", "none")
    story.wait("Complete")
    story.kubectl("delete", "ce", "evo", "--timeout=60s")
    story.apply("brief", rounds={"max": 0}, ttlSecondsAfterFinished=1)
    until(lambda: story.get("brief").get("status"), "it to begin")
    until(lambda: not story.get("brief"), "it to go by itself")
    story.apply("gang", rounds={"max": 0}, training={"engine": "TrainJob"})
    until(lambda: "gang-v0-train-a1" in story.kubectl("get", "trainjobs", "-o", "name"), "the TrainJob")
    story.patch({"suspend": True}, "gang")
    story.wait("Suspended", "gang")
    until(lambda: not story.kubectl("get", "trainjobs,trainingruntimes", "-o", "name"), "both to go")


def test_each_right_is_used_and_none_is_missed(cluster: Cluster, story: Story, tmp_path: Path) -> None:
    cluster.apply(*trainer_crds())
    config, log = bind(cluster, tmp_path, [story.namespace]), tmp_path / "requests"
    command = (sys.executable, "-c", RECORDING, str(log), *OPERATOR[3:], "--namespace", story.namespace)
    try:
        with story.process(*command, log="operator.log", KUBECONFIG=str(config)), story.kubelet():
            everything_that_an_operator_does(story)
    finally:
        take_back(cluster)
        cluster.kubectl("delete", "crd", *(o["metadata"]["name"] for o in trainer_crds()))
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    assert not [r for r in requests if r[2] in (401, 403)]
    # A server-side apply that makes the object (201) needs the right to create it as well.
    asked = [
        *requests,
        *(["POST", url.rpartition("/")[0], code] for how, url, code in requests if (how, code) == ("PATCH", 201)),
    ]
    used = {needed for method, url, _ in asked if (needed := right(method, url))}
    assert used - rights(IN_NEED) == rights(IN_A_RUN)


def test_the_rights_in_the_whole_cluster_suffice(cluster: Cluster, story: Story, tmp_path: Path) -> None:
    config = bind(cluster, tmp_path, [])
    try:
        with story.process(*OPERATOR, log="operator.log", KUBECONFIG=str(config)), story.kubelet():
            story.apply(rounds={"max": 0})
            story.wait("Complete")
    finally:
        take_back(cluster)
    assert "403" not in (story.folder / "operator.log").read_text()


def test_without_a_right_it_is_said(cluster: Cluster, story: Story, tmp_path: Path) -> None:
    """So the two tests above could fail."""
    config = bind(cluster, tmp_path, [story.namespace])
    patch = [{"op": "replace", "path": "/rules/0/verbs", "value": ["get", "list", "watch"]}]
    try:
        cluster.kubectl("patch", "role", RELEASE, "-n", story.namespace, "--type=json", "-p", json.dumps(patch))
        command = (*OPERATOR, "--namespace", story.namespace)
        with story.process(*command, log="operator.log", KUBECONFIG=str(config)):
            story.apply(rounds={"max": 0})
            until(lambda: "cannot patch resource" in (story.folder / "operator.log").read_text(), "the refusal", 60.0)
    finally:
        take_back(cluster)
