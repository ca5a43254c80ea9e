"""Where checkpoints live: in the store's own directory on one machine, in objects of the store elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from curateevo.api.base import canonical_json
from curateevo.api.errors import ArtifactCorrupt
from curateevo.api.stage import FileRef
from curateevo.store.local import LocalStore
from curateevo.store.protocol import Store
from curateevo.store.verify import sha256_of

INDEX = "index.json"
FILES = "files"
Stored: TypeAlias = dict[str, tuple[int, FileRef]]
"""By path: when the file was last written (ns), and its object."""


@dataclass(frozen=True, slots=True)
class FolderCheckpoints:
    """The folder is durable by itself."""

    folder: Path

    def save(self) -> None:
        """Nothing to copy."""

    def discard(self) -> None:
        """They stay, for whoever wants to look."""


@dataclass(slots=True)
class StoredCheckpoints:
    """A local folder, copied to the store at each save: new files by their digest, then an index of all of them.

    A save that was cut off leaves the index of the one before, and objects that a later save finds there.
    """

    folder: Path
    store: Store
    prefix: str
    _stored: Stored = field(default_factory=dict)
    _tag: str | None = None

    def save(self) -> None:
        """Make the store hold what the folder holds. Raises Conflict when another attempt has saved meanwhile."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        stored = {path.relative_to(self.folder).as_posix(): self._put(path) for path in files}
        index = {name: ref.to_wire() for name, (_, ref) in stored.items()}
        self._tag = self.store.swap(f"{self.prefix}/{INDEX}", canonical_json(index).encode(), self._tag)
        for key in _keys(self._stored) - _keys(stored):
            self.store.delete(key)
        self._stored = stored

    def discard(self) -> None:
        """Let go of all that was saved: the artifact is there."""
        self.store.delete(f"{self.prefix}/{FILES}/")
        self.store.delete(f"{self.prefix}/{INDEX}")

    def restore(self) -> None:
        """Bring what was saved. A lost or torn file is left out: a checkpoint that misses one counts for nothing."""
        if (index := self.store.read_tagged(f"{self.prefix}/{INDEX}")) is None:
            return
        self._tag = index.tag
        for name, wire in json.loads(index.data).items():
            ref, path = FileRef.model_validate(wire), self.folder / name
            try:
                self.store.fetch(ref, path)
            except ArtifactCorrupt:
                continue
            self._stored[name] = path.stat().st_mtime_ns, ref

    def _put(self, path: Path) -> tuple[int, FileRef]:
        written = path.stat().st_mtime_ns
        known = self._stored.get(path.relative_to(self.folder).as_posix())
        if known is not None and known[0] == written:
            return known
        return written, self.store.put(f"{self.prefix}/{FILES}/{sha256_of(path)}", path)


def _keys(stored: Stored) -> set[str]:
    return {ref.key for _, ref in stored.values()}


def open_checkpoints(store: Store, prefix: str, scratch: Path) -> FolderCheckpoints | StoredCheckpoints:
    """The checkpoints of one stage and version; what earlier attempts saved is there."""
    if isinstance(store, LocalStore):
        folder = store.root / prefix
        folder.mkdir(parents=True, exist_ok=True)
        return FolderCheckpoints(folder)
    folder = scratch / "checkpoints"
    folder.mkdir()
    stored = StoredCheckpoints(folder, store, prefix)
    stored.restore()
    return stored
