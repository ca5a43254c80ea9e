"""The chart: what it renders is what Kubernetes takes, what it can't render it refuses with a sentence that helps."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml
from helm_python import HelmError, lint

from curateevo_operator.__main__ import app
from tests.chart.foreign import validate
from tests.chart.rendered import (
    CASES,
    CHART,
    NAMESPACE,
    RELEASE,
    ROOT,
    SNAPSHOTS,
    KubectlYaml,
    Object,
    case,
    of_kind,
    pods,
    render,
    snapshot,
    values_of,
)
from tests.operator.render.restricted import violations

KUBERNETES = "1.37"
DEFAULTS: Object = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())
every_case = pytest.mark.parametrize("name", CASES)


# ---- what is rendered


@every_case
def test_a_release_reads_as_its_snapshot(name: str) -> None:
    """`python -m tests.chart.rendered` writes them anew."""
    assert snapshot(name) == (SNAPSHOTS / f"{name}.yaml").read_text()


def test_there_is_no_snapshot_without_a_case() -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == set(CASES)


@every_case
def test_kubernetes_takes_every_object(name: str) -> None:
    objects = case(name)
    assert objects
    for manifest in objects:
        if manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            validate(manifest)
        else:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_schemas_refuse_a_field_that_they_do_not_know() -> None:
    deployment, monitor = of_kind(case("namespaced"), "Deployment", "ServiceMonitor")
    deployment["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(deployment, KUBERNETES, strict=True)
    monitor["spec"]["endpoints"][0]["honourLabels"] = True
    with pytest.raises(jsonschema.ValidationError, match="honourLabels"):
        validate(monitor)


@every_case
def test_helm_lint_finds_nothing(name: str) -> None:
    report = lint(CHART, values_of(name), strict=True, kube_version=f"v{KUBERNETES}.0")
    assert report["errors"] == []
    assert [m["error"] for m in report["messages"]] == ["icon is recommended"]


@every_case
def test_pods_keep_to_pod_security_restricted(name: str) -> None:
    found = {who: violations(template["spec"]) for who, template in pods(case(name))}
    assert found == {f"Deployment {RELEASE}": [], f"Job {RELEASE}-uninstall": []}


def test_the_chart_brings_the_very_crds_of_the_models() -> None:
    ours = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    assert ours == {path.name: path.read_text() for path in (CHART / "files/crds").glob("*.yaml")}, "make crds"
    rendered = {o["metadata"]["name"]: o for o in of_kind(case("default"), "CustomResourceDefinition")}
    assert len(rendered) == len(ours) == 2
    for text in ours.values():
        wanted = yaml.load(text, KubectlYaml)
        found = rendered[wanted["metadata"]["name"]]
        assert found["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        del found["metadata"]["labels"]
        assert found == wanted  # YAML, to JSON, to YAML: no number has become another


def test_default_images_name_no_registry() -> None:
    (operator,) = of_kind(case("default"), "Deployment")
    container = operator["spec"]["template"]["spec"]["containers"][0]
    images = {e["value"] for e in container["env"] if e["name"].endswith("_IMAGE")} | {container["image"]}
    assert images == {f"curateevo-{x}:0.1.0" for x in ("operator", "jobs", "sandbox", "trainer")}


def test_the_chart_and_the_distribution_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project and chart["version"] == chart["appVersion"]


@every_case
def test_what_selects_the_operator_selects_it_and_nothing_else(name: str) -> None:
    objects = case(name)
    labels = {who: template["metadata"]["labels"] for who, template in pods(objects)}
    selectors = {
        "Deployment": lambda o: o["spec"]["selector"]["matchLabels"],
        "Service": lambda o: o["spec"]["selector"],
        "PodDisruptionBudget": lambda o: o["spec"]["selector"]["matchLabels"],
        "NetworkPolicy": lambda o: o["spec"]["podSelector"]["matchLabels"],
    }
    for manifest in of_kind(objects, *selectors):
        selector = selectors[manifest["kind"]](manifest)
        selected = [who for who, own in labels.items() if selector.items() <= own.items()]
        assert selected == [f"Deployment {RELEASE}"], manifest["kind"]


def test_the_monitor_finds_the_service_and_the_service_the_port() -> None:
    objects = case("namespaced")
    (monitor,), (service,) = of_kind(objects, "ServiceMonitor"), of_kind(objects, "Service")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    (endpoint,), (port,) = monitor["spec"]["endpoints"], service["spec"]["ports"]
    assert endpoint["port"] == port["name"] and endpoint["honorLabels"] is True
    (operator,) = of_kind(objects, "Deployment")
    ports = operator["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert port["targetPort"] in {p["name"] for p in ports}
    (policy,) = of_kind(objects, "NetworkPolicy")
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": ports[0]["containerPort"], "protocol": "TCP"}]


def test_alerts_and_dashboard_come_as_the_files_say() -> None:
    objects = case("namespaced")
    (rule,), (dashboard,) = of_kind(objects, "PrometheusRule"), of_kind(objects, "ConfigMap")
    assert dashboard["data"] == {"curateevo.json": (CHART / "files/dashboard.json").read_text()}
    text = (CHART / "files/alerts.yaml").read_text()
    prefix = values_of("namespaced")["metrics"]["prometheusRule"]["runbooks"]
    assert rule["spec"] == yaml.safe_load(text.replace("runbook_url: ", f"runbook_url: {prefix}"))
    links = [r["annotations"]["runbook_url"] for g in rule["spec"]["groups"] for r in g["rules"]]
    assert links and all(link.startswith(f"{prefix}docs/metrics.md#") for link in links)


def test_the_whole_cluster_or_the_namespaces_that_were_named() -> None:
    def bound(objects: list[Object]) -> set[tuple[str, str | None]]:
        found = of_kind(objects, "RoleBinding", "ClusterRoleBinding")
        return {(o["kind"], o["metadata"].get("namespace")) for o in found if o["metadata"]["name"] == RELEASE}

    assert bound(case("default")) == {("ClusterRoleBinding", None)}
    assert bound(case("namespaced")) == {("RoleBinding", "team-a"), ("RoleBinding", "team-b")}
    assert not of_kind(case("namespaced"), "ClusterRoleBinding")
    assert _env(case("namespaced"))["CURATEEVO_NAMESPACES"] == "team-a team-b"
    assert "CURATEEVO_NAMESPACES" not in _env(case("default"))


def test_names_and_labels_stay_what_they_are_whatever_they_look_like() -> None:
    """A release 1e3 in a namespace 0123 is no number."""
    objects, _ = render(values_of("namespaced") | {"namespaces": ["true", "12"]}, name="1e3", namespace="0123")
    for manifest in objects:
        meta = manifest["metadata"]
        assert isinstance(meta["name"], str) and isinstance(meta.get("namespace", ""), str)
        assert meta["labels"]["app.kubernetes.io/instance"] == "1e3"
        assert all(isinstance(s["namespace"], str) for s in manifest.get("subjects", ()))


def test_the_longest_release_name_makes_names_that_fit() -> None:
    objects, _ = render(values_of("namespaced"), name="a" * 53)
    for manifest in objects:
        limit = 253 if "rbac" in manifest["apiVersion"] or "apiext" in manifest["apiVersion"] else 63
        assert len(manifest["metadata"]["name"]) <= limit
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())


# ---- what the operator is told


def _env(objects: list[Object]) -> dict[str, str]:
    (operator,) = of_kind(objects, "Deployment")
    return {e["name"]: e["value"] for e in operator["spec"]["template"]["spec"]["containers"][0]["env"]}


def test_the_operator_knows_every_variable_and_the_chart_every_option() -> None:
    command = typer.main.get_command(app)
    known = {str(option.envvar) for option in command.params if getattr(option, "envvar", None)}
    told = {name for name in _env(case("namespaced")) if name.startswith("CURATEEVO_")}
    assert told <= known
    assert known - told == {"CURATEEVO_HOST", "CURATEEVO_PORT"}, "the container's port is fixed"


def test_no_service_sets_an_option() -> None:
    """One called curateevo would set CURATEEVO_PORT, to tcp://..., in every pod of its namespace."""
    (operator,) = of_kind(case("default"), "Deployment")
    assert operator["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_the_operator_takes_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _env(case("namespaced")).items():
        monkeypatch.setenv(name, value)
    taken = typer.main.get_command(app).make_context("operator", []).params
    assert taken["namespace"] == ["team-a", "team-b"] and taken["image_pull_secret"] == ["pull", "pull-more"]
    assert taken["own_identity"] is True and taken["concurrency"] == 32 and taken["log_format"] == "text"
    assert taken["serve_image"] == "images.example/vllm-openai:v1" and taken["job_ttl_seconds"] == 3600


# ---- values


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value and not (path and _open(path)):
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}".lstrip("."))
    else:
        yield path


def _open(path: str) -> bool:
    """Whether a section takes any key."""
    node = SCHEMA
    for key in path.split("."):
        node = node["properties"][key]
    return node.get("additionalProperties") is not False


def test_values_and_schema_name_the_same_and_every_value_is_explained() -> None:
    def nodes(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
        for key, below in schema.get("properties", {}).items():
            yield f"{path}.{key}".lstrip("."), below
            yield from nodes(below, f"{path}.{key}".lstrip("."))

    known = dict(nodes(SCHEMA))
    assert all(node.get("description", "").strip() for node in known.values())
    closed = [path for path, node in known.items() if "properties" in node]
    assert all(known[path]["additionalProperties"] is False for path in closed)
    leaves = {path for path in known if path not in closed} - {"global", "operator.resources.claims"}
    assert leaves == set(_leaves(DEFAULTS))
    jsonschema.Draft7Validator.check_schema(SCHEMA)


ANOTHER: dict[str, Any] = {
    "namespaces": ["team-c"],
    "images.registry": "other.example",
    "images.pullPolicy": "Never",
    "images.pullSecrets": ["other"],
    "crds.install": False,
    "operator.concurrency": 5,
    "operator.resyncSeconds": 7,
    "operator.listSeconds": 11,
    "operator.jobTTLSeconds": 13,
    "operator.workStorageClass": "other",
    "operator.logFormat": "json",
    "operator.logLevel": "error",
    "operator.ownIdentity": False,
    "operator.extraEnv": [],
    "operator.extraVolumes": [],
    "operator.extraVolumeMounts": [],
    "operator.resources.requests": {"cpu": "1"},
    "operator.resources.limits": {"memory": "1Gi"},
    "operator.podAnnotations": {"a": "b"},
    "operator.podLabels": {"a": "b"},
    "operator.nodeSelector": {"a": "b"},
    "operator.tolerations": [],
    "operator.affinity": {},
    "operator.priorityClassName": "other",
    "serviceAccount.create": False,
    "serviceAccount.name": "other",
    "serviceAccount.annotations": {"a": "b"},
    "rbac.create": False,
    "rbac.aggregate": False,
    "podDisruptionBudget.enabled": False,
    "networkPolicy.enabled": False,
    "networkPolicy.metricsFrom": {"a": "b"},
    "networkPolicy.egress": [],
    "metrics.serviceMonitor.enabled": False,
    "metrics.serviceMonitor.interval": "1m",
    "metrics.serviceMonitor.labels": {"a": "b"},
    "metrics.prometheusRule.enabled": False,
    "metrics.prometheusRule.labels": {"a": "b"},
    "metrics.prometheusRule.runbooks": "other/",
    "metrics.dashboard.enabled": False,
    "metrics.dashboard.labels": {"a": "b"},
    "metrics.dashboard.annotations": {"a": "b"},
    "uninstall.releaseFinalizers": False,
    "uninstall.serviceAccountName": "other",
    **{f"images.{x}.repository": "other" for x in ("operator", "jobs", "sandbox", "trainer", "serve")},
    **{f"images.{x}.tag": "other" for x in ("operator", "jobs", "sandbox", "trainer", "serve")},
    **{f"images.{x}.digest": "sha256:" + "a" * 64 for x in ("operator", "jobs", "sandbox", "trainer", "serve")},
}
ALONGSIDE: dict[str, Object] = {
    "serviceAccount.create": {"serviceAccount": {"name": "there"}},
    "rbac.create": {"uninstall": {"serviceAccountName": "there"}},
    "uninstall.serviceAccountName": {"rbac": {"create": False}, "uninstall": {"serviceAccountName": "there"}},
}
"""What has to be said with it."""


def test_each_value_changes_what_is_rendered() -> None:
    assert set(ANOTHER) == set(_leaves(DEFAULTS))
    for path, value in ANOTHER.items():
        before = _merged(values_of("namespaced"), ALONGSIDE.get(path, {}))
        before["crds"] = {"install": path == "crds.install"}  # they take long
        after = copy.deepcopy(before)
        *above, last = path.split(".")
        node = after
        for key in above:
            node = node.setdefault(key, {})
        node[last] = value
        assert render(before) != render(after), path


def _merged(values: Object, more: Object) -> Object:
    out = copy.deepcopy(values)
    for key, below in more.items():
        out[key] = _merged(out.get(key, {}), below) if isinstance(below, dict) else below
    return out


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"operator": {"concurency": 3}}, "additional properties 'concurency' not allowed"),
        ({"operator": {"concurrency": "3"}}, "'/operator/concurrency': got string, want integer"),
        ({"operator": {"concurrency": 0}}, "'/operator/concurrency': minimum: got 0, want 1"),
        ({"operator": {"logLevel": "loud"}}, "'debug', 'info', 'warning', 'error'"),
        ({"operator": {"resources": {"limit": {}}}}, "additional properties 'limit' not allowed"),
        ({"operator": None}, "missing property 'operator'"),
        ({"namespaces": "agents"}, "'/namespaces': got string, want array"),
        ({"namespaces": ["Agents"]}, 'namespaces: "Agents" is no name of a namespace'),
        ({"namespaces": ["a", "a"]}, "'/namespaces': items at 0 and 1 are equal"),
        ({"images": {"jobs": {"repository": "here:5000/jobs:1"}}}, "the tag goes into images.jobs.tag"),
        ({"images": {"jobs": {"repository": ""}}}, "'/images/jobs/repository': minLength: got 0, want 1"),
        ({"images": {"jobs": {"tag": 1.0}}}, "'/images/jobs/tag': got number, want string"),
        ({"serviceAccount": {"create": False}}, "say in serviceAccount.name which account the operator runs under"),
        ({"rbac": {"create": False}}, "name an account that has them in uninstall.serviceAccountName"),
        ({"metrics": {"serviceMonitor": {"interval": "30"}}}, "'/metrics/serviceMonitor/interval'"),
    ],
)
def test_wrong_values_are_refused_with_a_sentence_that_helps(values: Object, said: str) -> None:
    with pytest.raises(HelmError) as caught:
        render(values)
    assert said in str(caught.value)


# ---- notes


def test_the_notes_say_what_holds_for_these_values() -> None:
    def notes(values: Object) -> str:
        return " ".join(render(values)[1].split())

    plain = notes({})
    assert "in all namespaces" in plain and "-n NAMESPACE apply" in plain
    assert f"-n {NAMESPACE} logs deploy/{RELEASE}" in plain and "takes its finalizer off evolutions" in plain
    assert "crds.install is false" not in plain and "ownIdentity" not in plain and "rbac.create" not in plain
    everything = notes(values_of("namespaced"))
    assert "in team-a, team-b." in everything and "-n team-a apply" in everything
    assert "operator.ownIdentity is true" in everything
    minimal = notes(values_of("minimal"))
    assert "crds.install is false" in minimal and "The account curation gets no rights" in minimal
    kept = notes({"uninstall": {"releaseFinalizers": False}})
    assert "leaves the operator's finalizer" in kept and "takes its finalizer off" not in kept
