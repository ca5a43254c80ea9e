"""The ingest program: raw files to a corpus, dev tasks to splits; leaks and broken rows are set aside and named."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import numpy as np
import polars as pl

from curateevo.api.errors import ContractBroken, CorpusInvalid
from curateevo.api.spec import BaseModelRef, CorpusSource, SuiteRef
from curateevo.api.stage import IngestParams, IngestSummary
from curateevo.trajectories import corpus as layout
from curateevo.trajectories.grace import grace_columns
from curateevo.trajectories.hub import read_hub
from curateevo.trajectories.model import JsonObject
from curateevo.trajectories.profile import profile_of
from curateevo.trajectories.reading import SetAside, enforce_limit, source_files, write_set_aside
from curateevo.trajectories.splits import split_tasks
from curateevo_jobs.agents.hardware import count_gpus
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.base import Task
from curateevo_jobs.benchmarks.held_out import held_tasks, hold_out
from curateevo_jobs.intake import POOL_BYTES, Batch, Intake, file_batches, row_batches, take_in
from curateevo_jobs.stage import StageResult, StageRun
from curateevo_jobs.training.libraries import require_libraries

LEAKED = "leaked.jsonl"
NAMED_HELD_OUT = 3


@dataclass(frozen=True, slots=True)
class DevTask:
    """What ingest needs to know of a dev task. `group` is what is never split: the task of a held-out decision, or
    variants of one scenario."""

    id: str
    family: str
    group: str
    prompt: str


def ingest(run: StageRun, params: IngestParams) -> StageResult:
    """Raises CorpusInvalid when nothing, or too little, could be read, or when nothing is left of it; Denied when turns
    are to be scored and the libraries for that are not installed."""
    if params.model is not None:
        require_libraries("scoring turns (grace)")
    dev = _suite_tasks(params.suites)
    intake = read_sources(run, params.corpus.sources, {t.id: t.prompt for t in dev})
    enforce_limit(intake.read, intake.set_aside, params.corpus.max_set_aside_fraction)
    write_set_aside(intake.set_aside, run.output / layout.SET_ASIDE)
    run.progress.report("corpus", 0, intake.read)
    rows, features, held_back = intake.rows(), intake.features(), list[SetAside]()
    if held_out := next((s for s in params.suites if s.name == "corpus"), None):
        held = held_tasks(features.select("task_id").collect()["task_id"], held_out.params)
        is_held = pl.col("task_id").is_in(sorted(held))
        points = hold_out(layout.iterate_trajectories(rows.filter(is_held)), held_out.params)
        _write_held_out(points, run.output)
        dev = [DevTask(r["id"], r["family"], r["group"], "") for r in points] + dev
        held_back = held_runs(rows.filter(is_held))
        rows, features = rows.filter(~is_held), features.filter(~is_held)
    leaked = held_back + intake.leaked
    if len(leaked) == intake.read:
        raise nothing_left(held_back, intake.leaked)
    if params.suites and not dev:
        raise ContractBroken("evaluation.suites: no dev tasks at all", "check the suites' params")
    write_set_aside(leaked, run.output / LEAKED)
    layout.write_rows(rows, run.output)
    features.sink_parquet(run.output / layout.FEATURES, row_group_size=layout.ROW_GROUP)
    run.progress.report("corpus", intake.read, intake.read)
    started = time.monotonic()
    unscored = 0 if params.model is None else _score_turns(run, params.model, rows)
    gpu_seconds = 0.0 if params.model is None else count_gpus() * (time.monotonic() - started)
    profile = profile_of(layout.read_features(run.output))
    _write_json(run.output / layout.PROFILE, profile)
    splits = _split(dev, params)
    _write_json(run.output / layout.SPLITS, splits)
    _write_json(run.output / layout.DEV_PROMPTS, {t.id: t.prompt for t in dev})
    return StageResult(
        IngestSummary(
            trajectories=profile["trajectories"],
            turns=profile["turns"],
            successes=profile["success"]["true"],
            set_aside=len(intake.set_aside),
            leaked=len(leaked),
            dev_tasks={name: len(ids) for name, ids in splits.items()},
            formats=dict(intake.formats.most_common()),
            licences=dict(intake.licences.most_common()),
            unscored=unscored,
        ),
        gpu_seconds=gpu_seconds,
    )


def read_sources(run: StageRun, sources: Sequence[CorpusSource], dev_prompts: dict[str, str]) -> Intake:
    """All sources in order: files, S3 objects, public data sets, or the built-in generator."""
    batches: list[Iterable[Batch]] = []
    size = 0
    for number, source in enumerate(sources):
        match urlparse(source.uri).scheme:
            case "toolworld":
                files = [_generated(source.uri, run.scratch / f"toolworld-{number}.jsonl")]
                batches.append(file_batches(files[0], "toolworld"))
            case "s3":
                files = _from_s3(source.uri, run, number)
                batches += [file_batches(path, source.format) for path in files]
            case "hub":
                files = []
                batches.append(row_batches(read_hub(source.uri)))
            case "" | "file":
                files = source_files(source.uri, Path.cwd())
                batches += [file_batches(path, source.format) for path in files]
            case scheme:
                raise CorpusInvalid(
                    f"corpus source {source.uri!r}: {scheme}:// is not supported",
                    "use a path, file://, s3:// or hub://",
                )
        size += sum(path.stat().st_size for path in files)
    parts = run.scratch / "parts"
    parts.mkdir()
    return take_in(
        chain.from_iterable(batches),
        parts,
        dev_prompts,
        processes=pl.thread_pool_size() if size >= POOL_BYTES else 1,
        on_rows=lambda rows: run.progress.report("rows", rows, 0),
    )


def _score_turns(run: StageRun, model: BaseModelRef, rows: pl.LazyFrame) -> int:
    """Add GRACE's columns to the features. How many trajectories have no scores."""
    from curateevo_jobs.training.base_model import find_base
    from curateevo_jobs.training.grace import TurnSignals

    features = layout.read_features(run.output)
    base = find_base(model, endpoint=run.request.store.endpoint, downloads=run.scratch)
    asked = TurnSignals(base, model.chat_template)
    shape = (int(features["turns"].sum()), asked.width)
    signals = np.memmap(run.scratch / "signals.f32", dtype=np.float32, mode="w+", shape=shape)
    start, unscored = 0, 0
    for number, trajectory in enumerate(layout.iterate_trajectories(rows), start=1):
        end, found = start + len(trajectory.turns), asked.of(trajectory)
        signals[start:end] = np.nan if found is None else found
        unscored += found is None
        start = end
        run.progress.report("grace", number, features.height)
    scored = features.hstack(grace_columns(features, signals))
    scored.write_parquet(run.output / layout.FEATURES, row_group_size=layout.ROW_GROUP)
    return unscored


def held_runs(rows: pl.LazyFrame) -> list[SetAside]:
    """Why runs of held-out tasks are left out."""
    found = rows.select("id", "source").collect().iter_rows()
    return [SetAside(source, 0, f"{name}: its task is held out for evaluation") for name, source in found]


def nothing_left(held_back: Sequence[SetAside], leaked: Sequence[SetAside]) -> CorpusInvalid:
    """Why no trajectory is left: runs of tasks that suite corpus holds out, and runs that contain a dev task."""
    counts = ((len(held_back), "of tasks that suite corpus holds out"), (len(leaked), "with a dev task in them"))
    told = " and ".join(f"{count} {what}" for count, what in counts if count)
    total = len(held_back) + len(leaked)
    named = "\n".join(f"  {item.file}: {item.reason}" for item in (*leaked, *held_back)[:NAMED_HELD_OUT])
    return CorpusInvalid(
        f"nothing is left to learn from: all {total} trajectories were held out, {told}:\n{named}",
        "add trajectories of other tasks, or hold out less: the params of evaluation.suites",
    )


def _write_held_out(rows: Sequence[JsonObject], folder: Path) -> None:
    if rows:
        text = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)
        (folder / layout.HELD_OUT).write_text(text, encoding="utf-8")


def _suite_tasks(suites: Sequence[SuiteRef]) -> list[DevTask]:
    """The dev tasks that are there before the corpus is read."""
    found = [t for s in suites if s.name != "corpus" for t in registry.suite(s.name).tasks(s.params)]
    return [DevTask(t.id, t.family, t.group or t.id, prompt_of(t)) for t in found]


def prompt_of(task: Task) -> str:
    """All that the user says in a task, also later: what a trajectory of it would hold."""
    opening = [str(m.get("content") or "") for m in task.messages if m["role"] == "user"]
    return "\n".join((*opening, *task.later_prompts))


def _split(dev: Sequence[DevTask], params: IngestParams) -> dict[str, list[str]]:
    groups = {t.group: t.family for t in dev}
    where = {g: name for name, ids in split_tasks(groups.items(), params.splits).items() for g in ids}
    out: dict[str, list[str]] = {"diag": [], "sel": [], "test": []}
    for task in dev:
        out[where[task.group]].append(task.id)
    if dev and not out["sel"]:
        raise ContractBroken(
            f"{len(dev)} dev tasks are too few: none falls to sel",
            "raise evaluation.splits.sel, or add tasks",
        )
    return {name: sorted(ids) for name, ids in out.items()}


def _generated(uri: str, target: Path) -> Path:
    """toolworld://?seed=N, written as JSONL."""
    from curateevo_jobs.benchmarks.toolworld.corpus import generate

    query = parse_qs(urlparse(uri).query)
    try:
        seed = int(query.get("seed", ["0"])[0])
    except ValueError as error:
        raise CorpusInvalid(f"corpus source {uri!r}: seed must be a whole number") from error
    rows, _ = generate(seed)
    target.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return target


def _from_s3(uri: str, run: StageRun, number: int) -> list[Path]:
    from curateevo.store.s3 import fetch_objects

    found = fetch_objects(uri, run.request.store.endpoint, run.scratch / f"s3-{number}")
    if not found:
        raise CorpusInvalid(f"corpus source {uri!r}: no such object", "check bucket and prefix")
    return found


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, sort_keys=True), encoding="utf-8")
