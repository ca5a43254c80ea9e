"""A run's folder: objects as JSON files, replaced atomically, and a lock so that one loop works on it at a time."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from curateevo.api.base import Model
from curateevo.api.errors import Conflict, ContractBroken, SpecInvalid
from curateevo.api.evolution import CurationEvolution, ObjectMeta, PolicyVersion
from curateevo.api.rules import changed_fixed
from curateevo.api.spec import EvolutionSpec

EVOLUTION, VERSIONS, JOBS, STORE, LOCK = "evolution.json", "versions", "jobs", "store", ".lock"
M = TypeVar("M", bound=Model)


class RunFolder:
    """The objects of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run. Raises Conflict when another process does."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / LOCK).open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Conflict(
                    f"{self.root}: another `curateevo run` works on this run", "wait for it, or stop it"
                ) from error
            yield

    def exists(self) -> bool:
        return (self.root / EVOLUTION).is_file()

    def evolution(self) -> CurationEvolution:
        """The evolution. Raises ContractBroken when this folder is no run."""
        return self._read(self.root / EVOLUTION, CurationEvolution)

    def save_evolution(self, evolution: CurationEvolution) -> None:
        _write(self.root / EVOLUTION, evolution)

    def versions(self) -> dict[int, PolicyVersion]:
        """All versions by number."""
        found = sorted((self.root / VERSIONS).glob("*.json"))
        versions = (self._read(path, PolicyVersion) for path in found)
        return {v.spec.number: v for v in versions}

    def save_version(self, version: PolicyVersion) -> None:
        _write(self.root / VERSIONS / f"{version.spec.number:05d}.json", version)

    def job_folder(self, name: str) -> Path:
        return self.root / JOBS / name

    def _read(self, path: Path, kind: type[M]) -> M:
        try:
            return kind.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise ContractBroken(
                f"{self.root}: no run here", "start one with `curateevo run FILE --dir DIR`"
            ) from error
        except ValidationError as error:
            raise ContractBroken(f"{path}: not readable: {error.errors()[0]['msg']}") from error


def start_or_resume(folder: RunFolder, wanted: CurationEvolution) -> CurationEvolution:
    """The run's evolution under the spec that is wanted now. Raises SpecInvalid when a fixed section has changed."""
    if not folder.exists():
        meta = wanted.metadata.model_copy(update={"uid": str(uuid.uuid4()), "generation": 1})
        fresh = CurationEvolution(metadata=meta, spec=wanted.spec)
        folder.save_evolution(fresh)
        return fresh
    current = folder.evolution()
    if current.spec == wanted.spec:
        return current
    changed = changed_fixed(current.spec, wanted.spec)
    if changed:
        raise SpecInvalid(
            f"{changed[0]}: can't change within a run ({folder.root})",
            "use another --dir for another experiment",
        )
    meta = current.metadata.model_copy(update={"generation": current.metadata.generation + 1})
    updated = current.model_copy(update={"spec": wanted.spec, "metadata": meta})
    folder.save_evolution(updated)
    return updated


def resolve_paths(spec: EvolutionSpec, yaml_folder: Path, run_folder: Path) -> EvolutionSpec:
    """Relative corpus paths and models from the YAML's folder, `file://./` storage from the run's folder."""
    sources = tuple(s.model_copy(update={"uri": _absolute(s.uri, yaml_folder)}) for s in spec.corpus.sources)
    storage = spec.storage
    if storage.uri.startswith("file://./"):
        path = (run_folder / storage.uri.removeprefix("file://./")).resolve()
        storage = storage.model_copy(update={"uri": path.as_uri()})
    model = spec.model
    if model.base.startswith("file://./"):
        path = (yaml_folder / model.base.removeprefix("file://./")).resolve()
        model = model.model_copy(update={"base": path.as_uri()})
    proposer = spec.proposer
    if proposer.replay is not None:
        proposer = proposer.model_copy(update={"replay": _absolute(proposer.replay, yaml_folder)})
    initial = spec.policy.initial
    if initial.uri is not None:
        initial = initial.model_copy(update={"uri": _absolute(initial.uri, yaml_folder)})
    return spec.model_copy(
        update={
            "corpus": spec.corpus.model_copy(update={"sources": sources}),
            "storage": storage,
            "model": model,
            "proposer": proposer,
            "policy": spec.policy.model_copy(update={"initial": initial}),
        }
    )


def _absolute(uri: str, folder: Path) -> str:
    if "://" in uri and not uri.startswith("file://./"):
        return uri
    path = Path(uri.removeprefix("file://./"))
    return str(path if path.is_absolute() else folder.resolve() / path)


def _write(path: Path, model: Model) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as out:
        json.dump(model.to_wire(), out, ensure_ascii=False, indent=1)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(path)


def object_meta(name: str, labels: dict[str, str]) -> ObjectMeta:
    """Metadata of a child object."""
    return ObjectMeta(name=name, labels=labels, uid=str(uuid.uuid4()))
