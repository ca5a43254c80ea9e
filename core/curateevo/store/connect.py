"""From a reference to a store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from curateevo.api.errors import SpecInvalid
from curateevo.api.stage import StoreRef
from curateevo.store.local import LocalStore
from curateevo.store.protocol import Store


def connect(ref: StoreRef) -> Store:
    """The store behind a reference; nothing is written yet. Raises SpecInvalid for a scheme that is not known."""
    url = urlparse(ref.uri)
    if url.scheme == "file":
        return LocalStore(Path(unquote(url.path)))
    if url.scheme == "s3":
        from curateevo.store.s3 import S3Store

        return S3Store(url.netloc, url.path.strip("/"), ref.endpoint)
    raise SpecInvalid(f"storage.uri: {ref.uri!r} is neither s3:// nor file://")
