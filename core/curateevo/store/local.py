"""A directory as the store. Creation is atomic by hard link, replacement by rename under a lock."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from curateevo.api.errors import Conflict, ContractBroken, Denied, StoreUnavailable
from curateevo.api.stage import FileRef
from curateevo.store.protocol import Tagged
from curateevo.store.verify import missing, put_in_place, sha256_of, verified

CHUNK_BYTES = 1 << 20
PARTIAL = ".partial-"
LOCK = ".lock"


class LocalStore:
    """Objects are files below `root`. Safe for several processes on one machine."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def put(self, key: str, source: bytes | Path) -> FileRef:
        path = self._path(key)
        with _translated(key):
            partial = self._write_partial(path, source)
            try:
                ref = FileRef(key=key, digest=f"sha256:{sha256_of(partial)}", size_bytes=partial.stat().st_size)
                if not _create(partial, path) and f"sha256:{sha256_of(path)}" != ref.digest:
                    raise Conflict(f"{key}: the store holds other bytes under this key", "objects are immutable")
            finally:
                partial.unlink(missing_ok=True)
        return ref

    def get(self, key: str) -> bytes | None:
        with _translated(key):
            path = self._path(key)
            return path.read_bytes() if path.is_file() else None

    def read(self, ref: FileRef) -> bytes:
        return verified(self.get(ref.key), ref)

    def fetch(self, ref: FileRef, target: Path) -> None:
        with _translated(ref.key):
            source = self._path(ref.key)
            if not source.is_file():
                raise missing(ref)
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(PARTIAL + target.name)
            shutil.copyfile(source, partial)
            put_in_place(partial, target, ref)

    def put_once(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with _translated(key):
            partial = self._write_partial(path, data)
            try:
                return _create(partial, path)
            finally:
                partial.unlink(missing_ok=True)

    def read_tagged(self, key: str) -> Tagged | None:
        data = self.get(key)
        return None if data is None else Tagged(data, hashlib.sha256(data).hexdigest())

    def swap(self, key: str, data: bytes, tag: str | None) -> str:
        path = self._path(key)
        with _translated(key):
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.parent / LOCK):
                current = self.read_tagged(key)
                if (current.tag if current else None) != tag:
                    raise Conflict(f"{key}: moved by another writer", "read it again and decide anew")
                partial = self._write_partial(path, data)
                partial.rename(path)
                _sync_folder(path.parent)
        return hashlib.sha256(data).hexdigest()

    def keys(self, prefix: str) -> Iterator[str]:
        with _translated(prefix):
            found = (p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file())
            yield from sorted(k for k in found if k.startswith(prefix) and not _is_internal(k))

    def delete(self, prefix: str) -> int:
        with _translated(prefix):
            doomed = list(self.keys(prefix))
            for key in doomed:
                self._path(key).unlink(missing_ok=True)
            folder = self._path(prefix.rstrip("/")) if prefix.strip("/") else self.root
            if folder.is_dir():
                shutil.rmtree(folder)
        return len(doomed)

    def check(self) -> None:
        with _translated("."):
            self.root.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.root, prefix=PARTIAL)
            os.close(handle)
            probe, link = Path(name), Path(f"{name}-link")
            try:
                if not _create(probe, link) or _create(probe, link):
                    raise Denied(f"{self.root}: this file system does not refuse a second creation of a file")
            finally:
                probe.unlink(missing_ok=True)
                link.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        path = self.root / key
        if not path.resolve().is_relative_to(self.root):
            raise ContractBroken(f"{key}: a key may not leave the store")
        return path

    def _write_partial(self, path: Path, source: bytes | Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=PARTIAL)
        partial = Path(name)
        try:
            with os.fdopen(handle, "wb") as out:
                if isinstance(source, bytes):
                    out.write(source)
                else:
                    with source.open("rb") as stream:
                        shutil.copyfileobj(stream, out, CHUNK_BYTES)
                out.flush()
                os.fsync(out.fileno())
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return partial


def _is_internal(key: str) -> bool:
    name = key.rsplit("/", 1)[-1]
    return name.startswith(PARTIAL) or name == LOCK


def _create(partial: Path, path: Path) -> bool:
    """Give `partial`'s bytes the name `path` unless the name is taken."""
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    _sync_folder(path.parent)
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn the operating system's errors into ours, once."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Denied(f"{what}: no space left in the store", "free some space and run again") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Denied(f"{what}: {error.strerror}", "check who owns the store's directory") from error
        raise StoreUnavailable(f"{what}: {error}") from error
