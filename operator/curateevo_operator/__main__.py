"""`python -m curateevo_operator`: the operator, told by flags or by environment."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from curateevo.api.errors import CurateEvoError
from curateevo_operator import handlers, logs
from curateevo_operator.render.settings import RenderSettings
from curateevo_operator.settings import Settings

SWITCH_SECONDS = 0.001
"""How soon a thread that talks to a store gives way to the event loop."""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"


def _env(name: str) -> str:
    return f"CURATEEVO_{name}"


@app.command()
def main(
    jobs_image: Annotated[str, typer.Option(envvar=_env("JOBS_IMAGE"), help="ingest, curate, propose, evaluate")],
    sandbox_image: Annotated[str, typer.Option(envvar=_env("SANDBOX_IMAGE"), help="the policy's own container")],
    trainer_image: Annotated[str, typer.Option(envvar=_env("TRAINER_IMAGE"), help="train")],
    serve_image: Annotated[str, typer.Option(envvar=_env("SERVE_IMAGE"), help="vLLM; default: trainer")] = "",
    image_pull_policy: Annotated[str, typer.Option(envvar=_env("IMAGE_PULL_POLICY"))] = "IfNotPresent",
    image_pull_secret: Annotated[list[str] | None, typer.Option(envvar=_env("IMAGE_PULL_SECRETS"))] = None,
    work_storage_class: Annotated[
        str,
        typer.Option(
            envvar=_env("WORK_STORAGE_CLASS"), help="of claims for sandbox.isolation Pod; default: the cluster's"
        ),
    ] = "",
    job_ttl_seconds: Annotated[int, typer.Option(envvar=_env("JOB_TTL_SECONDS"), min=0)] = 3600,
    namespace: Annotated[
        list[str] | None, typer.Option(envvar=_env("NAMESPACES"), help="where to look; none: everywhere")
    ] = None,
    concurrency: Annotated[int, typer.Option(envvar=_env("CONCURRENCY"), min=1)] = 8,
    resync_seconds: Annotated[float, typer.Option(envvar=_env("RESYNC_SECONDS"), min=1.0)] = 300.0,
    list_seconds: Annotated[float, typer.Option(envvar=_env("LIST_SECONDS"), min=1.0)] = 60.0,
    host: Annotated[str, typer.Option(envvar=_env("HOST"), help="of /metrics and the probes")] = "0.0.0.0",
    port: Annotated[int, typer.Option(envvar=_env("PORT"))] = 8080,
    own_identity: Annotated[
        bool, typer.Option(envvar=_env("OWN_IDENTITY"), help="lend it to evolutions without a storage Secret")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(envvar=_env("LOG_FORMAT"))] = LogFormat.JSON,
    log_level: Annotated[str, typer.Option(envvar=_env("LOG_LEVEL"))] = "info",
) -> None:
    """Run curation evolutions on the cluster that this process is in, or that KUBECONFIG names."""
    render = RenderSettings(
        jobs_image=jobs_image,
        trainer_image=trainer_image,
        serve_image=serve_image or trainer_image,
        sandbox_image=sandbox_image,
        image_pull_policy=image_pull_policy,
        image_pull_secrets=tuple(image_pull_secret or ()),
        job_ttl_seconds=job_ttl_seconds,
        work_storage_class=work_storage_class,
    )
    settings = Settings(
        render=render,
        namespaces=tuple(namespace or ()),
        concurrency=concurrency,
        resync_seconds=resync_seconds,
        list_seconds=list_seconds,
        host=host,
        port=port,
        own_identity=own_identity,
        log_format=log_format.value,
        log_level=log_level,
    )
    sys.setswitchinterval(SWITCH_SECONDS)
    logs.set_up(settings.log_format, settings.log_level)
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    try:
        asyncio.run(handlers.run(settings, registry))
    except CurateEvoError as error:
        print(error, file=sys.stderr)  # noqa: T201
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


if __name__ == "__main__":
    app()
