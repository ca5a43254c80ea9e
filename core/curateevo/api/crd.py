"""The two CustomResourceDefinitions, from the models: structural schemas, defaults, CEL rules, printer columns.

What the API server reads differs from pydantic's JSON schema, and in places that matter:

- References are written out, and a schema is plain: no `$ref`, `title`, `const`, `anyOf`, `propertyNames`.
- Nothing is `nullable`: null means absent. `kubectl apply` drops it before it sends, the server where there is a
  default.
- Defaults of single fields, and `{}` for a section whose fields all have one: the server fills in the rest, so that
  `kubectl get -o yaml` shows the spec in force, rules need no `has()` for sections, and a running evolution keeps its
  numbers when a later release has other defaults. A version's pinned spec and every status have no defaults: the
  server is to add nothing to what the operator wrote.
- Unknown fields: the server prunes them, and `kubectl apply` refuses them by its strict field validation.
"""

from __future__ import annotations

from typing import Any

import yaml

from curateevo.api.base import JsonObject, Model
from curateevo.api.evolution import CurationEvolution, PolicyVersion
from curateevo.api.rules import FIXED, RULES

GROUP = "curateevo.io"
VERSION = "v1alpha1"
KINDS: dict[str, type[Model]] = {"CurationEvolution": CurationEvolution, "PolicyVersion": PolicyVersion}
NAMES = {
    "CurationEvolution": {"plural": "curationevolutions", "singular": "curationevolution", "shortNames": ["ce"]},
    "PolicyVersion": {"plural": "policyversions", "singular": "policyversion", "shortNames": ["pver"]},
}
COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "CurationEvolution": (
        ("Phase", "string", ".status.phase"),
        ("Round", "integer", ".status.round"),
        ("Of", "integer", ".spec.rounds.max"),
        ("Champion", "integer", ".status.champion.number"),
        ("P", "number", ".status.champion.p"),
        ("J", "number", ".status.champion.j"),
        ("Reason", "string", ".status.reason"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ),
    "PolicyVersion": (
        ("Number", "integer", ".spec.number"),
        ("Parent", "integer", ".spec.parent"),
        ("Focus", "string", ".spec.focus"),
        ("P", "number", ".status.measurement.p"),
        ("C", "number", ".status.measurement.c"),
        ("J", "number", ".status.measurement.j"),
        ("Verdict", "string", ".status.verdict"),
        ("Reason", "string", ".status.reason"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ),
}
HEADER = "# Made by `make crds` from core/curateevo/api: change the models, not this file.\n"
KEPT = (
    "type",
    "format",
    "description",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "minimum",
    "maximum",
)
"""Keywords that mean the same on both sides."""
INT32_MAX = 2**31 - 1


def crd_yaml(kind: str) -> str:
    """The file in crds/. Raises KeyError for a kind that is not ours."""
    return HEADER + yaml.dump(render_crd(kind), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """YAML without anchors: equal parts are written out."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def render_crd(kind: str) -> JsonObject:
    """The CustomResourceDefinition of `kind`. Raises KeyError for a kind that is not ours."""
    names = NAMES[kind]
    columns = [{"name": name, "type": type_, "jsonPath": path} for name, type_, path in COLUMNS[kind]]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"kind": kind, "listKind": f"{kind}List", **names, "categories": ["curateevo"]},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": columns,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": render_schema(kind)},
                }
            ],
        },
    }


def render_schema(kind: str) -> JsonObject:
    """The structural schema of `kind`, rules and all."""
    raw = KINDS[kind].model_json_schema(by_alias=True, mode="validation")
    defs, fields = raw["$defs"], raw["properties"]
    spec = _structural(fields["spec"], defs, defaults=kind == "CurationEvolution")
    spec["x-kubernetes-validations"] = _evolution_rules() if kind == "CurationEvolution" else [_immutable(kind)]
    return {
        "type": "object",
        "description": raw["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": _name(defs)}},
            "spec": spec,
            "status": _structural(fields["status"], defs, defaults=False),
        },
    }


def _name(defs: JsonObject) -> JsonObject:
    """Names of children and values of labels are made of an object's name: it is a DNS label."""
    name = defs["ObjectMeta"]["properties"]["name"]
    return {"type": "string", "maxLength": name["maxLength"], "pattern": name["pattern"]}


def _evolution_rules() -> list[JsonObject]:
    rules = [_rule(r.cel, r.message, r.path) for r in RULES]
    for path in FIXED:
        field = path.removeprefix("spec.")
        message = f"{path} can't change: make another CurationEvolution"
        rules.append(_rule(f"self.{field} == oldSelf.{field}", message, path))
    return rules


def _immutable(kind: str) -> JsonObject:
    return {"rule": "self == oldSelf", "message": f"the spec of a {kind} can't change"}


def _rule(cel: str, message: str, path: str) -> JsonObject:
    return {"rule": cel, "message": message, "fieldPath": path.removeprefix("spec")}


def _structural(node: JsonObject, defs: JsonObject, *, defaults: bool) -> JsonObject:
    """One node of pydantic's schema, with all below it, as the API server wants it."""
    node = _flat(node, defs)
    out: JsonObject = {key: node[key] for key in KEPT if key in node}
    if "const" in node:
        out["enum"] = [node["const"]]
    out |= _numbers(node)
    if defaults and node.get("default") is not None:
        out["default"] = _minimal(node["default"], node, defs)
    if "items" in node:
        out["items"] = _structural(node["items"], defs, defaults=defaults)
        out |= _list_type(out["items"])
    if "properties" in node:
        out["properties"] = {n: _structural(p, defs, defaults=defaults) for n, p in node["properties"].items()}
        if node.get("required"):
            out["required"] = node["required"]
    return out | _mapping(node, defs, defaults=defaults)


def _flat(node: JsonObject, defs: JsonObject) -> JsonObject:
    """`node` without a reference and without a choice of null; what stands beside them wins."""
    if "$ref" in node:
        target = defs[node["$ref"].rpartition("/")[2]]
        return _flat({**target, **{k: v for k, v in node.items() if k != "$ref"}}, defs)
    if "anyOf" in node:
        (choice,) = (c for c in node["anyOf"] if c != {"type": "null"})
        return _flat({**choice, **{k: v for k, v in node.items() if k != "anyOf"}}, defs)
    return node


def _numbers(node: JsonObject) -> JsonObject:
    """Formats, and open bounds in the form of OpenAPI 3.0: a flag beside the bound."""
    out: JsonObject = {}
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if flag in node:
            out |= {bound: node[flag], flag: True}
    if node.get("type") == "number":
        out["format"] = "double"
    if node.get("type") == "integer":
        small = node.get("maximum", INT32_MAX + 1) <= INT32_MAX and node.get("minimum", -INT32_MAX - 1) >= -INT32_MAX
        out["format"] = "int32" if small else "int64"
    return out


def _minimal(default: Any, node: JsonObject, defs: JsonObject) -> Any:
    """A default without what the defaults of the fields below say anyway."""
    if not isinstance(default, dict) or "properties" not in node:
        return default
    below = {name: _flat(p, defs) for name, p in node["properties"].items()}
    kept = {k: v for k, v in default.items() if below[k].get("default") != v and not _empty_mapping(v, below[k])}
    return {k: _minimal(v, below[k], defs) for k, v in kept.items()}


def _empty_mapping(value: Any, node: JsonObject) -> bool:
    return value == {} and "additionalProperties" in node and "properties" not in node


def _list_type(items: JsonObject) -> JsonObject:
    """Conditions are a map by type, as everywhere in Kubernetes: two writers don't overwrite each other."""
    if "lastTransitionTime" not in items.get("properties", {}):
        return {}
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


def _mapping(node: JsonObject, defs: JsonObject, *, defaults: bool) -> JsonObject:
    """Mappings with keys that the model does not name, or names by an enum."""
    values = node.get("additionalProperties", False)
    if values is False:
        return {}
    if values is True:
        return {"x-kubernetes-preserve-unknown-fields": True}
    one = _structural(values, defs, defaults=defaults)
    if "propertyNames" in node:
        keys = _flat(node["propertyNames"], defs)["enum"]
        return {"properties": {key: {"description": f"For {key}: {_sentence(node)}", **one} for key in keys}}
    return {"additionalProperties": one}


def _sentence(node: JsonObject) -> str:
    """The first sentence of a description, to go on within another."""
    text = node["description"].partition(". ")[0].rstrip(".")
    return f"{text[0].lower()}{text[1:]}."
