"""Kubernetes Events about our objects: few, after the status is saved, each once."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from curateevo.api.base import JsonObject
from curateevo.api.errors import Conflict, CurateEvoError
from curateevo.evolution.decision import Notice
from curateevo_operator.adapters.kubernetes import FIELD_MANAGER, Cluster

MAX_MESSAGE = 1024


async def announce(cluster: Cluster, about: JsonObject, notice: Notice, now: float) -> None:
    """Say it once: the Event's name is derived from what it says and of which generation. An Event that can't be
    written is lost: it is news, not state."""
    try:
        await cluster.create(event_of(about, notice, now))
    except Conflict:
        pass
    except CurateEvoError:
        return


def event_of(about: JsonObject, notice: Notice, now: float) -> JsonObject:
    meta = about["metadata"]
    digest = hashlib.sha256(f"{meta['uid']}\n{notice.reason}\n{notice.message}".encode()).hexdigest()[:16]
    when = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name'][:200]}.{digest}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta.get("resourceVersion", ""),
        },
        "type": "Warning" if notice.warning else "Normal",
        "reason": notice.reason,
        "message": notice.message[:MAX_MESSAGE],
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }
