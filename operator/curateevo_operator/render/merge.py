"""Strategic merge of a pod template: maps by key, lists of named things by their key, other lists replaced.

As Kubernetes merges patches, with these differences: tolerations and envFrom are added, init containers of the template
that are new run before the rendered ones, and null means nothing, since `kubectl apply` drops it. To remove keys of a
map write `$patch: replace` into it, as for Kubernetes; there is no other directive.
"""

from __future__ import annotations

from typing import Any

from curateevo.api.base import JsonObject
from curateevo.api.errors import SpecInvalid

DIRECTIVE, REPLACE = "$patch", "replace"
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "claims": "name",
    "resizePolicy": "resourceName",
}
"""By field: what tells the elements of a list apart."""
ADDED = frozenset({"tolerations", "envFrom"})
FIRST = frozenset({"initContainers"})
"""Lists whose new elements come before those that are there."""
ONE_OF = frozenset({"env", "volumes"})
"""Lists whose elements hold one of several sources: an element with another source replaces the whole one."""


def merge_pod_template(rendered: JsonObject, template: JsonObject, path: str) -> JsonObject:
    """`template` over `rendered`; both stay as they are. `path` is where the template stands, for messages.

    Raises SpecInvalid for a value of the wrong kind.
    """
    return _merge_map(rendered, template, path)


def _merge_map(base: JsonObject, over: JsonObject, path: str) -> JsonObject:
    if over.get(DIRECTIVE) == REPLACE:
        base = {}
    out = dict(base)
    for key, value in over.items():
        if key.startswith("$") and (key, value) != (DIRECTIVE, REPLACE):
            raise SpecInvalid(f"{path}.{key}: {value!r} is not supported", f"there is only {DIRECTIVE}: {REPLACE}")
        if key != DIRECTIVE and value is not None:
            out[key] = _merge_value(key, base.get(key), value, f"{path}.{key}")
    return out


def _merge_value(key: str, base: Any, value: Any, path: str) -> Any:
    if isinstance(base, dict) and not isinstance(value, dict):
        raise SpecInvalid(f"{path}: must be a map")
    if isinstance(base, list) and not isinstance(value, list):
        raise SpecInvalid(f"{path}: must be a list")
    if isinstance(value, dict):
        return _merge_map(base or {}, value, path)
    if not isinstance(value, list):
        return value
    if key in ADDED:
        return [*(base or []), *(v for v in value if v not in (base or []))]
    if key in MERGE_KEYS:
        return _merge_list(key, base or [], value, path)
    return [_merge_map({}, v, f"{path}[{n}]") if isinstance(v, dict) else v for n, v in enumerate(value)]


def _merge_list(key: str, base: list[JsonObject], over: list[Any], path: str) -> list[JsonObject]:
    name = MERGE_KEYS[key]
    merged = {element[name]: element for element in base}
    new: dict[Any, JsonObject] = {}
    for number, element in enumerate(over):
        here = f"{path}[{number}]"
        if not isinstance(element, dict) or not element.get(name):
            raise SpecInvalid(f"{here}: each element needs its {name}")
        if DIRECTIVE in element:
            raise SpecInvalid(f"{here}.{DIRECTIVE}: an element can't be replaced or removed as a whole")
        known = element[name] in merged
        start = merged.get(element[name], {}) if _same_source(key, name, merged.get(element[name], {}), element) else {}
        (merged if known else new)[element[name]] = _merge_map(start, element, here)
    return [*new.values(), *merged.values()] if key in FIRST else [*merged.values(), *new.values()]


def _same_source(key: str, name: str, base: JsonObject, over: JsonObject) -> bool:
    return key not in ONE_OF or (set(over) - {name}) <= (set(base) - {name})
