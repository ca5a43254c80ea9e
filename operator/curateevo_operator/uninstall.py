"""`python -m curateevo_operator.uninstall`: before the operator goes, so that evolutions can be deleted without it.

Stops the Deployment (otherwise it would put its finalizer back), waits until it has, and takes the finalizer off all
evolutions. Nothing is deleted.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from curateevo.api.errors import CurateEvoError, Transient
from curateevo_operator.adapters.kubernetes import DEPLOYMENT, EVOLUTION, Cluster, connected
from curateevo_operator.reconcile import FINALIZER

STOP_SECONDS = 120

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    deployment: Annotated[str, typer.Option(help="the operator's, as namespace/name")],
    namespace: Annotated[list[str] | None, typer.Option(help="where evolutions are; none: everywhere")] = None,
) -> None:
    """Stop the operator and take its finalizer off all evolutions."""
    try:
        asyncio.run(_run(deployment, namespace or []))
    except CurateEvoError as error:
        print(error, file=sys.stderr)  # noqa: T201
        raise typer.Exit(1) from error


async def _run(deployment: str, namespaces: list[str]) -> None:
    async with connected(lambda verb, resource: None) as cluster:
        await _stop(cluster, *deployment.split("/", 1))
        for namespace in namespaces or (None,):
            for live in await cluster.find(EVOLUTION, namespace):
                finalizers = live["metadata"].get("finalizers") or []
                if FINALIZER in finalizers:
                    await cluster.set_finalizers(live, [f for f in finalizers if f != FINALIZER])
                    print(f"{live['metadata']['namespace']}/{live['metadata']['name']}: released")  # noqa: T201


async def _stop(cluster: Cluster, namespace: str, name: str) -> None:
    """Scale to 0 and wait. Raises Transient when its pod does not end."""
    await cluster.patch(DEPLOYMENT, namespace, name, {"spec": {"replicas": 0}})
    for _ in range(STOP_SECONDS):
        live = await cluster.get(DEPLOYMENT, namespace, name)
        if live is None or not (live.get("status") or {}).get("replicas"):
            return
        await asyncio.sleep(1.0)
    raise Transient(f"the operator's pod did not end within {STOP_SECONDS} s")


if __name__ == "__main__":
    app()
