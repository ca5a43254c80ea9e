"""Helm itself, and a real API server: install, upgrade with its CRDs, uninstall. Pods are made and admitted; no node runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.foreign import schema_of
from tests.chart.rendered import CASES, CHART, NAMESPACE, RELEASE, ROOT, KubectlYaml, Object, case
from tests.chart.test_chart import KUBERNETES
from tests.cluster.harness import RESTRICTED, Cluster, ClusterError
from tests.cluster.story import Story

pytestmark = pytest.mark.cluster
MONITORING = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}
OFFLINE = ("--kube-version", f"{KUBERNETES}.0")


def helm(cluster: Cluster, *args: str | Path, timeout: float = 120) -> str:
    return cluster.run([cluster.binaries / "helm", "--namespace", NAMESPACE, *args], timeout=timeout).stdout


def monitoring_crds() -> Iterator[Object]:
    """prometheus-operator's kinds, with its schemas."""
    for plural, kind in MONITORING.items():
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema_of(kind)}}
        names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
        spec = {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]}
        meta = {"name": f"{plural}.monitoring.coreos.com"}
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": meta,
            "spec": spec,
        }


@pytest.fixture
def empty(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster without our CRDs, with prometheus-operator's and the namespaces of the cases; afterwards as it was."""
    namespaces = [NAMESPACE, "team-a", "team-b"]
    crds = list(monitoring_crds())
    cluster.kubectl("delete", "--ignore-not-found", "-f", ROOT / "crds")
    cluster.apply(*crds)
    cluster.kubectl(
        "wait", "--for=condition=Established", "--timeout=30s", *(f"crd/{c['metadata']['name']}" for c in crds)
    )
    meta = ({"name": name, "labels": RESTRICTED} for name in namespaces)
    cluster.apply(*({"apiVersion": "v1", "kind": "Namespace", "metadata": m} for m in meta))
    for name in namespaces:
        cluster.wait(lambda name=name: cluster.kubectl("get", "sa", "default", "-n", name), seconds=30)
    try:
        yield cluster
    finally:
        for release in json.loads(helm(cluster, "list", "--all", "-o", "json")):
            helm(cluster, "uninstall", release["name"], "--no-hooks")
        cluster.kubectl("delete", "namespace", *namespaces, "--wait=true", timeout=120)
        cluster.kubectl("delete", "crd", *(c["metadata"]["name"] for c in crds))
        cluster.kubectl("delete", "--ignore-not-found", "-f", ROOT / "crds")
        cluster.install_crds()


def found(cluster: Cluster) -> list[Object]:
    """What the release says that it is, as the server has it."""
    manifest = helm(cluster, "get", "manifest", RELEASE)
    said = json.loads(cluster.kubectl("get", "-o", "json", "-f", "-", input=manifest))
    return list(said["items"])


def names(objects: list[Object]) -> set[tuple[str, str]]:
    return {(o["kind"], o["metadata"]["name"]) for o in objects}


def expected(name: str) -> set[tuple[str, str]]:
    """Of a case, hooks aside."""
    hooks = "helm.sh/hook"
    return names([o for o in case(name) if hooks not in o["metadata"].get("annotations", {})])


def environment(cluster: Cluster) -> dict[str, str]:
    live = cluster.get("deployment", RELEASE, NAMESPACE)
    return {e["name"]: e["value"] for e in live["spec"]["template"]["spec"]["containers"][0]["env"]}


@pytest.mark.parametrize("name", CASES)
def test_helm_3_renders_what_helm_4_does_and_lint_finds_nothing(cluster: Cluster, name: str) -> None:
    helm(cluster, "lint", "--strict", *OFFLINE, CHART, "--values", CASES[name])
    text = helm(cluster, "template", RELEASE, CHART, *OFFLINE, "--values", CASES[name])
    rendered = [o for o in yaml.load_all(text, KubectlYaml) if o]

    def order(o: Object) -> tuple[str, ...]:
        return o["kind"], o["metadata"]["name"], o["metadata"].get("namespace", "")

    assert sorted(rendered, key=order) == sorted(case(name), key=order)


def test_an_older_helm_release_is_upgraded_with_its_crds_and_leaves_them(empty: Cluster, tmp_path: Path) -> None:
    cluster = empty
    old = tmp_path / "old"
    shutil.copytree(CHART, old)
    without_ttl(old / "files/crds/curateevo.io_curationevolutions.yaml")
    helm(cluster, "install", RELEASE, old)
    assert names(found(cluster)) == expected("default")
    assert environment(cluster)["CURATEEVO_CONCURRENCY"] == "8"
    wait_for_kinds(cluster)
    cluster.kubectl("apply", "-n", "team-a", "-f", ROOT / "examples/toolworld.yaml")
    assert "ttlSecondsAfterFinished" not in spec_of_crd(cluster)
    pod_is_admitted(cluster)

    helm(cluster, "upgrade", RELEASE, CHART, "--values", CASES["namespaced"])
    assert names(found(cluster)) == expected("namespaced")
    assert environment(cluster)["CURATEEVO_CONCURRENCY"] == "32"
    assert "ttlSecondsAfterFinished" in spec_of_crd(cluster)
    assert RELEASE not in roles_left(cluster, "clusterroles"), "in namespaced mode there is none"
    live = cluster.get("curationevolution", "toolworld", "team-a")
    assert live["spec"]["rounds"]["max"] == 4, "it was there before"
    cluster.kubectl(
        "patch", "ce", "toolworld", "-n", "team-a", "--type=merge", "-p", '{"spec": {"ttlSecondsAfterFinished": 5}}'
    )

    helm(cluster, "rollback", RELEASE, "1")
    assert names(found(cluster)) == expected("default")
    helm(cluster, "uninstall", RELEASE, "--no-hooks")
    assert cluster.get("curationevolution", "toolworld", "team-a"), "with its CRD it stays"
    left = cluster.kubectl(
        "get", "deploy,sa,svc,pdb,netpol,role,rolebinding,job", "-n", NAMESPACE, "-o", "name"
    ).split()
    assert left == ["serviceaccount/default"]
    assert not roles_left(cluster, "clusterroles,clusterrolebindings")

    helm(cluster, "install", RELEASE, CHART)  # its own CRDs are taken up again
    assert names(found(cluster)) == expected("default")


def test_crds_of_somebody_else_are_taken_over_only_when_asked(empty: Cluster) -> None:
    cluster = empty
    cluster.install_crds()
    with pytest.raises(ClusterError, match="curationevolutions.curateevo.io.*cannot be imported"):
        helm(cluster, "install", RELEASE, CHART)
    helm(cluster, "install", RELEASE, CHART, "--set", "crds.install=false")
    assert "CustomResourceDefinition" not in {kind for kind, _ in names(found(cluster))}
    helm(cluster, "upgrade", RELEASE, CHART, "--set", "crds.install=true", "--take-ownership")
    assert names(found(cluster)) == expected("default")


def test_monitoring_is_added_as_the_page_says(empty: Cluster) -> None:
    """The first block of docs/metrics.md, run."""
    helm(empty, "install", RELEASE, CHART, "--set", "operator.concurrency=9")
    (block,) = re.findall(r"```\n(helm upgrade .+?)```", (ROOT / "docs/metrics.md").read_text(), re.S)
    path = f"{empty.binaries}:{os.environ['PATH']}"
    empty.run(["bash", "-euc", f"cd {ROOT}\n{block}"], env={"PATH": path})
    assert {"ServiceMonitor", "PrometheusRule", "ConfigMap"} <= {kind for kind, _ in names(found(empty))}
    assert environment(empty)["CURATEEVO_CONCURRENCY"] == "9"


def test_wrong_values_make_nothing(empty: Cluster) -> None:
    with pytest.raises(ClusterError, match="additional properties 'concurency' not allowed"):
        helm(empty, "install", RELEASE, CHART, "--set", "operator.concurency=3")
    assert json.loads(helm(empty, "list", "--all", "-o", "json")) == []


def test_people_get_what_their_role_says(empty: Cluster) -> None:
    cluster = empty
    helm(cluster, "install", RELEASE, CHART)
    for role in ("view", "edit", "admin"):
        cluster.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er", "-n", "team-a")

    def may(user: str, verb: str, what: str, *more: str) -> bool:
        asked = ("auth", "can-i", verb, what, *more, "-n", "team-a", "--as", f"{user}er")
        done = cluster.run([cluster.binaries / "kubectl", *asked], check=False)
        return done.stdout.strip() == "yes"

    cluster.wait(lambda: may("view", "list", "curationevolutions"), seconds=20)  # the roles are summed up in a moment
    cluster.wait(lambda: may("admin", "create", "curationevolutions"), seconds=20)
    assert may("view", "get", "policyversions") and not may("view", "create", "curationevolutions")
    for user in ("edit", "admin"):
        assert may(user, "patch", "curationevolutions") and may(user, "get", "policyversions")
        assert not may(user, "create", "policyversions")
        assert not may(user, "update", "curationevolutions", "--subresource=status")


# ---- what is looked at


def without_ttl(path: Path) -> None:
    """The CRD of an earlier release, one field short."""
    crd = yaml.load(path.read_text(), KubectlYaml)
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
        "ttlSecondsAfterFinished"
    ]
    path.write_text(yaml.safe_dump(crd))


def spec_of_crd(cluster: Cluster) -> dict[str, Any]:
    crd = json.loads(cluster.kubectl("get", "crd", "curationevolutions.curateevo.io", "-o", "json"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return dict(schema["properties"]["spec"]["properties"])


def wait_for_kinds(cluster: Cluster) -> None:
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", ROOT / "crds")
    cluster.wait(lambda: cluster.kubectl("get", "ce,pver", "-A", "-o", "json"), seconds=30)


def pod_is_admitted(cluster: Cluster) -> None:
    """By Pod Security, which the namespace enforces at its strictest."""
    cluster.wait(lambda: "pod/" in cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name"), seconds=30)


def roles_left(cluster: Cluster, kinds: str) -> list[str]:
    said = cluster.kubectl("get", kinds, "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "json")
    return [o["metadata"]["name"] for o in json.loads(said)["items"]]


def test_a_story_runs_again_after_that(story: Story) -> None:
    """The cluster is as it was before this file."""
    story.apply(suspend=True)
    assert story.get()["spec"]["suspend"] is True
