"""The ingest program: raw files to a corpus, dev tasks to splits; leaks and broken rows are set aside and named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from curateevo.api.errors import ContractBroken, CorpusInvalid
from curateevo.api.spec import CorpusSource, SuiteRef
from curateevo.api.stage import IngestParams, IngestSummary
from curateevo.trajectories import corpus as layout
from curateevo.trajectories.features import features_of
from curateevo.trajectories.hub import read_hub
from curateevo.trajectories.leakage import LeakIndex
from curateevo.trajectories.model import Trajectory
from curateevo.trajectories.profile import profile_of
from curateevo.trajectories.reading import (
    Reading,
    SetAside,
    collect,
    enforce_limit,
    read_file,
    source_files,
    write_set_aside,
)
from curateevo.trajectories.splits import split_tasks
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.base import Task
from curateevo_jobs.benchmarks.held_out import HeldOut, hold_out
from curateevo_jobs.stage import StageResult, StageRun

LEAKED = "leaked.jsonl"
REPORT_EVERY = 500


@dataclass(frozen=True, slots=True)
class DevTask:
    """What ingest needs to know of a dev task. `group` is what is never split: the task of a held-out decision, or
    variants of one scenario."""

    id: str
    family: str
    group: str
    prompt: str


def ingest(run: StageRun, params: IngestParams) -> StageResult:
    """Raises CorpusInvalid when nothing, or too little, could be read."""
    reading = read_sources(run, params.corpus.sources)
    enforce_limit(reading, params.corpus.max_set_aside_fraction)
    write_set_aside(reading.set_aside, run.output / layout.SET_ASIDE)
    held = _held_out(params.suites, reading.trajectories)
    _write_held_out(held, run.output)
    dev = _dev_tasks(params.suites, held)
    kept, leaked = keep_clean(reading.trajectories, dev, held.task_ids)
    write_set_aside(leaked, run.output / LEAKED)
    if not kept:
        raise CorpusInvalid("every trajectory solves a dev task: nothing is left to learn from")
    run.progress.report("features", 0, len(kept))
    features = features_of(kept)
    layout.write_trajectories(kept, run.output)
    features.write_parquet(run.output / layout.FEATURES)
    run.progress.report("features", len(kept), len(kept))
    profile = profile_of(features)
    _write_json(run.output / layout.PROFILE, profile)
    splits = _split(dev, params)
    _write_json(run.output / layout.SPLITS, splits)
    _write_json(run.output / layout.DEV_PROMPTS, {t.id: t.prompt for t in dev})
    return StageResult(
        IngestSummary(
            trajectories=len(kept),
            turns=profile["turns"],
            successes=profile["success"]["true"],
            set_aside=len(reading.set_aside),
            leaked=len(leaked),
            dev_tasks={name: len(ids) for name, ids in splits.items()},
            formats=reading.formats,
            licences=reading.licences,
        )
    )


def read_sources(run: StageRun, sources: Sequence[CorpusSource]) -> Reading:
    """All sources in order: files, S3 objects, public data sets, or the built-in generator."""
    rows: list[Iterable[Trajectory | SetAside]] = []
    for number, source in enumerate(sources):
        match urlparse(source.uri).scheme:
            case "toolworld":
                path = _generated(source.uri, run.scratch / f"toolworld-{number}.jsonl")
                rows.append(read_file(path, "toolworld"))
            case "s3":
                rows += [read_file(p, source.format) for p in _from_s3(source.uri, run, number)]
            case "hub":
                rows.append(read_hub(source.uri))
            case "" | "file":
                rows += [read_file(p, source.format) for p in source_files(source.uri, Path.cwd())]
            case scheme:
                raise CorpusInvalid(
                    f"corpus source {source.uri!r}: {scheme}:// is not supported",
                    "use a path, file://, s3:// or hub://",
                )

    def report(rows: int) -> None:
        if rows % REPORT_EVERY == 0:
            run.progress.report("rows", rows, 0)

    return collect(chain.from_iterable(rows), report)


def keep_clean(
    trajectories: Sequence[Trajectory], dev: Sequence[DevTask], held_tasks: frozenset[str]
) -> tuple[list[Trajectory], list[SetAside]]:
    """Trajectories in which no dev task stands, and the others with the reason and the words that were found. All
    messages of the user are looked at."""
    index = LeakIndex({t.id: t.prompt for t in dev})
    kept, leaked = [], []
    for trajectory in trajectories:
        if trajectory.task.id in held_tasks:
            leaked.append(SetAside(trajectory.source, 0, f"{trajectory.id}: its task is held out for evaluation"))
        elif found := index.find(trajectory.task.id, _said_by_user(trajectory)):
            quote = f": {found.quote!r}" if found.quote else ""
            leaked.append(SetAside(trajectory.source, 0, f"{trajectory.id}: {found}{quote}"))
        else:
            kept.append(trajectory)
    return kept, leaked


def _said_by_user(trajectory: Trajectory) -> Iterator[str]:
    yield from trajectory.head
    for turn in trajectory.turns:
        yield from turn.users
    yield from trajectory.tail


def _held_out(suites: Sequence[SuiteRef], trajectories: Sequence[Trajectory]) -> HeldOut:
    ref = next((s for s in suites if s.name == "corpus"), None)
    return hold_out(trajectories, ref.params) if ref else HeldOut((), frozenset())


def _write_held_out(held: HeldOut, folder: Path) -> None:
    if held.rows:
        text = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in held.rows)
        (folder / layout.HELD_OUT).write_text(text, encoding="utf-8")


def _dev_tasks(suites: Sequence[SuiteRef], held: HeldOut) -> list[DevTask]:
    out = [DevTask(r["id"], r["family"], r["group"], "") for r in held.rows]
    for ref in suites:
        if ref.name != "corpus":
            tasks = registry.suite(ref.name).tasks(ref.params)
            out += [DevTask(t.id, t.family, t.group or t.id, prompt_of(t)) for t in tasks]
    if suites and not out:
        raise ContractBroken("evaluation.suites: no dev tasks at all", "check the suites' params")
    return out


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
