"""The curate program in steps, so that the policy can run in a container of its own, without keys.

`fetch` and `publish` hold the store's keys; between them `python -m curateevo.policy.contained` runs the policy. In the
work folder lie `visible` (the policy's container may read it), `answers` (it may write there), and `trusted` (it never
sees it). The artifact is the same, byte for byte, as that of the program in one step.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from curateevo.api.stage import CurateParams, Manifest, StageRequest
from curateevo.policy import exchange
from curateevo.policy.gate import agree, gate_settings
from curateevo.store.artifacts import fetch_inputs, read_manifest
from curateevo.store.connect import connect
from curateevo.store.protocol import Store
from curateevo_jobs.curate import VISIBLE, conclude, lay_out_corpus
from curateevo_jobs.program import find_shared, open_run, publish_result
from curateevo_jobs.stage import Progress

POLICY_SEES = frozenset({exchange.POLICY, exchange.CONTEXT, *VISIBLE})
TRUSTED, SEEN, ANSWERS = "trusted", "visible", "answers"
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
    with open_run(request, store, progress) as run:
        for path in request.inputs:
            link = run.inputs / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((work / (SEEN if path in POLICY_SEES else TRUSTED) / path).resolve())
        policy, corpus = run.inputs / exchange.POLICY, lay_out_corpus(run)
        result = conclude(run, params, corpus, lambda: agree(policy, corpus, exchange.read_answers(work / ANSWERS)))
        return publish_result(store, run, result, seconds=time.time() - begun)


def _find_done(store: Store, request: StageRequest, progress: Progress) -> Manifest | None:
    return read_manifest(store, request.prefix) or find_shared(store, request, progress)
