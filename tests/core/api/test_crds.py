"""The CRDs: what is in crds/ is what the models say, and the API server agrees with `curateevo validate`.

There is no API server here: `refusals` does what it does with a custom resource on `kubectl apply`, in its order.
Unknown fields are refused, nulls that mean nothing are dropped, defaults filled in, the structural schema is checked, and
if that holds the CEL rules.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cel
import jsonschema
import pytest
import yaml

from curateevo.api.base import JsonObject
from curateevo.api.crd import GROUP, KINDS, NAMES, crd_yaml, render_crd, render_schema
from curateevo.api.errors import SpecInvalid
from curateevo.api.evolution import CurationEvolution, ObjectMeta, PolicyVersion, VersionSpec
from curateevo.api.parse import parse_evolution
from curateevo.api.rules import FIXED, RULES, changed_fixed

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = Path(__file__).parent / "samples"
VALID = [*sorted((SAMPLES / "valid").glob("*.yaml")), *sorted((ROOT / "examples").glob("*.yaml"))]
INVALID = sorted((SAMPLES / "invalid").glob("*.yaml"))
APPLY_ANNOTATION_BYTES = 262_144
AIM_BYTES = 100_000
PRESERVE = "x-kubernetes-preserve-unknown-fields"
STAGES = ("ingest", "curate", "train", "serve", "evaluate", "propose")
FREE_FORM = {
    "evaluation.suites[].params",
    "training.sft.args",
    "training.grpo.args",
    *(f"templates.{stage}" for stage in STAGES),
}
SCHEMA_KEYWORDS = {
    "type", "format", "description", "enum", "pattern", "minLength", "maxLength", "minItems", "maxItems", "maxProperties",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "default", "items", "properties", "required",
    "additionalProperties", PRESERVE, "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
}  # fmt: skip


# ---- kubectl and an API server, as far as a custom resource goes


class KubectlYaml(yaml.SafeLoader):
    """1e-4 is a number, as for kubectl; PyYAML takes it for text."""


KubectlYaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read(path: Path) -> JsonObject:
    raw = yaml.load(path.read_text(), KubectlYaml)
    assert isinstance(raw, dict)
    return raw


@functools.cache
def schema_of(kind: str) -> JsonObject:
    return render_schema(kind)


@functools.cache
def validator_of(kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(_plain(schema_of(kind)))


@functools.cache
def compiled(rule: str) -> Any:
    return cel.compile(rule)


def refusals(kind: str, raw: JsonObject, old: JsonObject | None = None) -> list[str]:
    """Why `raw` is refused, each with its path; `old` is the stored object when it is an update."""
    schema = schema_of(kind)
    unknown = [f"{path}: unknown field" for path in _unknown(raw, schema, "")]
    new = admitted(kind, raw)
    problems = unknown + _schema_problems(new, validator_of(kind))
    if problems:
        return problems
    spec, stored = new["spec"], admitted(kind, old)["spec"] if old else None
    return _broken_rules(schema["properties"]["spec"], spec, stored)


def admitted(kind: str, raw: JsonObject) -> JsonObject:
    """`raw` as it is stored when it is accepted."""
    out = copy.deepcopy(raw)
    _drop_nulls(out, schema_of(kind))
    _fill_in(out, schema_of(kind))
    return out


def _below(value: Any, schema: JsonObject) -> Iterator[tuple[str, Any, JsonObject]]:
    """What lies one step below `value`, with its schema."""
    if isinstance(value, list) and "items" in schema:
        yield from ((f"[{i}]", item, schema["items"]) for i, item in enumerate(value))
    if isinstance(value, dict):
        for key, item in value.items():
            if key in schema.get("properties", {}):
                yield f".{key}", item, schema["properties"][key]
            elif "additionalProperties" in schema:
                yield f".{key}", item, schema["additionalProperties"]


def _unknown(value: Any, schema: JsonObject, path: str) -> Iterator[str]:
    if path == ".metadata":
        return
    if isinstance(value, dict) and not schema.get(PRESERVE) and "additionalProperties" not in schema:
        yield from (f"{path}.{key}".lstrip(".") for key in value if key not in schema.get("properties", {}))
    for step, item, below in _below(value, schema):
        yield from _unknown(item, below, path + step)


def _drop_nulls(value: Any, schema: JsonObject) -> None:
    if isinstance(value, dict):
        for key in [k for k, v in value.items() if v is None and k in schema.get("properties", {})]:
            del value[key]
    for _, item, below in _below(value, schema):
        _drop_nulls(item, below)


def _fill_in(value: Any, schema: JsonObject) -> None:
    if isinstance(value, dict):
        for key, below in schema.get("properties", {}).items():
            if key not in value and "default" in below:
                value[key] = copy.deepcopy(below["default"])
    for _, item, below in _below(value, schema):
        _fill_in(item, below)


def _schema_problems(value: JsonObject, validator: jsonschema.Draft202012Validator) -> list[str]:
    found = []
    for error in validator.iter_errors(value):
        path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path)
        if error.validator == "required":
            path += "." + error.message.split("'")[1]
        found.append(f"{path.lstrip('.')}: {error.message}")
    return found


def _plain(node: JsonObject) -> JsonObject:
    """The structural schema as JSON schema of 2020-12."""
    out = {k: v for k, v in node.items() if k not in ("format", "default") and not k.startswith("x-")}
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if out.pop(flag, False):
            out[flag] = out.pop(bound)
    for key in ("items", "additionalProperties"):
        if key in node:
            out[key] = _plain(node[key])
    if "properties" in node:
        out["properties"] = {name: _plain(below) for name, below in node["properties"].items()}
    return out


def _broken_rules(schema: JsonObject, spec: JsonObject, old: JsonObject | None) -> list[str]:
    names = {"self": _typed(spec, schema)} | ({"oldSelf": _typed(old, schema)} if old is not None else {})
    broken = []
    for rule in schema["x-kubernetes-validations"]:
        if "oldSelf" in rule["rule"] and old is None:
            continue
        if compiled(rule["rule"]).execute(names) is not True:
            broken.append(f"spec{rule.get('fieldPath', '')}: {rule['message']}")
    return broken


def _typed(value: Any, schema: JsonObject) -> Any:
    """Whole numbers where the schema says number: CEL has no 1 == 1.0, so the server makes them doubles."""
    if schema.get("type") == "number":
        return float(value)
    if isinstance(value, list):
        return [_typed(item, schema.get("items", {})) for item in value]
    if isinstance(value, dict):
        typed = {step[1:]: _typed(item, below) for step, item, below in _below(value, schema)}
        return {**value, **typed}
    return value


# ---- the files


def nodes(schema: JsonObject, path: str = "") -> Iterator[tuple[str, JsonObject]]:
    """Each node of a schema, with its path."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_what_the_models_say(kind: str) -> None:
    path = ROOT / "crds" / f"{GROUP}_{NAMES[kind]['plural']}.yaml"
    assert path.read_text() == crd_yaml(kind), "run `make crds`"
    assert yaml.safe_load(path.read_text()) == render_crd(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_they_fit_into_the_annotation_of_client_side_apply(kind: str) -> None:
    annotation = json.dumps(render_crd(kind), separators=(",", ":"))
    assert len(crd_yaml(kind).encode()) < AIM_BYTES and len(annotation.encode()) < APPLY_ANNOTATION_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_structural_bounded_and_explained(kind: str) -> None:
    for path, node in nodes(render_schema(kind)):
        assert set(node) <= SCHEMA_KEYWORDS, (path, set(node) - SCHEMA_KEYWORDS)
        assert node["type"] in ("object", "array", "string", "number", "integer", "boolean"), path
        assert not ("properties" in node and "additionalProperties" in node), path
        if path in ("", "apiVersion", "kind") or path.startswith("metadata"):
            continue
        assert node.get("description") or path.endswith(("[]", "{}")), f"{path} has no description"
        if node["type"] == "string":
            assert "maxLength" in node or "enum" in node or node.get("format") == "date-time", f"{path} has no bound"
        if node["type"] == "array":
            assert "maxItems" in node and "items" in node, f"{path} has no bound"
        if node["type"] == "object" and "properties" not in node:
            assert "maxProperties" in node, f"{path} has no bound"
        if node["type"] in ("number", "integer"):
            assert node["format"] in ("double", "int32", "int64"), path
        assert "nullable" not in node, f"{path}: kubectl apply drops nulls, so none may mean anything"


@pytest.mark.parametrize("kind", KINDS)
def test_only_arguments_and_templates_are_free_form(kind: str) -> None:
    free = {path for path, node in nodes(render_schema(kind)) if node.get(PRESERVE)}
    prefix = "spec." if kind == "CurationEvolution" else "spec.evolutionSpec."
    assert free == {prefix + path for path in FREE_FORM}


def test_defaults_hold_under_their_own_schema_and_only_in_what_a_person_writes() -> None:
    for path, node in nodes(render_schema("CurationEvolution")):
        if "default" not in node:
            continue
        assert path.startswith("spec."), path
        value = copy.deepcopy(node["default"])
        assert not list(_unknown(value, node, path))
        _fill_in(value, node)
        assert not _schema_problems(value, jsonschema.Draft202012Validator(_plain(node))), path
    assert not [path for path, node in nodes(render_schema("PolicyVersion")) if "default" in node]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_rules_point_at_fields_that_exist(kind: str) -> None:
    crd = render_crd(kind)
    known = {path for path, _ in nodes(render_schema(kind))}
    version = crd["spec"]["versions"][0]
    for column in version["additionalPrinterColumns"]:
        assert column["jsonPath"][1:] in known or column["name"] == "Age", column
    for rule in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"]:
        assert f"spec{rule.get('fieldPath', '')}" in known, rule
        assert 0 < len(rule["message"]) <= 2048 and "\n" not in rule["message"]
    assert version["subresources"] == {"status": {}} and crd["spec"]["scope"] == "Namespaced"


# ---- samples


@pytest.mark.parametrize("path", VALID, ids=lambda p: p.stem)
def test_both_accept_a_valid_sample_and_fill_in_the_same_defaults(path: Path) -> None:
    raw = read(path)
    evolution = parse_evolution(path.read_text(), path.name)
    assert refusals("CurationEvolution", raw) == []
    stored = CurationEvolution.model_validate(admitted("CurationEvolution", raw))
    assert stored == evolution
    wire, spec = stored.spec.to_wire(), admitted("CurationEvolution", raw)["spec"]
    assert _without_empty_free_form(wire) == _without_empty_free_form(spec)


def _without_empty_free_form(spec: JsonObject) -> JsonObject:
    """Free-form mappings have no default on the server; the models have an empty one."""
    out = copy.deepcopy(spec)
    places = [(out, "templates"), (out["training"]["sft"], "args"), (out["training"]["grpo"], "args")]
    for owner, key in [*places, *((suite, "params") for suite in out["evaluation"]["suites"])]:
        if owner.get(key) == {}:
            del owner[key]
    return out


@pytest.mark.parametrize("path", INVALID, ids=lambda p: p.stem)
def test_both_refuse_an_invalid_sample_at_the_same_field(path: Path) -> None:
    text = path.read_text()
    wanted, _, says = text.splitlines()[0].removeprefix("# path: ").partition("; says: ")
    with pytest.raises(SpecInvalid) as caught:
        parse_evolution(text, path.name)
    lines = [line.strip().replace(".[key]:", ":") for line in str(caught.value).splitlines()]
    assert any(line.startswith(f"{wanted}:") and says in line for line in lines), lines
    refused = refusals("CurationEvolution", read(path))
    assert any(line.startswith(f"{wanted}:") for line in refused), refused


def test_every_rule_has_a_sample_that_breaks_it() -> None:
    heads = [path.read_text().splitlines()[0] for path in INVALID]
    said = [refusals("CurationEvolution", read(path)) for path in INVALID]
    for rule in RULES:
        assert any(f"{rule.path}: {rule.message}" in lines for lines in said), rule.path
        assert any(head.startswith(f"# path: {rule.path};") for head in heads), rule.path


# ---- updates


def evolution(**changes: object) -> JsonObject:
    """The fullest sample with `a__b=value` set at spec.a.b."""
    raw = read(SAMPLES / "valid" / "everything.yaml")
    for path, value in changes.items():
        node = raw["spec"]
        *parents, last = path.split("__")
        for name in parents:
            node = node[int(name)] if isinstance(node, list) else node[name]
        node[last] = value
    return raw


FIXED_CHANGES: dict[str, tuple[str, object]] = {
    "spec.corpus": ("corpus__sources__0__uri", "other.json"),
    "spec.model": ("model__chatTemplate", "{{ other }}"),
    "spec.evaluation": ("evaluation__splits", {"diag": 0.2, "sel": 0.6, "test": 0.2}),
    "spec.objective": ("objective__lambda", 0.5),
    "spec.training.seed": ("training__seed", 8),
    "spec.training.repeats": ("training__repeats", 2),
    "spec.memory": ("memory__k", 4),
    "spec.serving.engine": ("serving__engine", "transformers"),
    "spec.storage": ("storage__endpoint", "http://elsewhere"),
}


def test_every_fixed_field_is_always_there() -> None:
    schema = render_schema("CurationEvolution")
    for path in FIXED:
        node = schema
        for name in path.split("."):
            assert name in node.get("required", ()) or "default" in node["properties"][name], path
            node = node["properties"][name]
    assert set(FIXED_CHANGES) == set(FIXED)


@pytest.mark.parametrize("path", FIXED)
def test_a_fixed_field_refuses_a_change_and_says_what_to_do(path: str) -> None:
    name, value = FIXED_CHANGES[path]
    old, new = evolution(), evolution(**{name: value})
    message = f"{path}: {path} can't change: make another CurationEvolution"
    assert refusals("CurationEvolution", new, old) == [message]
    specs = [CurationEvolution.model_validate(raw).spec for raw in (old, new)]
    assert changed_fixed(specs[0], specs[1]) == (path,)


def test_a_fixed_field_may_be_written_out_with_its_default() -> None:
    old = read(SAMPLES / "valid" / "minimal.yaml")
    new = copy.deepcopy(old)
    new["spec"] |= {"objective": {"lambda": 0.3, "referenceTurns": None}, "memory": {"k": 3}, "serving": {}}
    assert refusals("CurationEvolution", new, old) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("suspend", False),
        ("stop", "Now"),
        ("rounds", {"max": 40}),
        ("budget", {"gpuHours": 1000}),
        ("proposer", {"type": "rules"}),
        ("training__sft__args", {"per_device_train_batch_size": 1}),
        ("training__sft__lora", {"enabled": False}),
        ("serving__args", []),
        ("deadlines", {}),
        ("templates", {}),
    ],
)
def test_the_rest_may_change(name: str, value: object) -> None:
    assert refusals("CurationEvolution", evolution(**{name: value}), evolution()) == []


def version(**changes: object) -> JsonObject:
    spec = VersionSpec.model_validate(
        {
            "evolutionUID": "6f1c2f0e-1d1a-4a57-9d0c-6a4f6c1f0c55",
            "number": 1,
            "parent": 0,
            "focus": "Effectiveness",
            "policyDigest": "sha256:" + "0" * 64,
            "policyKey": "evolutions/u/versions/1/propose/a1/policy.py",
            "corpusKey": "evolutions/u/ingest/a1/manifest.json",
            "corpusDigest": "sha256:" + "1" * 64,
            "evolutionSpec": evolution()["spec"],
        }
        | changes
    )
    wire = PolicyVersion(metadata=ObjectMeta(name="airline-v1"), spec=spec).to_wire()
    return {key: wire[key] for key in ("apiVersion", "kind", "metadata", "spec", "status")}


def test_a_version_is_accepted_and_stored_as_it_was_written() -> None:
    raw = version()
    assert refusals("PolicyVersion", raw) == []
    assert admitted("PolicyVersion", raw) == raw


def test_the_spec_of_a_version_cannot_change() -> None:
    assert refusals("PolicyVersion", version(), version()) == []
    assert refusals("PolicyVersion", version(parent=None), version()) == [
        "spec: the spec of a PolicyVersion can't change"
    ]
    deep = version(evolutionSpec=evolution(training__sft__maxSteps=9)["spec"])
    assert refusals("PolicyVersion", deep, version()) == ["spec: the spec of a PolicyVersion can't change"]
