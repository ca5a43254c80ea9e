"""Whether the operator hears and works: the probe fails when a watch is gone or a pass hangs, whatever kopf says.

kopf's own /healthz stays well after a watch has ended for good: an ERROR event other than 410, or a re-list that is
answered with 5xx for longer than its backoffs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from curateevo.api.errors import CurateEvoError
from curateevo_operator.adapters.kubernetes import EVOLUTION, JOB, Cluster
from curateevo_operator.metrics import Metrics
from curateevo_operator.settings import Settings
from curateevo_operator.workers import Key, Workers

logger = logging.getLogger(__name__)
WATCHED = (EVOLUTION.plural, JOB.plural)
DEAF_SECONDS = 90.0
"""How long a watch may be missing: kopf takes a moment to begin, and to begin anew."""
PROBE_SECONDS = 5.0
LAG_SECONDS = 0.25


@dataclass(slots=True)
class Health:
    """Looks at the watches every few seconds, and lists all evolutions now and then so that none goes unheard."""

    settings: Settings
    cluster: Cluster
    workers: Workers
    metrics: Metrics
    _deaf: tuple[float, list[str]] | None = None
    """Since when, and which kinds."""
    _listed_at: float | None = None

    def hear(self, plural: str) -> None:
        self.metrics.watch.labels(plural).set_to_current_time()

    def problems(self) -> list[str]:
        """Why the operator should be restarted; empty when it should not."""
        found = [f"the pass over {k.namespace}/{k.name} hangs" for k in self.workers.stuck()]
        if self._deaf is not None and time.monotonic() - self._deaf[0] > DEAF_SECONDS:
            found.append(f"no watch on {' and '.join(self._deaf[1])}")
        return found

    @property
    def ready(self) -> bool:
        return self._listed_at is not None

    async def measure_lag(self) -> None:
        """Runs for as long as the operator does."""
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.metrics.loop_lag.observe(max(0.0, loop.time() - asked))

    async def watch_over(self) -> None:
        """Runs for as long as the operator does."""
        next_list = 0.0
        while True:
            missing = self._missing()
            self.metrics.deaf.set(bool(missing) and self._listed_at is not None)
            since = self._deaf[0] if self._deaf is not None else time.monotonic()
            self._deaf = (since, missing) if missing else None
            if time.monotonic() >= next_list:
                await self._list_all()
                next_list = time.monotonic() + self.settings.list_seconds
            await asyncio.sleep(PROBE_SECONDS)

    def _missing(self) -> list[str]:
        """Watched kinds without a living watcher, by the names of kopf's tasks."""
        names = {t.get_name() for t in asyncio.all_tasks() if not t.done()}
        return [p for p in WATCHED if not any(n.startswith(f"watcher for {p}.") for n in names)]

    async def _list_all(self) -> None:
        """Wake every evolution: correct even if no event ever comes."""
        try:
            for namespace in self.settings.namespaces or (None,):
                for live in await self.cluster.find(EVOLUTION, namespace):
                    self.workers.wake_new(Key(live["metadata"]["namespace"], live["metadata"]["name"]))
            self._listed_at = time.monotonic()
        except CurateEvoError as error:
            logger.warning("can't list evolutions: %s", error)


async def serve(settings: Settings, registry: CollectorRegistry, health: Health) -> web.AppRunner:
    """/metrics, /healthz and /readyz."""

    async def metrics(request: web.Request) -> web.Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(request: web.Request) -> web.Response:
        found = health.problems()
        return web.Response(status=503 if found else 200, text="\n".join(found) or "ok")

    async def readyz(request: web.Request) -> web.Response:
        return web.Response(status=200 if health.ready else 503, text="ok" if health.ready else "not listed yet")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, settings.host, settings.port).start()
    return runner
