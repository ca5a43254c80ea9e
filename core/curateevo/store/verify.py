"""Bytes against the reference that promises them: the same check for every store."""

from __future__ import annotations

import hashlib
from pathlib import Path

from curateevo.api.errors import ArtifactCorrupt
from curateevo.api.stage import FileRef


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def missing(ref: FileRef) -> ArtifactCorrupt:
    """The error for an object that is not there."""
    return ArtifactCorrupt(f"{ref.key}: missing from the store")


def verified(data: bytes | None, ref: FileRef) -> bytes:
    """`data`, if it is what `ref` promises. Raises ArtifactCorrupt, also for None."""
    if data is None:
        raise missing(ref)
    _compare(len(data), hashlib.sha256(data).hexdigest(), ref)
    return data


def put_in_place(partial: Path, target: Path, ref: FileRef) -> None:
    """Rename a fetched file to its name if it is what `ref` promises; otherwise remove it and raise ArtifactCorrupt."""
    try:
        _compare(partial.stat().st_size, sha256_of(partial), ref)
    except ArtifactCorrupt:
        partial.unlink()
        raise
    partial.rename(target)


def _compare(size_bytes: int, digest: str, ref: FileRef) -> None:
    if size_bytes != ref.size_bytes or f"sha256:{digest}" != ref.digest:
        raise ArtifactCorrupt(f"{ref.key}: size or digest is not what its manifest says")
