"""An operator that is killed after every write, again and again, until its evolution is over.

    python -m tests.cluster.crashing NAMESPACE/NAME [--writes N]

Each operator is a fork that has everything imported. It ends by SIGKILL right after its N-th write (to the API server or
the store), or by itself when the evolution has ended and a pass changes nothing. Prints the number of operators that died.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry

from curateevo.store.s3 import S3Store
from curateevo_operator import handlers
from curateevo_operator.adapters.kubernetes import EVOLUTION, Cluster
from curateevo_operator.reconcile import Reconciler
from curateevo_operator.render.settings import RenderSettings
from curateevo_operator.settings import Settings
from curateevo_operator.workers import Key

MOST_OPERATORS = 1000
OVER = ("Complete", "Failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evolution")
    parser.add_argument("--writes", type=int, default=1)
    options = parser.parse_args()
    key = Key(*options.evolution.split("/"))
    for died in range(MOST_OPERATORS):
        child = os.fork()
        if child == 0:
            run_until_killed(key, options.writes)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(json.dumps({"died": died, "exit": os.WEXITSTATUS(status)}), flush=True)
            sys.exit(os.WEXITSTATUS(status))
    sys.exit("the evolution did not end")


def run_until_killed(key: Key, writes: int) -> None:
    """In the child: never returns."""
    left = writes

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    die_after_writes(count)
    end_when_over(key)
    images = RenderSettings(jobs_image="j", trainer_image="t", serve_image="v", sandbox_image="s")
    settings = Settings(render=images, namespaces=(key.namespace,), host="127.0.0.1", port=0)
    try:
        asyncio.run(handlers.run(settings, CollectorRegistry()))
    finally:
        os._exit(3)


def die_after_writes(count: Callable[[], None]) -> None:
    call = Cluster._call

    async def counted(self: Cluster, method: str, *args: Any, **kwargs: Any) -> Any:
        answer = await call(self, method, *args, **kwargs)
        if method != "GET":
            count()
        return answer

    Cluster._call = counted  # type: ignore[method-assign]
    for name in ("put", "put_once", "swap", "delete"):
        setattr(S3Store, name, counting(getattr(S3Store, name), count))
    S3Store.check = lambda self: None  # type: ignore[method-assign]


def counting(write: Callable[..., Any], count: Callable[[], None]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        answer = write(*args, **kwargs)
        count()
        return answer

    return counted


def end_when_over(key: Key) -> None:
    """Exit once the evolution has ended and there is nothing left to do, or is gone."""
    reconcile: Callable[[Reconciler, Key], Awaitable[float | None]] = Reconciler.__call__

    async def watched(self: Reconciler, which: Key) -> float | None:
        wait = await reconcile(self, which)
        if which == key:
            live = await self.cluster.get(EVOLUTION, *key)
            if live is None or (live.get("status", {}).get("phase") in OVER and wait != 0.0):
                os._exit(0)
        return wait

    Reconciler.__call__ = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
