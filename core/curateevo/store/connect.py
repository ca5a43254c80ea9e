"""From a reference to a store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlparse

from curateevo.api.errors import SpecInvalid
from curateevo.api.stage import StoreRef
from curateevo.store.local import LocalStore
from curateevo.store.protocol import Store


def connect(ref: StoreRef, keys: Mapping[str, str] | None = None) -> Store:
    """The store behind a reference; nothing is written yet. Raises SpecInvalid for a scheme that is not known.

    `keys`: credentials for S3, see S3Store; None: those of the environment.
    """
    url = urlparse(ref.uri)
    if url.scheme == "file":
        return LocalStore(Path(unquote(url.path)))
    if url.scheme == "s3":
        from curateevo.store.s3 import S3Store

        return S3Store(url.netloc, url.path.strip("/"), ref.endpoint, keys)
    raise SpecInvalid(f"storage.uri: {ref.uri!r} is neither s3:// nor file://")
