"""One worker per object: it is never worked on twice at once, a wake-up is a hint, an error backs off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from curateevo.api.errors import Conflict, CurateEvoError, Denied, Transient
from curateevo_operator.adapters.kubernetes import NamespaceEnding, Throttled
from curateevo_operator.metrics import Metrics

logger = logging.getLogger(__name__)
COALESCE_SECONDS = 0.05
"""Events that come in a bunch are one wake-up."""
FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS = 1.0, 60.0
STUCK_SECONDS = 600.0
"""A pass that takes longer hangs."""


class Key(NamedTuple):
    namespace: str
    name: str


@dataclass(slots=True)
class _Worker:
    task: asyncio.Task[None]
    wake: asyncio.Event
    pass_began: float | None = None
    failures: int = 0


Reconcile = Callable[[Key], Awaitable[float | None]]
"""One pass. Returns the seconds until the next at the latest; None: the object is gone."""


@dataclass(slots=True)
class Workers:
    reconcile: Reconcile
    metrics: Metrics
    concurrency: int
    resync_seconds: float
    _workers: dict[Key, _Worker] = field(default_factory=dict)
    _turns: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._turns = asyncio.Semaphore(self.concurrency)

    def wake(self, key: Key) -> None:
        """Look at an object soon; doing so twice is harmless."""
        worker = self._workers.get(key)
        if worker is None or worker.task.done():
            wake = asyncio.Event()
            task = asyncio.create_task(self._work(key, wake), name=f"worker of {key.namespace}/{key.name}")
            worker = self._workers[key] = _Worker(task, wake)
        worker.wake.set()

    def wake_new(self, key: Key) -> None:
        """Look at an object that nobody works on yet."""
        if key not in self._workers or self._workers[key].task.done():
            self.wake(key)

    def stuck(self) -> list[Key]:
        """Objects whose pass hangs."""
        now = asyncio.get_running_loop().time()
        began = {key: w.pass_began for key, w in self._workers.items()}
        return [key for key, at in began.items() if at is not None and now - at > STUCK_SECONDS]

    async def stop(self) -> None:
        """End all workers; what they were doing is taken up from the saved status by the next operator."""
        tasks = [w.task for w in self._workers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, key: Key, wake: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wake.clear()
            worker = self._workers[key]
            async with self._turns:
                worker.pass_began = loop.time()
                try:
                    wait = await self._pass(key, worker)
                finally:
                    worker.pass_began = None
            if wait is None and not wake.is_set():
                del self._workers[key]
                return
            try:
                await asyncio.wait_for(wake.wait(), timeout=min(wait or 0.0, self.resync_seconds))
                await asyncio.sleep(COALESCE_SECONDS)
            except TimeoutError:
                pass

    async def _pass(self, key: Key, worker: _Worker) -> float | None:
        with self.metrics.reconcile() as outcome:
            try:
                wait = await self.reconcile(key)
                worker.failures = 0
                return wait
            except Conflict as error:
                outcome.result = "conflict"
                logger.debug("%s: %s", key, error)
            except Throttled as error:
                outcome.result = "throttled"
                return max(error.retry_after, self._backoff(worker))
            except NamespaceEnding:
                outcome.result = "ending"
                logger.info("its namespace is going", extra={"evolution": key.name, "namespace": key.namespace})
            except (Transient, Denied) as error:
                outcome.result = "unavailable"
                logger.warning("pass put off: %s", error, extra={"evolution": key.name, "namespace": key.namespace})
            except CurateEvoError as error:
                outcome.result = "error"
                logger.error("pass failed: %s", error, extra={"evolution": key.name, "namespace": key.namespace})
            except Exception:
                outcome.result = "bug"
                logger.exception("pass failed", extra={"evolution": key.name, "namespace": key.namespace})
        return self._backoff(worker)

    def _backoff(self, worker: _Worker) -> float:
        worker.failures += 1
        return float(min(FIRST_BACKOFF_SECONDS * 2.0 ** min(worker.failures - 1, 10), LAST_BACKOFF_SECONDS))
