"""The curate program in steps, so that the policy can run in a container of its own, without keys.

`fetch` and `publish` hold the store's keys; between them `python -m curateevo.policy.contained` runs the policy. Where
policies may request rewrites, `fulfil` comes between the policy's two passes, and holds the model's key as well. In the
work folder lie `visible` (the policy's container may read it), `answers` and `answers-again` (it may write there), and
`trusted` (it never sees it). The artifact is the same, byte for byte, as that of the program in one step.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from curateevo.api.errors import PolicyRejected
from curateevo.api.stage import CurateParams, Manifest, StageRequest
from curateevo.policy import exchange
from curateevo.policy.gate import agree, gate_settings
from curateevo.policy.sandbox import SandboxRun
from curateevo.store.artifacts import fetch_inputs, read_manifest
from curateevo.store.connect import connect
from curateevo.store.protocol import Store
from curateevo_jobs.curate import VISIBLE, conclude, fulfil_requests, lay_out_corpus, write_second_context
from curateevo_jobs.program import find_shared, open_run, publish_result
from curateevo_jobs.rewriting import Fulfilled
from curateevo_jobs.stage import Progress, StageRun

POLICY_SEES = frozenset({exchange.POLICY, exchange.CONTEXT, *VISIBLE})
TRUSTED, SEEN, ANSWERS, ANSWERS_AGAIN = "trusted", "visible", "answers", "answers-again"
REWRITES = "rewrites.json"
"""In `trusted`: what the first pass requested and what became of it."""
BEGUN = "begun"
"""In `trusted`: its time is when the work began."""


def fetch(request: StageRequest, params: CurateParams, work: Path, progress: Progress) -> Manifest | None:
    """Lay out the inputs for the other steps; or mark the work as done, with its manifest, where it is."""
    for name in (SEEN, TRUSTED):
        (work / name).mkdir(parents=True, exist_ok=True)
    for mark in (exchange.DONE, exchange.READY):
        (work / SEEN / mark).unlink(missing_ok=True)
    store = connect(request.store)
    if (done := _find_done(store, request, progress)) is not None:
        (work / SEEN / exchange.DONE).touch()
        return done
    (work / TRUSTED / BEGUN).touch()
    os.utime(work / TRUSTED / BEGUN)
    for path, ref in request.inputs.items():
        fetch_inputs(store, {path: ref}, work / (SEEN if path in POLICY_SEES else TRUSTED))
    exchange.write_settings(work / SEEN, gate_settings(params.sandbox, params.seed))
    (work / SEEN / exchange.READY).touch()
    return None


def fulfil(request: StageRequest, params: CurateParams, work: Path, progress: Progress) -> Manifest | None:
    """Have rewritten what the first pass requests, and lay out the second pass. Nothing for one that requests nothing,
    or is refused: `publish` says so."""
    store = connect(request.store)
    if (done := _find_done(store, request, progress)) is not None:
        return done
    for left in (work / TRUSTED / REWRITES, work / SEEN / exchange.CONTEXT_AGAIN):
        left.unlink(missing_ok=True)
    with _open_run(request, store, work, progress) as run:
        corpus = lay_out_corpus(run)
        try:
            fulfilled = fulfil_requests(run, params, corpus, _agree(run, corpus, work / ANSWERS).recipe)
        except PolicyRejected:
            return None
        if fulfilled is not None:
            (work / TRUSTED / REWRITES).write_text(json.dumps(fulfilled.to_json()), encoding="utf-8")
            write_second_context(run.inputs / exchange.CONTEXT, fulfilled, work / SEEN / exchange.CONTEXT_AGAIN)
    return None


def publish(
    request: StageRequest, params: CurateParams, work: Path, progress: Progress, wait_seconds: float = 0.0
) -> Manifest:
    """Judge the answers and publish. Raises ContractBroken when the policy's container left none."""
    if wait_seconds > 0:
        exchange.await_any([work / SEEN / exchange.DONE, work / ANSWERS / exchange.ANSWERED], wait_seconds)
    store = connect(request.store)
    if (done := _find_done(store, request, progress)) is not None:
        return done
    begun = (work / TRUSTED / BEGUN).stat().st_mtime
    with _open_run(request, store, work, progress) as run:
        corpus, rewrites = lay_out_corpus(run), work / TRUSTED / REWRITES
        fulfilled = Fulfilled.from_json(json.loads(rewrites.read_text("utf-8"))) if rewrites.is_file() else None
        answers = work / (ANSWERS if fulfilled is None else ANSWERS_AGAIN)
        result = conclude(run, params, corpus, lambda: _agree(run, corpus, answers), fulfilled)
        return publish_result(store, run, result, seconds=time.time() - begun)


def _agree(run: StageRun, corpus: Path, answers: Path) -> SandboxRun:
    return agree(run.inputs / exchange.POLICY, corpus, exchange.read_answers(answers))


@contextmanager
def _open_run(request: StageRequest, store: Store, work: Path, progress: Progress) -> Iterator[StageRun]:
    """An attempt whose inputs are those that `fetch` laid out."""
    with open_run(request, store, progress) as run:
        for path in request.inputs:
            link = run.inputs / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((work / (SEEN if path in POLICY_SEES else TRUSTED) / path).resolve())
        yield run


def _find_done(store: Store, request: StageRequest, progress: Progress) -> Manifest | None:
    return read_manifest(store, request.prefix) or find_shared(store, request, progress)
