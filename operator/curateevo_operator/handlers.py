"""kopf at the edge: it watches, and every event is a wake-up. It writes nothing: no handler that it keeps state for, no
finalizer, no annotation, no Event of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kopf
from prometheus_client import CollectorRegistry

from curateevo_operator.adapters.kubernetes import EVOLUTION, JOB, connected
from curateevo_operator.adapters.stores import Stores
from curateevo_operator.health import Health, serve
from curateevo_operator.metrics import Metrics
from curateevo_operator.reconcile import Reconciler
from curateevo_operator.render import labels
from curateevo_operator.settings import Settings
from curateevo_operator.workers import Key, Workers

logger = logging.getLogger(__name__)
ANEW_SECONDS = 2.0
STORE_THREADS = 3
GROUP, API_VERSION = EVOLUTION.api_version.split("/")


class Forever:
    """Waits between tries that never end and can be begun anew: with a finite list kopf gives a watch up for good."""

    def __iter__(self) -> Iterator[float]:
        wait = 1.0
        while True:
            yield wait
            wait = min(wait * 2.0, 30.0)


class News:
    """Tells changes that people make from the echo of our own status: a pass for each would make two of every one."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[object, ...]] = {}

    def tells(self, key: Key, meta: Mapping[str, Any] | None) -> bool:
        """Whether an event is to wake the worker. `meta` None: the object is gone."""
        if meta is None:
            self._known.pop(key, None)
            return True
        now = (
            meta.get("uid"),
            meta.get("generation"),
            meta.get("deletionTimestamp"),
            dict(meta.get("annotations") or {}),
        )
        before, self._known[key] = self._known.get(key), now
        return now != before


async def run(settings: Settings, registry: CollectorRegistry, stop: asyncio.Event | None = None) -> None:
    """Run until `stop` is set or a signal comes. Raises Denied when there is no cluster."""
    metrics = Metrics(registry)
    # Threads talk to stores, and take the interpreter's lock from the loop when they do.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(STORE_THREADS))
    gc.freeze()  # what was imported stays: looking through it at each full collection takes a fifth of a second
    async with connected(metrics.count_call) as cluster:
        reconciler = Reconciler(cluster, Stores(cluster, settings.own_identity), settings, metrics)
        workers = Workers(reconciler, metrics, settings.concurrency, settings.resync_seconds)
        health = Health(settings, cluster, workers, metrics)
        runner = await serve(settings, registry, health)
        tasks = [asyncio.create_task(t, name="health") for t in (health.watch_over(), health.measure_lag())]
        try:
            await _watch(settings, workers, health, stop)
        finally:
            for task in tasks:
                task.cancel()
            await runner.cleanup()


async def _watch(settings: Settings, workers: Workers, health: Health, stop: asyncio.Event | None) -> None:
    """Until told to stop. kopf gives up altogether when a watch gets an ERROR event other than 410: begin anew then."""
    while True:
        try:
            await kopf.operator(
                registry=make_registry(workers, health),
                settings=kopf_settings(),
                standalone=True,
                namespaces=list(settings.namespaces),
                clusterwide=not settings.namespaces,
                stop_flag=stop,
            )
            return
        except Exception:
            logger.exception("the watches have ended; watching anew")
            await asyncio.sleep(ANEW_SECONDS)


def make_registry(workers: Workers, health: Health) -> kopf.OperatorRegistry:
    registry, news = kopf.OperatorRegistry(), News()

    @kopf.on.login(registry=registry)
    def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(GROUP, API_VERSION, EVOLUTION.plural, registry=registry)
    async def evolution_changed(type: str, namespace: str | None, name: str, meta: Any, **_: Any) -> None:
        health.hear(EVOLUTION.plural)
        key = Key(str(namespace), name)
        if news.tells(key, None if type == "DELETED" else meta):
            workers.wake(key)

    @kopf.on.event("batch", "v1", JOB.plural, registry=registry, labels={labels.EVOLUTION: kopf.PRESENT})
    async def job_changed(namespace: str | None, meta: Any, **_: Any) -> None:
        health.hear(JOB.plural)
        workers.wake(Key(str(namespace), meta["labels"][labels.EVOLUTION]))

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await workers.stop()  # otherwise kopf waits for tasks that it does not know

    return registry


def kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = Forever()
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    settings.persistence.finalizer = "curateevo.io/kopf"
    settings.scanning.disabled = True  # no rights on CRDs and namespaces are needed then
    return settings
