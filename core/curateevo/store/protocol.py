"""What the loop asks of a store. `local.py` and `s3.py` fulfil it; one suite of contract tests holds both to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from curateevo.api.stage import FileRef


@dataclass(frozen=True, slots=True)
class Tagged:
    """A mutable object's bytes, and the tag that a swap must name."""

    data: bytes
    tag: str


class Store(Protocol):
    """Keys are relative, with `/`; no key is a prefix of another one plus `/`.

    Every method may raise StoreUnavailable (try again) or Denied (credentials, quota, a full disk).
    """

    def put(self, key: str, source: bytes | Path) -> FileRef:
        """Store an immutable object and return its reference once it is durable.

        Putting the same bytes again is harmless. Raises Conflict when the key holds other bytes.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """The bytes of a small object, or None when there is no such key. A torn upload is no key."""
        ...

    def read(self, ref: FileRef) -> bytes:
        """The bytes of `ref`, verified. Raises ArtifactCorrupt when missing or when size or digest differ."""
        ...

    def fetch(self, ref: FileRef, target: Path) -> None:
        """Copy `ref` to the file `target`, verified as in `read`; `target` appears whole or not at all."""
        ...

    def put_once(self, key: str, data: bytes) -> bool:
        """Create `key` unless it exists. True when this call created it; exactly one of racing writers gets True."""
        ...

    def read_tagged(self, key: str) -> Tagged | None:
        """A mutable object and its tag, or None."""
        ...

    def swap(self, key: str, data: bytes, tag: str | None) -> str:
        """Replace the object whose tag is `tag` (None: there is none yet); returns the new tag.

        Exactly one of racing writers wins; the others raise Conflict.
        """
        ...

    def keys(self, prefix: str) -> Iterator[str]:
        """All keys that begin with `prefix`, sorted."""
        ...

    def delete(self, prefix: str) -> int:
        """Delete every object below `prefix`; returns how many there were."""
        ...

    def check(self) -> None:
        """Prove with a probe object that the store can be written and honours conditional writes.

        Raises Denied when it does not: without them two runs could both move the champion.
        """
        ...
