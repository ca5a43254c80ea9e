"""GitOps: Argo CD's and Flux's health checks over what statuses there are, and what kustomize builds is valid."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import cel
import lupa.lua51
import pytest
import yaml

from curateevo.api.evolution import EvolutionPhase, EvolutionStatus, Reason, StageState, StageStatus, VersionPhase
from curateevo.api.parse import parse_evolution
from curateevo.evolution.conditions import with_conditions, with_fault
from curateevo.evolution.decision import VersionSeen
from tests.chart.foreign import validate
from tests.chart.rendered import ROOT, KubectlYaml, Object, render
from tests.cluster.harness import Cluster
from tests.cluster.story import Story

EXAMPLES = ROOT / "examples/gitops"
CHECKS: dict[str, str] = yaml.safe_load((EXAMPLES / "argocd/argocd-cm.yaml").read_text())["data"]
GENERATION = 3
NOW = 1000.0


def status(phase: EvolutionPhase, reason: Reason | None = None, message: str = "") -> EvolutionStatus:
    """As the operator would write it."""
    plain = EvolutionStatus(phase=phase, reason=reason, message=message)
    return with_conditions(plain, EvolutionStatus(), GENERATION, NOW)


def refused(kind: str, reason: Reason) -> EvolutionStatus:
    return with_fault(status(EvolutionPhase.TESTING, Reason.RUNNING), kind, reason, "mend it", GENERATION, NOW)


def denied() -> EvolutionStatus:
    """A stage of the version under test waits for somebody."""
    stage = StageStatus(state=StageState.WAITING, reason=Reason.DENIED, message="no rights")
    version = VersionSeen(1, "d", "k", VersionPhase.TRAINING, current=stage)
    plain = EvolutionStatus(phase=EvolutionPhase.TESTING, reason=Reason.RUNNING)
    return with_conditions(plain, EvolutionStatus(), GENERATION, NOW, version)


def evolution(of: EvolutionStatus | None, **meta: Any) -> Object:
    found: Object = {"metadata": {"name": "airline", "generation": GENERATION, **meta}}
    return found if of is None else found | {"status": of.to_wire()}


STORIES: dict[str, tuple[Object, str, str, str]] = {
    # name: object, Argo CD's word, its message, Flux's word
    "no status yet": (evolution(None), "Progressing", "waits for the operator", "InProgress"),
    "ingests": (evolution(status(EvolutionPhase.INGESTING, Reason.RUNNING)), "Progressing", "Ingesting: ", "InProgress"),
    "tests": (
        evolution(status(EvolutionPhase.TESTING, Reason.RUNNING, "version 2: training")),
        "Progressing", "Testing: version 2: training", "InProgress",
    ),
    "changed, and not seen yet": (
        evolution(status(EvolutionPhase.COMPLETE, Reason.MAX_ROUNDS), generation=GENERATION + 1),
        "Progressing", "the operator has not seen the change yet", "InProgress",
    ),
    "complete": (
        evolution(status(EvolutionPhase.COMPLETE, Reason.MAX_ROUNDS, "2 rounds")), "Healthy", "MaxRounds: 2 rounds", "Current",
    ),
    "failed": (
        evolution(status(EvolutionPhase.FAILED, Reason.BASELINE_FAILED, "version 0: refused")),
        "Degraded", "BaselineFailed: version 0: refused", "Failed",
    ),
    "suspended": (
        evolution(status(EvolutionPhase.SUSPENDED, Reason.SUSPENDED, "spec.suspend is true")),
        "Suspended", "spec.suspend is true", "Current",
    ),
    "waits for a policy": (
        evolution(status(EvolutionPhase.PROPOSING, Reason.AWAITING_POLICY, "submit version 1")),
        "Suspended", "submit version 1", "InProgress",
    ),
    "spec that can't be run": (
        evolution(refused("Ready", Reason.SPEC_INVALID)), "Degraded", "SpecInvalid: mend it", "Failed",
    ),
    "keys refused by the store": (
        evolution(refused("ArtifactStoreReachable", Reason.DENIED)), "Degraded", "Denied: mend it", "Failed",
    ),
    "store away": (
        evolution(refused("ArtifactStoreReachable", Reason.INFRASTRUCTURE)), "Progressing", "Testing: ", "InProgress",
    ),
    "a stage that is denied": (evolution(denied()), "Degraded", "Denied: no rights", "Failed"),
    "left alone": (
        evolution(status(EvolutionPhase.TESTING, Reason.RUNNING), annotations={"curateevo.io/paused": "true"}),
        "Suspended", "left alone: annotated curateevo.io/paused", "InProgress",
    ),
}  # fmt: skip
stories = pytest.mark.parametrize("name", STORIES)


# ---- Argo CD


def argo(kind: str, live: Object) -> tuple[str, str]:
    """What Argo CD's check says. It has the base and table libraries, as there."""
    lua = lupa.lua51.LuaRuntime(register_eval=False, attribute_filter=_nothing)
    for library in ("string", "math", "io", "os", "debug", "coroutine", "package", "require", "python"):
        lua.globals()[library] = None
    lua.globals().obj = _table(lua, live)
    found = lua.execute(CHECKS[f"resource.customizations.health.curateevo.io_{kind}"])
    return found.status, found.message


def _nothing(owner: object, name: str, setting: bool) -> str:
    raise AttributeError(f"Lua has no business with {name}")


def _table(lua: Any, value: Any) -> Any:
    """Numbers are floats, as in Go's JSON."""
    if isinstance(value, dict):
        return lua.table_from({key: _table(lua, below) for key, below in value.items()})
    if isinstance(value, list):
        return lua.table_from([_table(lua, below) for below in value])
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@stories
def test_argo_cd_says_how_an_evolution_is(name: str) -> None:
    live, health, message, _ = STORIES[name]
    assert argo("CurationEvolution", live) == (health, message)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (None, ("Progressing", "waits for the operator")),
        ({"phase": "Training"}, ("Progressing", "Training")),
        ({"phase": "Failed"}, ("Progressing", "Failed")),
        (
            {"phase": "Measured", "verdict": "Committed", "reason": "ObjectiveImproved"},
            ("Healthy", "Committed: ObjectiveImproved"),
        ),
        ({"phase": "Measured", "verdict": "Reverted", "reason": "NotCheaper"}, ("Healthy", "Reverted: NotCheaper")),
        (
            {"phase": "Rejected", "verdict": "Rejected", "reason": "PolicyRejected"},
            ("Healthy", "Rejected: PolicyRejected"),
        ),
        (
            {"phase": "Failed", "verdict": "Failed", "reason": "ProgramFailed", "message": "exit code 1"},
            ("Degraded", "ProgramFailed: exit code 1"),
        ),
    ],
)
def test_argo_cd_says_how_a_version_is(of: Object | None, said: tuple[str, str]) -> None:
    live: Object = {"metadata": {"name": "airline-v1", "generation": 1}}
    assert argo("PolicyVersion", live if of is None else live | {"status": of}) == said


def test_argo_cd_is_told_of_both_kinds_and_of_nothing_else() -> None:
    assert set(CHECKS) == {
        f"resource.customizations.health.curateevo.io_{k}" for k in ("CurationEvolution", "PolicyVersion")
    }


@pytest.mark.cluster
def test_argo_cds_configmap_keeps_what_it_has(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "argocd")
    try:
        cluster.kubectl("create", "configmap", "argocd-cm", "-n", "argocd", "--from-literal=url=theirs")
        patch = f"--patch-file={EXAMPLES}/argocd/argocd-cm.yaml"
        cluster.kubectl("-n", "argocd", "patch", "configmap", "argocd-cm", "--type=merge", patch)
        assert cluster.get("configmap", "argocd-cm", "argocd")["data"] == {"url": "theirs"} | CHECKS
    finally:
        cluster.kubectl("delete", "namespace", "argocd", "--wait=false")


def test_applications_name_values_that_the_chart_has() -> None:
    applications = list(yaml.safe_load_all((EXAMPLES / "argocd/applications.yaml").read_text()))
    assert [a["kind"] for a in applications] == ["Application", "Application"]
    assert render(applications[0]["spec"]["source"]["helm"]["valuesObject"])
    assert not any("ignoreDifferences" in a["spec"] for a in applications), "nothing has to be ignored"
    prune = [a["spec"]["syncPolicy"]["automated"].get("prune", False) for a in applications]
    assert prune == [False, False]


# ---- Flux


def flux(live: Object) -> str:
    """Flux's order: a stale generation, inProgress, failed, current; what is none of them is in progress. An expression that
    reads what is not there is an error, and Flux looks again."""
    (check,) = _kustomization()["spec"]["healthCheckExprs"]
    seen = live.get("status", {}).get("observedGeneration")
    if seen is not None and seen != live["metadata"]["generation"]:
        return "InProgress"
    for word, key in (("InProgress", "inProgress"), ("Failed", "failed"), ("Current", "current")):
        try:
            if cel.evaluate(check[key], dict(live)) is True:
                return word
        except (RuntimeError, ValueError) as error:
            assert "status" not in live, error
            return "InProgress"
    return "InProgress"


def _kustomization() -> Object:
    return dict(yaml.safe_load((EXAMPLES / "flux/evolutions.yaml").read_text()))


@stories
def test_flux_says_how_an_evolution_is(name: str) -> None:
    live, _, _, word = STORIES[name]
    assert flux(live) == word


def test_each_of_fluxs_expressions_decides_something() -> None:
    assert {word for *_, word in STORIES.values()} == {"InProgress", "Failed", "Current"}
    empty = {"metadata": {"generation": 1}, "status": {}}
    assert flux(empty) == "InProgress", "has() guards what is not there yet"


def test_the_kustomization_is_one_of_fluxs() -> None:
    validate(_kustomization())
    (check,) = _kustomization()["spec"]["healthCheckExprs"]
    assert (check["apiVersion"], check["kind"]) == ("curateevo.io/v1alpha1", "CurationEvolution")
    assert _kustomization()["spec"]["wait"] is True and _kustomization()["spec"]["prune"] is False


def test_the_helm_release_names_values_that_the_chart_has() -> None:
    source, release = yaml.safe_load_all((EXAMPLES / "flux/operator.yaml").read_text())
    assert release["spec"]["chart"]["spec"]["sourceRef"] == {"kind": source["kind"], "name": source["metadata"]["name"]}
    assert (ROOT / release["spec"]["chart"]["spec"]["chart"] / "Chart.yaml").exists()
    assert render(release["spec"]["values"])


# ---- kustomize


BUILT = {"base": "airline", "overlays/small": "airline-small", "overlays/own-policy": "airline-own"}


@pytest.fixture
def build(cluster: Cluster) -> Any:
    def built(folder: str) -> str:
        return cluster.kubectl("kustomize", EXAMPLES / "kustomize" / folder)

    return built


@pytest.mark.cluster
@pytest.mark.parametrize("folder", BUILT)
def test_what_kustomize_builds_is_valid_here_and_there(build: Any, cluster: Cluster, folder: str) -> None:
    text = build(folder)
    found = {o["kind"]: o for o in yaml.load_all(text, KubectlYaml)}
    parsed = parse_evolution(yaml.safe_dump(found["CurationEvolution"]), folder)
    assert parsed.metadata.name == BUILT[folder]
    stripped = [o | {"metadata": {**o["metadata"], "namespace": "default"}} for o in found.values()]
    for how in ((), ("--server-side",)):
        everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": stripped})
        said = cluster.kubectl("apply", *how, "--dry-run=server", "-f", "-", input=everything)
        assert said.count("dry run") == len(found)


@pytest.mark.cluster
def test_finalizers_come_off_as_the_page_says(cluster: Cluster, story: Story) -> None:
    """Where nobody ran the chart's hook: a bash block of docs/gitops.md, run."""
    manifest = story.manifest()
    manifest["metadata"]["finalizers"] = ["curateevo.io/cleanup"]
    story.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    (block,) = re.findall(r"```\n(kubectl get ce.+?)```", (ROOT / "docs/gitops.md").read_text(), re.S)
    path = f"{cluster.binaries}:{os.environ['PATH']}"
    cluster.run(["bash", "-euc", block], env={"PATH": path})
    story.kubectl("delete", "ce", "evo", "--timeout=20s")


@pytest.mark.cluster
def test_an_overlay_changes_what_it_says_and_renames_what_is_named(build: Any) -> None:
    small = yaml.load(build("overlays/small"), KubectlYaml)
    assert small["spec"]["rounds"] == {"max": 2} and small["spec"]["storage"]["uri"] == "s3://evolutions/airline-small"
    limits = small["spec"]["templates"]["train"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "1"}
    own = {o["kind"]: o for o in yaml.load_all(build("overlays/own-policy"), KubectlYaml)}
    name = own["ConfigMap"]["metadata"]["name"]
    assert name == "policy-own"
    assert own["CurationEvolution"]["spec"]["policy"]["initial"]["configMapKeyRef"] == {
        "name": name,
        "key": "policy.py",
    }
    policy = EXAMPLES / "kustomize/overlays/own-policy/policy.py"
    assert own["ConfigMap"]["data"] == {"policy.py": policy.read_text()}


def test_no_example_names_a_real_host() -> None:
    for path in sorted(Path(EXAMPLES).rglob("*.yaml")):
        for url in re.findall(r"https://([^/\"\s]+)", path.read_text()):
            assert url.endswith((".example", "kubernetes.default.svc")), (path, url)
