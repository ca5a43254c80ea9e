"""What `spec.templates` may change of a rendered pod, and what it may not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from curateevo.api.base import JsonObject
from curateevo.api.errors import SpecInvalid
from curateevo.api.spec import EvolutionSpec
from curateevo.policy import quantity
from curateevo_operator.render import labels
from curateevo_operator.render.merge import DIRECTIVE, merge_pod_template
from curateevo_operator.render.pods import REQUEST_MOUNT

POLICY, POLICY_AGAIN = "policy", "policy-again"
"""Names of the untrusted containers."""
POLICIES = frozenset({POLICY, POLICY_AGAIN})
TOP = frozenset({"metadata", "spec"})
METADATA = frozenset({"labels", "annotations"})
POLICY_MAY = frozenset({"name", "image", "imagePullPolicy", "resources"})
BESIDE_POLICY_MAY_NOT = {
    "hostNetwork": "the policy would be on the node's network",
    "hostPID": "the policy would see the node's processes",
    "hostIPC": "the policy would share the node's memory segments",
    "shareProcessNamespace": "the policy would see the trusted containers' processes",
    "automountServiceAccountToken": "the policy would hold a token",
    "enableServiceLinks": "the policy's environment is to be empty",
    "runtimeClassName": "set spec.sandbox.runtimeClassName instead",
}
UNITS = quantity.UNITS | {"n": 1e-9, "u": 1e-6, "": 1.0, "P": 1e15, "E": 1e18, "Pi": 2.0**50, "Ei": 2.0**60}
"""Of resources, which may be written in more of them than a sandbox's limits."""
CONTAINERS = ("initContainers", "containers")


def apply_template(rendered: JsonObject, spec: EvolutionSpec, key: str) -> JsonObject:
    """A rendered pod template with the user's of `spec.templates` merged over it.

    Raises SpecInvalid, with the field's path, for what can't be merged or may not be changed.
    """
    template = next((value for name, value in spec.templates.items() if name == key), None)
    if not template:
        return rendered
    path = f"spec.templates.{key}"
    template = without_nulls(template)
    _check_outline(template, path)
    pod = template.get("spec", {})
    _check_metadata(template.get("metadata", {}), f"{path}.metadata")
    _check_pod(pod, f"{path}.spec", protected_volumes(rendered))
    if POLICIES & _names(rendered["spec"]):
        _check_beside_policy(pod, f"{path}.spec")
    merged = merge_pod_template(rendered, template, path)
    _fit_resources(merged["spec"], pod)
    return merged


def without_nulls(value: Any) -> Any:
    """Maps without the keys that are null: they mean nothing."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def gpus_of(pod: JsonObject) -> int:
    """GPUs that a pod's containers ask for, of any maker."""
    limits = (c.get("resources", {}).get("limits") or {} for c in pod["containers"])
    found = (
        int(str(n)) for limit in limits for name, n in limit.items() if name.endswith("/gpu") and str(n).isdecimal()
    )
    return sum(found)


def protected_volumes(rendered: JsonObject) -> frozenset[str]:
    """Volumes that carry the request, or what passes between a policy and the trusted steps."""
    names = {REQUEST_MOUNT.name}
    for container in rendered["spec"].get("initContainers", ()):
        if container["name"] in POLICIES:
            names |= {mount["name"] for mount in container["volumeMounts"]} | {"trusted"}
    return frozenset(names)


def _check_outline(template: JsonObject, path: str) -> None:
    for key, value in template.items():
        if key not in TOP:
            raise SpecInvalid(f"{path}.{key}: a pod template holds metadata and spec")
        if not isinstance(value, dict):
            raise SpecInvalid(f"{path}.{key}: must be a map")
        if DIRECTIVE in value:
            raise SpecInvalid(f"{path}.{key}.{DIRECTIVE}: can't be replaced as a whole")


def _check_metadata(metadata: JsonObject, path: str) -> None:
    for key, value in metadata.items():
        if key not in METADATA:
            raise SpecInvalid(f"{path}.{key}: only labels and annotations can be given")
        if not isinstance(value, dict):
            raise SpecInvalid(f"{path}.{key}: must be a map")
        for name in value:
            if name.startswith((labels.PREFIX, "$")) or name in labels.OWN:
                raise SpecInvalid(f"{path}.{key}[{name}]: belongs to the operator")


def _check_pod(pod: JsonObject, path: str, protected: frozenset[str]) -> None:
    if pod.get("restartPolicy", "Never") != "Never":
        raise SpecInvalid(f"{path}.restartPolicy: must stay Never: the operator counts attempts")
    for key in ("containers", "volumes", "initContainers"):
        if key in pod and not isinstance(pod[key], list):
            raise SpecInvalid(f"{path}.{key}: must be a list")
    for number, volume in enumerate(pod.get("volumes") or ()):
        if isinstance(volume, dict) and volume.get("name") in protected:
            raise SpecInvalid(f"{path}.volumes[{number}]: {volume['name']} belongs to the operator")
    for key, number, container in _containers(pod):
        mounts, inside = container.get("volumeMounts", []), f"{path}.{key}[{number}].volumeMounts"
        if not isinstance(mounts, list):
            raise SpecInvalid(f"{inside}: must be a list")
        for place, mount in enumerate(mounts):
            if isinstance(mount, dict) and str(mount.get("mountPath")).startswith(REQUEST_MOUNT.path):
                raise SpecInvalid(f"{inside}[{place}]: {REQUEST_MOUNT.path} holds the request")


def _check_beside_policy(pod: JsonObject, path: str) -> None:
    """What would open the pod in which untrusted code runs."""
    for key, reason in BESIDE_POLICY_MAY_NOT.items():
        if key in pod:
            raise SpecInvalid(f"{path}.{key}: can't be set for curate: {reason}")
    context = pod.get("securityContext", {})
    if not isinstance(context, dict):
        raise SpecInvalid(f"{path}.securityContext: must be a map")
    for key in ("runAsNonRoot", "seccompProfile", "windowsOptions", "sysctls", "appArmorProfile"):
        if key in context:
            raise SpecInvalid(f"{path}.securityContext.{key}: can't be changed where a policy runs")
    for key, number, container in _containers(pod):
        if (name := container.get("name")) not in POLICIES:
            continue
        if key != "initContainers":
            raise SpecInvalid(f"{path}.{key}[{number}].name: {name} is the name of the policy's container")
        for field in container:
            if field not in POLICY_MAY:
                raise SpecInvalid(f"{path}.{key}[{number}].{field}: can't be changed: untrusted code runs there")


def _containers(pod: JsonObject) -> Iterator[tuple[str, int, JsonObject]]:
    for key in CONTAINERS:
        for number, container in enumerate(pod.get(key) or ()):
            if isinstance(container, dict):
                yield key, number, container


def _names(pod: JsonObject) -> set[str]:
    return {container["name"] for _, _, container in _containers(pod)}


def _fit_resources(merged: JsonObject, template: JsonObject) -> None:
    """Where a template gives only a request or only a limit, move the other, our default, out of its way."""
    given = {c.get("name"): c.get("resources") or {} for _, _, c in _containers(template)}
    for _, _, container in _containers(merged):
        theirs = given.get(container["name"])
        resources = container.get("resources") or {}
        if theirs and isinstance(resources.get("requests"), dict) and isinstance(resources.get("limits"), dict):
            _fit(resources["requests"], resources["limits"], theirs)


def _fit(requests: JsonObject, limits: JsonObject, theirs: JsonObject) -> None:
    for name in set(requests) & set(limits):
        wanted, most = _amount(requests[name]), _amount(limits[name])
        if wanted is None or most is None or wanted <= most:
            continue
        if name not in (theirs.get("limits") or {}):
            limits[name] = requests[name]
        elif name not in (theirs.get("requests") or {}):
            requests[name] = limits[name]


def _amount(value: Any) -> float | None:
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(value))
    if found is None or found[2] not in UNITS:
        return None
    try:
        return float(found[1]) * UNITS[found[2]]
    except ValueError:
        return None
