"""A run of a cluster as a run's folder: what `kubectl get ce,pver -o json` printed, for the report and the lineage."""

from __future__ import annotations

import json

from curateevo.api.base import JsonObject
from curateevo.api.errors import SpecInvalid
from curateevo.api.evolution import CurationEvolution
from curateevo.api.live import read_evolution, read_version
from curateevo.local.objects import RunFolder

HINT = "kubectl get ce,pver -o json"


def pull(text: str, name: str | None, endpoint: str | None, folder: RunFolder) -> CurationEvolution:
    """Write the evolution, and its versions, into `folder`; the artifacts stay in the store. Returns the evolution.

    `name`: which one, where there are several; `endpoint`: the store's address from here, where it differs from that
    within the cluster. Raises SpecInvalid.
    """
    objects = _objects(text)
    found = [o for o in objects if o.get("kind") == "CurationEvolution" and name in (None, o["metadata"]["name"])]
    if len(found) != 1:
        names = ", ".join(o["metadata"]["name"] for o in found) or "none"
        raise SpecInvalid(f"expected one CurationEvolution, found {len(found)} ({names})", f"name one; {HINT}")
    evolution = read_evolution(found[0])
    if endpoint is not None:
        storage = evolution.spec.storage.model_copy(update={"endpoint": endpoint})
        evolution = evolution.model_copy(update={"spec": evolution.spec.model_copy(update={"storage": storage})})
    folder.save_evolution(evolution)
    for live in objects:
        if live.get("kind") == "PolicyVersion" and live["spec"].get("evolutionUID") == evolution.metadata.uid:
            folder.save_version(read_version(live))
    return evolution


def _objects(text: str) -> list[JsonObject]:
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise SpecInvalid(f"not JSON: {error}", HINT) from error
    if not isinstance(raw, dict):
        raise SpecInvalid("no Kubernetes object", HINT)
    return list(raw["items"]) if raw.get("kind", "").endswith("List") else [raw]
