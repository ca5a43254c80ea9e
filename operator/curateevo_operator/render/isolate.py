"""`sandbox.isolation: Pod`: the steps of a curate pod as three Jobs over a claim, the policy's without any network.

The pod is rendered and merged with its template as one, then parted: what a template may do is the same for both. The
steps start together and wait for each other's marks in the claim. The one that publishes lives until the end, so the
others follow it to its node: a claim of the usual kind is mounted on one node at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from curateevo.api.base import JsonObject
from curateevo.evolution.names import short_name
from curateevo_operator.render import labels
from curateevo_operator.render.attempt import Attempt
from curateevo_operator.render.templates import CONTAINERS, POLICY

FETCH = "fetch"
NODE = "kubernetes.io/hostname"
NOT_FOR_POLICIES = ("serviceAccountName", "serviceAccount")
"""A cloud may give whoever runs under an account its identity."""


def claim_name(attempt: Attempt) -> str:
    return short_name(f"{attempt.name}-work")


def render_claim(attempt: Attempt, size_bytes: int) -> JsonObject:
    """What the steps share. Whoever ends the attempt removes it."""
    spec: JsonObject = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{-(-size_bytes >> 20)}Mi"}},
    }
    if attempt.settings.work_storage_class:
        spec["storageClassName"] = attempt.settings.work_storage_class
    metadata = attempt.metadata(claim_name(attempt), "curate", labels.STEP)
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def part(attempt: Attempt, whole: JsonObject) -> tuple[JsonObject, JsonObject, JsonObject]:
    """A curate Job as three: fetch, the policy, and the main one, which publishes."""
    pod = whole["spec"]["template"]["spec"]
    steps = {c["name"]: c for c in pod["initContainers"]}
    prepare = [c for name, c in steps.items() if name not in (FETCH, POLICY)]
    fetch = _step(attempt, whole, FETCH, "curate", [steps[FETCH]], prepare)
    policy = _step(attempt, whole, POLICY, POLICY, [steps[POLICY]], [])
    for field in NOT_FOR_POLICIES:
        policy["spec"]["template"]["spec"].pop(field, None)
    del policy["spec"]["template"]["metadata"]["annotations"][labels.REQUEST]
    main = _with_pod(whole, whole["metadata"], whole["spec"]["template"]["metadata"], _pod(pod, pod["containers"], []))
    return fetch, policy, main


def _step(
    attempt: Attempt,
    whole: JsonObject,
    step: str,
    component: str,
    containers: list[JsonObject],
    init: list[JsonObject],
) -> JsonObject:
    """A Job beside the main one."""
    mine = {labels.COMPONENT: component, labels.ROLE: labels.STEP}
    metadata, inner = whole["metadata"], whole["spec"]["template"]["metadata"]
    metadata = {
        **metadata,
        "name": short_name(f"{attempt.name}-{step}"),
        "labels": metadata["labels"] | mine,
    }
    inner = {"labels": inner["labels"] | mine, "annotations": dict(inner["annotations"])}
    pod = _pod(whole["spec"]["template"]["spec"], containers, init)
    pod["affinity"] = _beside_main(attempt, pod.get("affinity") or {})
    return _with_pod(whole, metadata, inner, pod)


def _with_pod(whole: JsonObject, metadata: JsonObject, inner: JsonObject, pod: JsonObject) -> JsonObject:
    return {**whole, "metadata": metadata, "spec": {**whole["spec"], "template": {"metadata": inner, "spec": pod}}}


def _pod(whole: JsonObject, containers: list[JsonObject], init: list[JsonObject]) -> JsonObject:
    """The pod with some of its containers, and the volumes that these mount."""
    rest = {key: value for key, value in whole.items() if key not in (*CONTAINERS, "volumes")}
    steps = {"initContainers": init} if init else {}
    return {**rest, **steps, "containers": containers, "volumes": _mounted(whole, [*init, *containers])}


def _mounted(whole: JsonObject, containers: Iterable[JsonObject]) -> list[JsonObject]:
    names = {mount["name"] for container in containers for mount in container.get("volumeMounts") or ()}
    return [volume for volume in whole["volumes"] if volume["name"] in names]


def _beside_main(attempt: Attempt, affinity: JsonObject) -> JsonObject:
    """On the node of the main Job's pod, beside what a template asks for."""
    main = {labels.EVOLUTION_UID: attempt.parent.uid, labels.JOB: attempt.name, labels.ROLE: labels.MAIN}
    term = {"labelSelector": {"matchLabels": main}, "topologyKey": NODE}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    near = affinity.get("podAffinity") or {}
    return {**affinity, "podAffinity": {**near, required: [*(near.get(required) or []), term]}}
