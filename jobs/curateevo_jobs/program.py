"""What is common to all stage programs: the request in, the manifest last, an exit code by class of error."""

from __future__ import annotations

import argparse
import errno
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from curateevo.api.errors import ContractBroken, CurateEvoError, Denied, ExitCode
from curateevo.api.stage import EvaluateParams, Manifest, StageRequest, SubjectKind, TrainParams, Usage
from curateevo.store.artifacts import fetch_inputs, publish, read_manifest, remember, reuse
from curateevo.store.connect import connect
from curateevo.store.protocol import Store
from curateevo_jobs.checkpoints import open_checkpoints
from curateevo_jobs.progress import open_progress
from curateevo_jobs.stage import Progress, StageResult, StageRun
from curateevo_jobs.training.base_model import fingerprint

SCRATCH_VARIABLE = "CURATEEVO_SCRATCH"
PROGRAMS = ("ingest", "curate", "train", "evaluate", "propose")


def main(argv: list[str] | None = None) -> int:
    """Run one stage. Returns the exit code; the termination log says the same in JSON."""
    parser = argparse.ArgumentParser(prog="python -m curateevo_jobs", description=__doc__)
    parser.add_argument("stage", choices=PROGRAMS)
    parser.add_argument("--request", required=True, type=Path, help="the request, a JSON file")
    parser.add_argument("--termination-log", type=Path, help="where a short JSON about the end goes")
    parser.add_argument("--progress", choices=("auto", "json", "bar"), default="auto")
    options = parser.parse_args(argv)
    progress = open_progress(options.stage, options.progress)
    try:
        request = read_request(options.request, options.stage)
        manifest = run_stage(request, progress)
    except CurateEvoError as error:
        return _end(options.termination_log, options.stage, error.exit_code, type(error).__name__, str(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        full = Denied(f"no space left: {error.filename or error}", "free some space and run again")
        return _end(options.termination_log, options.stage, full.exit_code, "Denied", str(full))
    finally:
        progress.close()
    return _end(options.termination_log, options.stage, ExitCode.OK, manifest.outcome.value, manifest.message)


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
    store = connect(request.store)
    if (done := read_manifest(store, request.prefix)) is not None:
        return done
    salt = _unstored_inputs(request)
    if (shared := reuse(store, request, salt)) is not None:
        progress.report("cached", 1, 1)
        return shared
    return _work(request, store, progress, salt)


def _unstored_inputs(request: StageRequest) -> str:
    """The base model, where it decides the output: what its URI stands for may change."""
    params = request.params
    if isinstance(params, TrainParams) or (
        isinstance(params, EvaluateParams) and any(s.kind is SubjectKind.BASE for s in params.subjects)
    ):
        return fingerprint(params.model)
    return ""


def _work(request: StageRequest, store: Store, progress: Progress, salt: str) -> Manifest:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix=f"curateevo-{request.stage}-", dir=os.environ.get(SCRATCH_VARIABLE)
    ) as name:
        folder = Path(name)
        for part in ("inputs", "output", "scratch"):
            (folder / part).mkdir()
        fetch_inputs(store, request.inputs, folder / "inputs")
        checkpoints = open_checkpoints(store, request.checkpoint_prefix or f"{request.prefix}.checkpoints", folder)
        run = StageRun(request, folder / "inputs", folder / "output", folder / "scratch", checkpoints, progress)
        result = _program(request.params.stage)(run, request.params)
        manifest = publish(
            store,
            request,
            run.output,
            summary=result.summary,
            outcome=result.outcome,
            reason=result.reason,
            message=result.message,
            volatile=result.volatile,
            usage=_usage(result, started),
        )
        if result.cache:
            remember(store, request, manifest, salt)
    return manifest


def _program(stage: str) -> Callable[[StageRun, Any], StageResult]:
    """The program of a stage: the function that its module is named after. Only its own dependencies are imported."""
    program: Callable[[StageRun, Any], StageResult] = getattr(import_module(f"curateevo_jobs.{stage}"), stage)
    return program


def _usage(result: StageResult, started: float) -> Usage:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return Usage(
        seconds=round(time.monotonic() - started, 3),
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
    if log is not None:
        log.write_text(
            json.dumps({"stage": stage, "exitCode": int(code), "outcome": outcome, "message": message[:2000]})
        )
    return int(code)
