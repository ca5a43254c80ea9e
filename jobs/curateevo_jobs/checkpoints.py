"""Where checkpoints live: in the store's own directory on one machine, in objects of the store elsewhere."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from curateevo.api.errors import ContractBroken
from curateevo.store.local import LocalStore
from curateevo.store.protocol import Store

ARCHIVE = "checkpoints.tar"


@dataclass(frozen=True, slots=True)
class FolderCheckpoints:
    """The folder is durable by itself."""

    folder: Path

    def save(self) -> None:
        """Nothing to copy."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoints:
    """A local folder, copied to one replaceable object of the store after each save."""

    folder: Path
    store: Store
    key: str

    def save(self) -> None:
        """Replace the stored archive. Raises Conflict when another attempt writes at the same time."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(self.folder, arcname=".")
        before = self.store.read_tagged(self.key)
        self.store.swap(self.key, buffer.getvalue(), before.tag if before else None)

    def restore(self) -> None:
        """Unpack the stored archive, if there is one."""
        if (stored := self.store.read_tagged(self.key)) is None:
            return
        try:
            with tarfile.open(fileobj=io.BytesIO(stored.data)) as archive:
                archive.extractall(self.folder, filter="data")
        except tarfile.TarError as error:
            raise ContractBroken(f"{self.key}: not an archive of checkpoints: {error}") from error


def open_checkpoints(store: Store, prefix: str, scratch: Path) -> FolderCheckpoints | StoredCheckpoints:
    """The checkpoints of one stage and version; what earlier attempts saved is there."""
    if isinstance(store, LocalStore):
        folder = store.root / prefix
        folder.mkdir(parents=True, exist_ok=True)
        return FolderCheckpoints(folder)
    folder = scratch / "checkpoints"
    folder.mkdir()
    stored = StoredCheckpoints(folder, store, f"{prefix}/{ARCHIVE}")
    stored.restore()
    return stored
