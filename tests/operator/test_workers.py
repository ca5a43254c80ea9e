"""Workers: never two passes over one object at once, no wake-up lost, errors back off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry

from curateevo.api.errors import Conflict, Denied, Transient
from curateevo_operator.metrics import Metrics
from curateevo_operator.workers import Key, Workers

A, B = Key("ns", "a"), Key("ns", "b")


def workers(reconcile: Callable[[Key], Awaitable[float | None]], *, concurrency: int = 8) -> Workers:
    return Workers(reconcile, Metrics(CollectorRegistry()), concurrency, resync_seconds=60.0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.01)


def test_a_wake_up_during_a_pass_gives_another_one() -> None:
    async def story() -> None:
        passes, go = [], asyncio.Event()

        async def reconcile(key: Key) -> float | None:
            passes.append(key)
            await go.wait()
            return 60.0

        work = workers(reconcile)
        work.wake(A)
        await until(lambda: len(passes) == 1)
        work.wake(A)
        work.wake(A)
        go.set()
        await until(lambda: len(passes) == 2)
        await asyncio.sleep(0.1)
        assert len(passes) == 2
        await work.stop()

    asyncio.run(story())


def test_one_object_is_never_worked_on_twice_at_once_and_others_are_not_held_up() -> None:
    async def story() -> None:
        inside: dict[Key, int] = {A: 0, B: 0}
        most = 0

        async def reconcile(key: Key) -> float | None:
            nonlocal most
            inside[key] += 1
            most = max(most, sum(inside.values()))
            assert inside[key] == 1
            await asyncio.sleep(0.02)
            inside[key] -= 1
            return 0.0

        work = workers(reconcile)
        for _ in range(20):
            work.wake(A)
            work.wake(B)
            await asyncio.sleep(0.005)
        assert most == 2
        await work.stop()

    asyncio.run(story())


def test_the_number_of_passes_at_once_is_bounded() -> None:
    async def story() -> None:
        inside = most = 0

        async def reconcile(key: Key) -> float | None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1
            return 60.0

        work = workers(reconcile, concurrency=3)
        for n in range(30):
            work.wake(Key("ns", f"e{n}"))
        await asyncio.sleep(0.3)
        assert most == 3
        await work.stop()

    asyncio.run(story())


def test_a_worker_ends_with_its_object_and_begins_again_with_a_new_one() -> None:
    async def story() -> None:
        passes = 0

        async def reconcile(key: Key) -> float | None:
            nonlocal passes
            passes += 1
            return None

        work = workers(reconcile)
        work.wake(A)
        await until(lambda: passes == 1)
        await asyncio.sleep(0.05)
        work.wake_new(A)
        await until(lambda: passes == 2)
        await work.stop()

    asyncio.run(story())


@pytest.mark.parametrize("error", [Conflict("c"), Transient("t"), Denied("d"), ValueError("bug")])
def test_errors_back_off_and_the_worker_lives(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curateevo_operator.workers.FIRST_BACKOFF_SECONDS", 0.02)

    async def story() -> None:
        times: list[float] = []

        async def reconcile(key: Key) -> float | None:
            times.append(asyncio.get_running_loop().time())
            if len(times) < 4:
                raise error
            return 60.0

        work = workers(reconcile)
        work.wake(A)
        await until(lambda: len(times) == 4)
        waits = [b - a for a, b in pairwise(times)]
        assert waits[0] < waits[1] < waits[2] and waits[0] >= 0.02
        await work.stop()

    asyncio.run(story())
