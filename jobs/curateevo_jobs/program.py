"""What is common to all stage programs: the request in, the manifest last, an exit code by class of error."""

from __future__ import annotations

import argparse
import errno
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from curateevo.api.errors import ContractBroken, CurateEvoError, Denied, ExitCode
from curateevo.api.spec import BaseModelRef
from curateevo.api.stage import (
    CurateParams,
    EvaluateParams,
    FileRef,
    IngestParams,
    Manifest,
    Outcome,
    StageRequest,
    TrainParams,
    Usage,
)
from curateevo.evolution.pods import SCRATCH_VARIABLE, SERVE_PORT
from curateevo.store.artifacts import fetch_inputs, publish, read_manifest, remember, reuse
from curateevo.store.connect import connect
from curateevo.store.protocol import Store
from curateevo_jobs.agents.served import served_elsewhere
from curateevo_jobs.checkpoints import open_checkpoints
from curateevo_jobs.progress import open_progress
from curateevo_jobs.stage import Progress, StageResult, StageRun
from curateevo_jobs.training.base_model import fingerprint

PROGRAMS = ("ingest", "curate", "train", "evaluate", "propose")
SERVE = "serve"
STEPS = {"curate": ("fetch", "fulfil", "publish"), SERVE: ("fetch", "run")}
MOST_BYTES_PER_CHARACTER = 6
MAX_TOLD_BYTES = 2000
"""Of the termination log: Kubernetes keeps 4096 of a container, and 12 KiB of a pod."""


def main(argv: list[str] | None = None) -> int:
    """Run one stage, or one step of it. Returns the exit code; the termination log says the same in JSON."""
    signal.signal(signal.SIGTERM, _stop)
    options = _options(argv)
    progress = open_progress(options.stage, options.progress)
    try:
        outcome, message = _act(options, progress)
    except CurateEvoError as error:
        return _end(options.termination_log, options.stage, error.exit_code, type(error).__name__, str(error))
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            full = Denied(f"no space left: {error.filename or error}", "free some space and run again")
            return _end(options.termination_log, options.stage, full.exit_code, "Denied", str(full))
        _tell(options.termination_log, options.stage, ExitCode.BUG, "Bug", f"{type(error).__name__}: {error}")
        raise
    finally:
        progress.close()
    return _end(options.termination_log, options.stage, ExitCode.OK, outcome, message)


def _stop(number: int, frame: object) -> NoReturn:
    """End as one that the signal had killed: the first process of a container would not hear it otherwise."""
    sys.exit(128 + number)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m curateevo_jobs", description=__doc__)
    parser.add_argument("stage", choices=(*PROGRAMS, SERVE))
    parser.add_argument("--request", required=True, type=Path, help="the request, a JSON file")
    parser.add_argument("--termination-log", type=Path, help="where a short JSON about the end goes")
    parser.add_argument("--progress", choices=("auto", "json", "bar"), default="auto")
    parser.add_argument(
        "--step", choices=("fetch", "fulfil", "publish", "run"), help="curate, serve: one step of the program"
    )
    parser.add_argument("--work", type=Path, help="curate: the folder that its steps share")
    parser.add_argument("--wait", type=float, default=0.0, help="curate: seconds that the step before may take")
    parser.add_argument("--subject", help="serve: whose model; the request is that of the evaluation")
    parser.add_argument("--model", type=Path, help="serve: the folder that its steps share")
    parser.add_argument("--port", type=int, default=SERVE_PORT, help="serve: where to listen")
    options = parser.parse_args(argv)
    if options.step not in STEPS.get(options.stage, ()) and (options.step or options.stage == SERVE):
        parser.error(f"{options.stage} has these steps: {', '.join(STEPS.get(options.stage, ('none',)))}")
    if options.stage == "curate" and options.step and options.work is None:
        parser.error("a step of curate needs --work")
    if options.stage == SERVE and (options.subject is None or options.model is None):
        parser.error("serve needs --subject and --model")
    return options


def _act(options: argparse.Namespace, progress: Progress) -> tuple[str, str]:
    """Do what is asked. Returns the outcome and a message."""
    request = read_request(options.request, "evaluate" if options.stage == SERVE else options.stage)
    params = request.params
    manifest: Manifest | None
    if isinstance(params, EvaluateParams) and options.stage == SERVE:
        from curateevo_jobs import serve

        if options.step == "run":
            serve.run(params, options.subject, options.model, options.port)
        else:
            serve.fetch(request, params, options.subject, options.model)
        return Outcome.OK.value, ""
    if isinstance(params, CurateParams) and options.step is not None:
        from curateevo_jobs import steps

        if options.step == "fetch":
            manifest = steps.fetch(request, params, options.work, progress)
        elif options.step == "fulfil":
            manifest = steps.fulfil(request, params, options.work, progress)
        else:
            manifest = steps.publish(request, params, options.work, progress, options.wait)
    else:
        manifest = run_stage(request, progress)
    return (manifest.outcome.value, manifest.message) if manifest else (Outcome.OK.value, "")


def read_request(path: Path, stage: str) -> StageRequest:
    """The request of a stage. Raises ContractBroken."""
    try:
        request = StageRequest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ContractBroken(f"{path}: no such request") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ContractBroken(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if request.params.stage != stage:
        raise ContractBroken(f"{path}: a request for {request.params.stage}, not for {stage}")
    return request


def run_stage(request: StageRequest, progress: Progress) -> Manifest:
    """Do the work unless it is done: this artifact is there, or an equal one is in the cache."""
    started = time.monotonic()
    store = connect(request.store)
    if (done := read_manifest(store, request.prefix)) is not None:
        return done
    salt = _unstored_inputs(request)
    if (shared := find_shared(store, request, progress, salt)) is not None:
        return shared
    with open_run(request, store, progress) as run:
        fetch_inputs(store, needed_inputs(request), run.inputs)
        result = _program(request.params.stage)(run, request.params)
        manifest = publish_result(store, run, result, salt=salt, seconds=time.monotonic() - started)
        if isinstance(request.params, TrainParams):
            run.checkpoints.discard()
        return manifest


def find_shared(store: Store, request: StageRequest, progress: Progress, salt: str = "") -> Manifest | None:
    """The manifest of this artifact, made now after an equal one in the cache, if there is one."""
    if (shared := reuse(store, request, salt)) is not None:
        progress.report("cached", 1, 1)
    return shared


@contextmanager
def open_run(request: StageRequest, store: Store, progress: Progress) -> Iterator[StageRun]:
    """The folders of one attempt, while the context lasts; `inputs` is empty."""
    with tempfile.TemporaryDirectory(
        prefix=f"curateevo-{request.stage}-", dir=os.environ.get(SCRATCH_VARIABLE)
    ) as name:
        folder = Path(name)
        for part in ("inputs", "output", "scratch"):
            (folder / part).mkdir()
        checkpoints = open_checkpoints(store, request.checkpoint_prefix or f"{request.prefix}.checkpoints", folder)
        yield StageRun(request, folder / "inputs", folder / "output", folder / "scratch", checkpoints, progress)


def needed_inputs(request: StageRequest) -> dict[str, FileRef]:
    """The inputs that the program reads: models that are served elsewhere are not among them."""
    if not isinstance(request.params, EvaluateParams) or not served_elsewhere():
        return request.inputs
    models = tuple(f"{subject.name}/model/" for subject in request.params.subjects)
    return {path: ref for path, ref in request.inputs.items() if not path.startswith(models)}


def publish_result(store: Store, run: StageRun, result: StageResult, *, seconds: float, salt: str = "") -> Manifest:
    """Store what a program wrote, last its manifest. `seconds`: since the work began."""
    manifest = publish(
        store,
        run.request,
        run.output,
        summary=result.summary,
        outcome=result.outcome,
        reason=result.reason,
        message=result.message,
        volatile=result.volatile,
        usage=_usage(result, seconds),
    )
    if result.cache:
        remember(store, run.request, manifest, salt)
    return manifest


def _unstored_inputs(request: StageRequest) -> str:
    """The base model, where it decides the output: what its URI stands for may change."""
    params = request.params
    match params:
        case TrainParams(model=model) | IngestParams(model=BaseModelRef() as model):
            return fingerprint(model, request.store.endpoint)
        case EvaluateParams(model=model, wants_base=True):
            return fingerprint(model, request.store.endpoint)
        case _:
            return ""


def _program(stage: str) -> Callable[[StageRun, Any], StageResult]:
    """The program of a stage: the function that its module is named after. Only its own dependencies are imported."""
    program: Callable[[StageRun, Any], StageResult] = getattr(import_module(f"curateevo_jobs.{stage}"), stage)
    return program


def _usage(result: StageResult, seconds: float) -> Usage:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return Usage(
        seconds=round(seconds, 3),
        cpu_seconds=round(own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, 3),
        gpu_seconds=result.gpu_seconds,
        peak_bytes=max(own.ru_maxrss, children.ru_maxrss) * 1024,
        tokens=result.tokens,
        usd=result.usd,
        calls=result.calls,
    )


def _end(log: Path | None, stage: str, code: ExitCode, outcome: str, message: str) -> int:
    if code is not ExitCode.OK:
        print(f"{stage}: {message}", file=sys.stderr, flush=True)  # noqa: T201
    _tell(log, stage, code, outcome, message)
    return int(code)


def _tell(log: Path | None, stage: str, code: ExitCode, outcome: str, message: str) -> None:
    if log is not None:
        log.write_text(told(stage, code, outcome, message), encoding="utf-8")


def told(stage: str, code: ExitCode, outcome: str, message: str) -> str:
    """The termination log: JSON of at most MAX_TOLD_BYTES, whatever the message holds."""
    message = message.encode("utf-8", "replace").decode("utf-8")
    while True:
        said = {"stage": stage, "exitCode": int(code), "outcome": outcome, "message": message}
        text = json.dumps(said, ensure_ascii=False)
        excess = len(text.encode()) - MAX_TOLD_BYTES
        if excess <= 0:
            return text
        message = message[: -max(1, excess // MOST_BYTES_PER_CHARACTER)]
