"""The artifact stores of evolutions, opened with the keys of their Secret."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from typing import NamedTuple

from curateevo.api.errors import Denied, SpecInvalid
from curateevo.api.spec import Storage
from curateevo.api.stage import StoreRef
from curateevo.store.connect import connect
from curateevo.store.protocol import Store
from curateevo_operator.adapters.kubernetes import SECRET, Cluster

KEEP_SECONDS = 30.0
"""How long an opened store is used before its Secret is looked at again."""


class _Place(NamedTuple):
    namespace: str
    uri: str
    endpoint: str | None
    secret: str | None


@dataclass(slots=True)
class _Open:
    store: Store
    secret_version: str
    looked_at: float


@dataclass(slots=True)
class Stores:
    """Stores by where they are and which Secret opens them."""

    cluster: Cluster
    own_identity: bool
    """Whether evolutions without a `secretRef` may use the operator's own identity."""
    _open: dict[_Place, _Open] = field(default_factory=dict)
    _locks: dict[_Place, asyncio.Lock] = field(default_factory=dict)

    async def open(self, namespace: str, storage: Storage) -> Store:
        """The store of an evolution. Raises SpecInvalid for storage that a cluster can't have, Denied for a Secret that
        is not there or incomplete, or a store that does not honour conditional writes."""
        if not storage.uri.startswith("s3://"):
            raise SpecInvalid(
                f"spec.storage.uri: {storage.uri}: a cluster keeps artifacts in S3", "e.g. s3://bucket/prefix"
            )
        place = _place(namespace, storage)
        if place.secret is None and not self.own_identity:
            raise Denied(
                "spec.storage.secretRef is not set, and this operator does not lend its own identity",
                "name a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or let the operator's admin allow it",
            )
        async with self._locks.setdefault(place, asyncio.Lock()):
            return await self._renew(place)

    async def reopen(self, namespace: str, storage: Storage) -> Store:
        """As `open`, but a store that was opened before will do when its Secret is gone: of a namespace that is being
        deleted, the Secret may go first. Raises what `open` does."""
        try:
            return await self.open(namespace, storage)
        except Denied:
            if (found := self._open.get(_place(namespace, storage))) is None:
                raise
            return found.store

    async def _renew(self, place: _Place) -> Store:
        now = asyncio.get_running_loop().time()
        found = self._open.get(place)
        if found is not None and now - found.looked_at < KEEP_SECONDS:
            return found.store
        keys, version = await self._keys(place.namespace, place.secret) if place.secret else (None, "")
        if found is not None and found.secret_version == version:
            found.looked_at = now
            return found.store
        ref = StoreRef(uri=place.uri, endpoint=place.endpoint)
        store = await asyncio.to_thread(connect, ref, keys)  # a client takes a moment to make
        await asyncio.to_thread(store.check)
        self._open[place] = _Open(store, version, now)
        return store

    async def _keys(self, namespace: str, name: str) -> tuple[dict[str, str], str]:
        secret = await self.cluster.get(SECRET, namespace, name)
        if secret is None:
            raise Denied(f"spec.storage.secretRef: there is no Secret {name} in {namespace}", "create it")
        keys = {k: base64.b64decode(v).decode() for k, v in (secret.get("data") or {}).items()}
        if missing := {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} - keys.keys():
            raise Denied(f"spec.storage.secretRef: Secret {name} lacks {', '.join(sorted(missing))}", "add it")
        return keys, str(secret["metadata"]["resourceVersion"])


def _place(namespace: str, storage: Storage) -> _Place:
    return _Place(namespace, storage.uri, storage.endpoint, storage.secret_ref.name if storage.secret_ref else None)
