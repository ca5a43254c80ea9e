"""Objects as a cluster has them, as our models: of their metadata only what we use."""

from __future__ import annotations

from pydantic import ValidationError

from curateevo.api.base import JsonObject
from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo.api.evolution import CurationEvolution, ObjectMeta, PolicyVersion


def read_evolution(live: JsonObject) -> CurationEvolution:
    """A CurationEvolution. Raises SpecInvalid with the field's path."""
    try:
        return CurationEvolution(metadata=_meta(live), spec=live.get("spec") or {}, status=live.get("status") or {})
    except ValidationError as error:
        raise SpecInvalid(_first(error)) from error


def read_version(live: JsonObject) -> PolicyVersion:
    """A PolicyVersion. Raises ContractBroken."""
    try:
        return PolicyVersion(metadata=_meta(live), spec=live["spec"], status=live.get("status") or {})
    except ValidationError as error:
        text = f"PolicyVersion {live['metadata']['name']}: {_first(error)}"
        raise ContractBroken(text, "was it made by another release?") from error


def _first(error: ValidationError) -> str:
    """The first problem, with the field's path."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _meta(live: JsonObject) -> ObjectMeta:
    meta = live["metadata"]
    return ObjectMeta(
        name=meta["name"],
        namespace=meta["namespace"],
        labels=meta.get("labels") or {},
        uid=meta["uid"],
        generation=meta.get("generation", 1),
    )
