"""Evolutions on a node: real pods curate, train and evaluate, a real vLLM serves, real walls stand around policies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from curateevo.local.objects import RunFolder
from tests.cluster.harness import ROOT, Cluster
from tests.cluster.story import Object, Story, until

pytestmark = pytest.mark.node
CHART = ROOT / "charts/curateevo"
IMAGES = {x: {"repository": f"localhost/curateevo-{x}", "tag": "test"} for x in ("operator", "jobs", "sandbox")}
VALUES = {"images": {**IMAGES, "trainer": IMAGES["jobs"], "pullPolicy": "Never"}}
SYSTEM = "curateevo-system"
SMALL = {
    "train": {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "6Gi"}}}]}},
    "serve": {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "8Gi"}}}]}},
}


def helm(cluster: Cluster, *args: str | Path, timeout: float = 300) -> str:
    return cluster.run([cluster.binaries / "helm", "--namespace", SYSTEM, *args], timeout=timeout).stdout


@pytest.fixture(scope="package")
def installed(node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The chart, installed by helm as a user would."""
    values = tmp_path_factory.mktemp("helm") / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    restricted = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    node.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM, "labels": restricted}})
    node.kubectl("delete", "-f", str(ROOT / "crds"), "--ignore-not-found")  # the chart brings them
    helm(node, "install", "curateevo", CHART, "--values", values, "--wait", "--timeout", "120s")
    yield node


@pytest.fixture
def story(installed: Cluster, node_namespace: Callable[[], str], tmp_path: Path) -> Iterator[Story]:
    story = Story(installed, node_namespace(), tmp_path)
    yield story
    story.kubectl("delete", "ce", "--all", "--timeout=120s")


def example(**training: Object) -> Object:
    """The spec of examples/toolworld.yaml, with fewer tasks, steps and rounds."""
    spec = dict(yaml.safe_load((ROOT / "examples/toolworld.yaml").read_text())["spec"])
    spec["evaluation"] |= {"suites": [{"name": "toolworld", "params": {"perSkill": 15}}], "floors": False}
    spec["rounds"] = {"max": 1, "focus": ["Effectiveness"]}
    spec["training"]["sft"]["maxSteps"] = 30
    spec["training"]["grpo"]["maxSteps"] = 2
    spec["acceptance"] = {"rule": "Paper"}
    spec["serving"] = {"engine": "vllm", "args": ["--max-model-len=1024"]}
    spec["templates"] = SMALL
    return spec | training


def test_a_whole_evolution_with_vllm_and_s3(story: Story, tmp_path: Path) -> None:
    spec = example()
    del spec["storage"]
    story.apply("toolworld", **spec)
    selected: dict[str, set[str]] = {}
    try:
        until(lambda: _look(story, selected), "the evolution to end", 1200.0)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_what_happened(story)}") from error
    story.kubectl("wait", "--for=condition=Complete", "ce/toolworld", "--timeout=5s")
    # the NetworkPolicies select the pods that they are meant for
    everything = {"ingest", "curate", "train", "serve", "evaluate", "propose"}
    assert selected["toolworld-deny"] == selected["toolworld-dns"] == selected["toolworld-store"] == everything
    assert (selected["toolworld-serve"], selected["toolworld-ask"]) == ({"serve"}, {"evaluate"})
    live = story.get("toolworld")
    uid, status = live["metadata"]["uid"], live["status"]
    found = story.outcome("toolworld")
    assert len(found["versions"]) == 2 and status["counts"]["committed"] >= 1
    table = story.kubectl("get", "ce,pver")
    print(table)
    # the store's ledger agrees
    pointer = story.read(uid, "champion.json")
    assert pointer["number"] == status["champion"]["number"]
    for number, version in found["versions"].items():
        decision = story.read(uid, f"versions/{number}/decision.json")
        assert (decision["verdict"], decision["reason"]) == (version["verdict"], version["reason"])
    stored = story.stored(uid)
    assert "versions/0/train/a1/model-0/model.safetensors" in stored and "seal/a1/manifest.json" in stored
    steps = story.read_lines(uid, "versions/0/train/a1/metrics-0.jsonl")
    assert {s["phase"] for s in steps} == {"sft", "grpo-environment"}
    manifest = story.read(uid, "versions/0/curate/a1/manifest.json")
    assert "seccomp" in manifest["summary"]["tier"]
    # no server is left, and nothing was tried twice
    until(lambda: not story.names("services") and not _serving(story), "the servers to go", 60.0)
    attempts = [a for v in found["versions"].values() for a in v["attempts"].values()]
    assert set(attempts) == {1}, _what_happened(story)
    # local mode is the oracle: the same spec on this machine gives the same resources and the same weights
    local = tmp_path / "local.yaml"
    spec["storage"], spec["rounds"] = {"uri": "file://./store"}, {"max": 0}
    spec["serving"] = {"engine": "transformers"}  # curation and training don't depend on it, and it is quicker
    local.write_text(yaml.safe_dump({**live, "metadata": {"name": "toolworld"}, "spec": spec, "status": {}}))
    command = [sys.executable, "-m", "curateevo.cli", "run", str(local), "--dir", str(tmp_path / "run")]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    folder = RunFolder(tmp_path / "run")
    own = folder.evolution().metadata.uid
    for stage in ("curate", "train"):
        path = f"store/evolutions/{own}/versions/0/{stage}/a1/manifest.json"
        ours = json.loads((tmp_path / "run" / path).read_text())["digest"]
        assert ours == story.read(uid, f"versions/0/{stage}/a1/manifest.json")["digest"], stage


def _look(story: Story, selected: dict[str, set[str]]) -> bool:
    """Note which components each NetworkPolicy selects; whether the evolution is over."""
    pods = [p["metadata"]["labels"] for p in story.items("pods")]
    for policy in story.items("netpol"):
        found = {x["app.kubernetes.io/component"] for x in pods if _selects(policy["spec"]["podSelector"], x)}
        selected.setdefault(policy["metadata"]["name"], set()).update(found)
    return story.status("toolworld").get("phase") in ("Complete", "Failed")


def _serving(story: Story) -> list[str]:
    return [p["metadata"]["name"] for p in story.items("pods")
            if p["metadata"]["labels"].get("curateevo.io/role") == "serve" and p["status"]["phase"] == "Running"]  # fmt: skip


def _what_happened(story: Story) -> str:
    said = [story.kubectl("get", "ce,pver,jobs,pods"), json.dumps(story.status("toolworld"), indent=1)]
    said.append(story.kubectl("get", "events", "--sort-by=.lastTimestamp")[-6000:])
    said.append(story.cluster.kubectl("-n", SYSTEM, "logs", "deploy/curateevo", "--tail=30"))
    for pod in story.items("pods"):
        if pod["status"]["phase"] in ("Failed", "Running"):
            name = pod["metadata"]["name"]
            said.append(f"--- {name}\n{story.kubectl('logs', name, '--all-containers', '--tail=30')}")
    return "\n".join(said)


REACH = """
import socket, sys, urllib.request
def tried(name, call):
    try:
        call(); print(name, "reached")
    except Exception as error:
        print(name, "refused", type(error).__name__)
tried("api", lambda: socket.create_connection(("10.96.0.1", 443), 3))
tried("s3", lambda: socket.create_connection(("10.99.0.1", 7070), 3))
tried("dns", lambda: socket.getaddrinfo("kubernetes.default.svc.cluster.local", 443))
tried("file", lambda: open("/var/run/secrets/kubernetes.io/serviceaccount/token"))
"""
CONFINED = """
import encodings.idna, os, pathlib, socket, urllib.request
from curateevo.policy.confine import Limits, confine_self
scratch = pathlib.Path("/tmp/scratch"); scratch.mkdir()
_, answer = os.pipe()
print("tier", confine_self(Limits(), scratch, answer), flush=True)
"""


@pytest.mark.parametrize("isolation", ["Container", "Pod"])
def test_a_policy_that_tries_reaches_nothing(story: Story, isolation: str) -> None:
    """In a pod with the labels, images and security context that a policy gets, and with code that is no policy at all:
    the static rules would refuse it long before."""
    spec = example()
    del spec["storage"]
    spec["sandbox"]["isolation"] = isolation
    story.apply("probe", **spec, suspend=True)
    until(lambda: story.names("netpol"), "the NetworkPolicies") if _started(story) else None
    wanted = {"Container": ("curate", CONFINED + REACH), "Pod": ("policy", REACH)}[isolation]
    said = _probe(story, *wanted)
    for name in ("api", "s3", "dns", "file"):
        assert f"{name} refused" in said, said
    if isolation == "Container":
        assert "seccomp" in said and "s3 refused PermissionError" in said, said
        # without the process wall, the pod's NetworkPolicy still keeps it from the API server
        bare = _probe(story, "curate", REACH)
        assert "api refused" in bare and "s3 reached" in bare and "dns reached" in bare, bare


def _started(story: Story) -> bool:
    story.patch({"suspend": False}, "probe")
    return True


def _probe(story: Story, component: str, code: str) -> str:
    """What `code` prints in a pod that the evolution's NetworkPolicies take for one of its own."""
    uid = story.get("probe")["metadata"]["uid"]
    name = f"probe-{component}-{abs(hash(code)) % 10**6}"
    labels = {"curateevo.io/evolution-uid": uid, "app.kubernetes.io/component": component}
    restricted = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "main", "image": "localhost/curateevo-sandbox:test", "imagePullPolicy": "Never",
                "command": ["sh", "-c", "sleep 5; python -c \"$CODE\""], "env": [{"name": "CODE", "value": code}],
                "securityContext": restricted, "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }  # fmt: skip
    story.kubectl("create", "-f", "-", input=json.dumps(pod))
    until(lambda: story.get(name, "pods")["status"]["phase"] in ("Succeeded", "Failed"), f"{name} to end")
    return story.kubectl("logs", name)


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    plain = selector.get("matchLabels", {}).items() <= labels.items()
    return plain and all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", ()))


def test_gpus_that_are_not_there_are_waited_for_and_taken_when_they_come(story: Story) -> None:
    with _gpus(story, 1):
        spec = example()
        del spec["storage"]
        spec["serving"] = {"engine": "transformers"}
        spec["rounds"], spec["training"]["sft"]["maxSteps"] = {"max": 0}, 2
        spec["training"] |= {"grpo": {"enabled": False}, "gate": {"minCallRate": 0.0}}
        spec["evaluation"]["splits"] = {"diag": 0.5, "sel": 0.5, "test": 0.0}
        spec["deadlines"], spec["retries"] = {"pendingSeconds": 15}, {"infrastructure": 20, "backoffSeconds": 2}
        wants = {"resources": {"limits": {"nvidia.com/gpu": "2", "memory": "6Gi"}}}
        spec["templates"] = {"train": {"spec": {"containers": [{"name": "main", **wants}]}}}
        story.apply("gpu", **spec)
        said = "Insufficient nvidia.com/gpu"
        until(
            lambda: said in story.condition("QuotaReserved", "gpu").get("message", ""), "the scheduler's words", 400.0
        )
        assert story.condition("QuotaReserved", "gpu")["status"] == "False"
        until(lambda: _train(story)["reason"] == "PendingTooLong", "the deadline to act", 60.0)
        with _gpus(story, 2):
            story.wait("Complete", "gpu", 600.0)
    assert _train(story)["attempt"] > 1 and story.status("gpu")["champion"]["number"] == 0


def _train(story: Story) -> Object:
    return {"reason": None} | dict(story.get("gpu-v0", "pver").get("status", {}).get("stages", {}).get("train") or {})


class _gpus:
    """The node has so many GPUs, as the scheduler sees it."""

    def __init__(self, story: Story, count: int) -> None:
        self.story, self.count = story, count

    def __enter__(self) -> None:
        self._set(str(self.count))

    def __exit__(self, *_: Any) -> None:
        self._set("0")

    def _set(self, count: str) -> None:
        patch = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": count}]
        self.story.cluster.kubectl(
            "patch", "node", "node0", "--subresource=status", "--type=json", "-p", json.dumps(patch)
        )


def test_a_server_whose_engine_dies_fails_the_evaluation_with_that_reason_and_frees_the_gpu(story: Story) -> None:
    """Compiling needs g++, which the image lacks: the engine dies, and the HTTP process lives on."""
    spec = example()
    del spec["storage"]
    spec["rounds"] = {"max": 0}
    spec["training"]["sft"]["maxSteps"], spec["training"]["grpo"] = 2, {"enabled": False}
    spec["training"]["gate"] = {"minCallRate": 0.0}
    spec["serving"]["args"] = ["--max-model-len=1024", "--no-enforce-eager"]
    spec["evaluation"]["splits"] = {"diag": 0.5, "sel": 0.5, "test": 0.0}
    spec["deadlines"], spec["retries"] = {"serveStartSeconds": 60}, {"infrastructure": 1, "backoffSeconds": 1}
    story.apply("dead", **spec)
    status = story.wait("Failed", "dead", 900.0)
    assert status["reason"] == "BaselineFailed"
    evaluate = story.get("dead-v0", "pver")["status"]["stages"]["evaluate"]
    assert evaluate["infrastructureFailures"] == 2 and "model server" in evaluate["message"], evaluate
    until(lambda: not [p for p in story.names("pods") if "evaluate" in p and "-s0" in p], "the server to go", 60.0)
    until(lambda: not story.names("services"), "the server to go", 60.0)


def test_uninstalling_leaves_evolutions_that_can_be_deleted(story: Story) -> None:
    """The last test of this file: the release is gone after it."""
    spec = example()
    del spec["storage"]
    story.apply("left", **spec, suspend=True)
    until(lambda: story.get("left")["metadata"].get("finalizers"), "the finalizer")
    helm(story.cluster, "uninstall", "curateevo", "--wait", "--timeout", "200s")
    assert not story.get("left")["metadata"].get("finalizers")
    story.kubectl("delete", "ce", "left", "--timeout=20s")
    assert "curationevolutions" in story.cluster.kubectl("get", "crds", "-o", "name")
