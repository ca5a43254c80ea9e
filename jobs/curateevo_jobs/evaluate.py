"""The evaluate program: every subject on every task of the asked splits; scores and trajectories out.

Where a version is to beat a champion (`params.against`), sel comes first, in the order of `run_order`, and all ends
once no score of what is left could commit the version.

Everything written is in the order of subjects, task ids and repeats, and holds no time: equal inputs give
equal files (on one kind of machine). Times go to `timings.jsonl`, which is volatile.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Literal, TypeAlias, assert_never

from pydantic import ValidationError

from curateevo.api.base import canonical_json
from curateevo.api.errors import ContractBroken, Transient
from curateevo.api.evolution import EarlyStop
from curateevo.api.stage import (
    AGAINST_SCORES,
    EvaluateParams,
    EvaluateSummary,
    ScoreTable,
    SplitScore,
    Subject,
    SubjectKind,
)
from curateevo.evolution.acceptance import run_order
from curateevo.evolution.stopping import early_stop
from curateevo_jobs.agents.chat import ChatModel, Generation, JsonObject
from curateevo_jobs.agents.episode import Checks, Episode, Rules, State, play, seed_of
from curateevo_jobs.agents.memory import Retriever, parse_item, query_of, with_notes
from curateevo_jobs.agents.nothing import Nothing
from curateevo_jobs.agents.prerequisites import Planned, play_prerequisites
from curateevo_jobs.agents.served import Address, await_one, find_servers, gpus_in_use, in_turn
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.base import Suite, Task
from curateevo_jobs.stage import StageResult, StageRun
from curateevo_jobs.training.libraries import require_libraries

TIMINGS = "timings.jsonl"
OpenSuite: TypeAlias = Callable[[str, Path], Suite]
SHOWN_ERRORS = 3
"""Errors that a message names."""
CHECKS = 16
"""How often each subject's run of sel is looked at, whether it decides."""
GPU_CONCURRENCY, CPU_CONCURRENCY = 64, 16
"""Episodes that ask a server at once."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One subject's run of one task, over."""

    subject: str
    split: str
    repeat: int
    task: Task
    episode: Episode
    success: float | None
    """None: not measured."""
    reward: float | None
    checks: dict[str, bool]

    @property
    def error(self) -> str | None:
        return self.episode.error.message if self.episode.error else None


@dataclass(frozen=True, slots=True)
class Board:
    """The suites' tasks by split, each with the suite that runs it; tasks in the order of their ids."""

    splits: Mapping[str, tuple[Task, ...]]
    suites: Mapping[str, Suite]
    """By task id."""


@dataclass(frozen=True, slots=True)
class Timing:
    subject: str
    split: str
    episodes: int
    tokens: int
    seconds: float


def evaluate(run: StageRun, params: EvaluateParams, open_suite: OpenSuite = registry.suite) -> StageResult:
    """Evaluate all subjects.

    Raises ContractBroken when a split names an unknown task, a model or memory can't be read, another model is served,
    or too many tasks could not be measured; Transient when all of those failed for passing reasons.
    """
    board = lay_out(run.inputs, params, open_suite)
    watch = Watch(params, board, read_champion(run.inputs, params))
    trials: list[Trial] = []
    timings: list[Timing] = []
    servers: Mapping[str, Address] = {}
    if not watch.decided(trials):
        servers = find_servers(run.request, params)
        for subject in in_turn(params.subjects, servers, params.serve_start_seconds):
            with open_model(subject, run, params, servers) as model:
                _play_subject(run, subject, model, watch, trials, timings)
            if watch.stopped is not None:
                break
            check_errors(subject.name, [t for t in trials if t.subject == subject.name], params)
    places = {subject.name: n for n, subject in enumerate(params.subjects)}
    trials.sort(key=lambda t: places[t.subject])
    for split in params.splits:
        played = [t for t in trials if t.split == split]
        if played or split == "sel" or watch.stopped is None:
            _write_split(run.output / split, params.subjects, board.splits[split], played)
    _write_lines(run.output / TIMINGS, [_timing_row(t) for t in timings])
    return StageResult(
        summary=EvaluateSummary(scores=_summarise(params, trials, watch.stopped), stopped=watch.stopped),
        volatile=frozenset({TIMINGS}),
        gpu_seconds=gpus_in_use() * sum(t.seconds for t in timings if t.subject in servers or not servers),
    )


@dataclass(slots=True)
class Watch:
    """Sees to it that an evaluation ends when it is decided."""

    params: EvaluateParams
    board: Board
    champion: ScoreTable | None
    """What the champion scored on sel; None: nothing ends early."""
    stopped: EarlyStop | None = None

    def decided(self, trials: Sequence[Trial]) -> bool:
        """Whether what was played, all of it, decides the verdict."""
        against, losable = self.params.against, self._losable(trials)
        if against is not None and self.champion is not None and losable is not None:
            table = tabulate(self.params.subjects, self.board.splits["sel"], [t for t in trials if t.split == "sel"])
            self.stopped = early_stop(self.champion, table, against, losable, self.params.evaluation.runs)
        return self.stopped is not None

    def _losable(self, trials: Sequence[Trial]) -> int | None:
        """How many more tasks may have no measured run before the evaluation fails; None: it fails already."""
        runs = self.params.evaluation.runs
        allowed = int(self.params.evaluation.max_error_fraction * sum(map(len, self.board.splits.values())) * runs)
        errors = Counter(t.subject for t in trials if t.success is None)
        left = [allowed - errors[subject.name] for subject in self.params.subjects]
        return sum(n // runs for n in left) if min(left) >= 0 else None


def read_champion(inputs: Path, params: EvaluateParams) -> ScoreTable | None:
    """What the version must beat. Raises ContractBroken."""
    if params.against is None:
        return None
    try:
        return ScoreTable.model_validate_json((inputs / AGAINST_SCORES).read_bytes())
    except (OSError, ValidationError) as error:
        raise ContractBroken(f"{AGAINST_SCORES}: no score table of the champion: {error}") from error


def lay_out(inputs: Path, params: EvaluateParams, open_suite: OpenSuite) -> Board:
    """The tasks to run. Raises ContractBroken for an unknown or ambiguous task id."""
    tasks: dict[str, Task] = {}
    suites: dict[str, Suite] = {}
    for ref in params.evaluation.suites:
        suite = open_suite(ref.name, inputs)
        for task in suite.tasks(ref.params):
            if task.id in tasks:
                raise ContractBroken(f"two suites have a task {task.id!r}")
            tasks[task.id] = task
            suites[task.id] = suite
    wanted = json.loads((inputs / "splits.json").read_text())
    splits: dict[str, tuple[Task, ...]] = {}
    for split in params.splits:
        if unknown := [i for i in wanted.get(split, ()) if i not in tasks]:
            raise ContractBroken(f"{len(unknown)} tasks of split {split} are in no suite, first {unknown[0]!r}")
        splits[split] = tuple(tasks[i] for i in sorted(wanted.get(split, ())))
    return Board(splits, suites)


@contextmanager
def open_model(
    subject: Subject, run: StageRun, params: EvaluateParams, servers: Mapping[str, Address]
) -> Iterator[ChatModel]:
    """The subject's model, while the context lasts: behind its server in `servers`, or loaded or served here."""
    if subject.name in servers:
        mine = {subject.name: servers[subject.name]}  # it goes where its node goes, and another comes

        def await_back() -> None:
            await_one(mine, params.serve_start_seconds)

        with open_endpoint(servers[subject.name], await_back) as endpoint:
            yield endpoint
        return
    template = params.model.chat_template
    match subject.kind:
        case SubjectKind.NOTHING:
            yield Nothing()
            return
        case SubjectKind.BASE:
            from curateevo_jobs.training.base_model import find_base

            folder = find_base(params.model, endpoint=run.request.store.endpoint, downloads=run.scratch)
        case SubjectKind.MODEL:
            folder = run.inputs / subject.name / "model"
            if not (folder / "config.json").is_file():
                raise ContractBroken(f"subject {subject.name} has no model at {folder}")
        case _:
            assert_never(subject.kind)
    if params.serving.engine == "transformers":
        require_libraries("serving.engine transformers", ("torch", "transformers"))
        from curateevo_jobs.agents import inprocess

        yield inprocess.load(folder, template)
        return
    from curateevo_jobs.agents.vllm import serve

    with (
        serve(
            folder,
            arguments=params.serving.args,
            chat_template=template,
            start_seconds=params.serve_start_seconds,
            scratch=run.scratch,
        ) as server,
        open_endpoint(Address(server.base_url, server.model)) as endpoint,
    ):
        yield endpoint


@contextmanager
def open_endpoint(server: Address, await_back: Callable[[], None] = lambda: None) -> Iterator[ChatModel]:
    """The model behind a server, while the context lasts. `await_back`: see Endpoint."""
    from curateevo_jobs.agents.endpoint import Endpoint

    concurrency = GPU_CONCURRENCY if gpus_in_use() else CPU_CONCURRENCY
    endpoint = Endpoint(server.base_url, server.model, concurrency=concurrency, await_back=await_back)
    try:
        yield endpoint
    finally:
        endpoint.close()


def _memory_of(subject: Subject, inputs: Path, params: EvaluateParams) -> Retriever | None:
    path = inputs / subject.name / "memory.jsonl"
    if not params.memory.enabled or subject.kind is not SubjectKind.MODEL or not path.is_file():
        return None
    try:
        items = [parse_item(json.loads(line)) for line in path.read_text().splitlines() if line]
    except (json.JSONDecodeError, KeyError) as error:
        raise ContractBroken(f"{path.relative_to(inputs)} holds a row that is no memory item: {error}") from error
    return Retriever(items, params.memory.k)


def _play_subject(
    run: StageRun, subject: Subject, model: ChatModel, watch: Watch, trials: list[Trial], timings: list[Timing]
) -> None:
    """Add the subject's trials to `trials`, split by split, sel first, until all is decided."""
    retriever = _memory_of(subject, run.inputs, watch.params)
    for split in sorted(watch.params.splits, key=lambda name: name != "sel"):
        started = time.monotonic()
        played = _play_split(run, subject, split, model, retriever, watch, trials)
        trials += played
        tokens = sum(t.episode.tokens for t in played)
        timings.append(Timing(subject.name, split, len(played), tokens, time.monotonic() - started))
        if watch.stopped is not None:
            return


def _play_split(
    run: StageRun,
    subject: Subject,
    split: Literal["diag", "sel", "test"],
    model: ChatModel,
    retriever: Retriever | None,
    watch: Watch,
    before: Sequence[Trial],
) -> list[Trial]:
    """The trials of one subject on one split, by task id and repeat: all, or as many as decide. `before`: what was
    played already."""
    params, board = watch.params, watch.board
    sampling, runs = params.evaluation.sampling, params.evaluation.runs
    rules = Rules(Generation(sampling.temperature, sampling.max_tokens), sampling.max_turns)
    tasks = {task.id: task for task in board.splits[split]}
    watched = watch.champion if split == "sel" else None
    order = list(tasks) if watched is None else run_order(watched, tasks)
    plan = [(tasks[i], repeat) for i, repeat in product(order, range(runs))]

    def open_episode(planned: Planned) -> Episode:
        task = planned.task
        notes = retriever.notes(query_of(task.messages)) if retriever else []
        messages = with_notes(task.messages, notes, params.memory.place)
        seed = seed_of(params.seed, task.id, planned.repeat)
        return Episode(seed, messages, task.tools, planned.suite.environment(task.state), error=planned.error)

    phase = f"{subject.name}/{split}"
    run.progress.report(phase, 0, len(plan), repeats=float(runs))
    planned = [Planned(task, board.suites[task.id], repeat) for task, repeat in plan]
    episodes = [open_episode(p) for p in play_prerequisites(model, planned, rules, open_episode)]
    trials: list[Trial] = []

    def judge(over: int) -> list[Trial]:
        for (task, repeat), episode in list(zip(plan, episodes, strict=True))[len(trials) : over]:
            trials.append(_judge(subject.name, split, repeat, task, episode))
        return trials

    checks = Checks(runs * max(1, -(-len(tasks) // CHECKS)), lambda over: watch.decided([*before, *judge(over)]))
    over = play(
        model,
        episodes,
        rules,
        lambda done: run.progress.report(phase, done, len(episodes)),
        None if watched is None else checks,
    )
    return sorted(judge(over), key=lambda trial: (trial.task.id, trial.repeat))


def _judge(subject: str, split: str, repeat: int, task: Task, episode: Episode) -> Trial:
    if episode.state is State.FAILED:
        return Trial(subject, split, repeat, task, episode, None, None, {})
    score = episode.score()
    return Trial(subject, split, repeat, task, episode, score.success, score.reward, score.checks)


def check_errors(subject: str, trials: Sequence[Trial], params: EvaluateParams) -> None:
    """Raise when more trials than allowed were not measured."""
    errors = [(t, t.episode.error) for t in trials if t.episode.error is not None]
    if len(errors) <= params.evaluation.max_error_fraction * len(trials):
        return
    shown = "; ".join(f"{t.task.id}: {e.message}" for t, e in errors[:SHOWN_ERRORS] if e)
    message = f"TooManyErrors: {len(errors)} of {len(trials)} trials of {subject} could not be measured: {shown}"
    if all(e is not None and e.transient for _, e in errors):
        raise Transient(message)
    raise ContractBroken(message, "evaluation.maxErrorFraction is the allowed share")


def _write_split(folder: Path, subjects: Sequence[Subject], tasks: Sequence[Task], trials: Sequence[Trial]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = tabulate(subjects, tasks, trials)
    # None is a score here (not measured), so that `to_wire`, which leaves None out, will not do.
    text = canonical_json(table.model_dump(mode="json", by_alias=True))
    (folder / "scores.json").write_text(text)
    _write_lines(folder / "results.jsonl", [_result_row(t) for t in trials])
    _write_lines(folder / "trajectories.jsonl", [_trajectory_row(t) for t in trials])


def tabulate(subjects: Sequence[Subject], tasks: Sequence[Task], trials: Sequence[Trial]) -> ScoreTable:
    """Trials of one split as a table: the same tasks in the same order for every subject."""
    families = {task.id: task.family for task in tasks}
    ids = tuple(sorted(families))
    groups = {task.id: task.group or task.id for task in tasks}
    grouped = len(set(groups.values())) < len(groups)
    scores: dict[str, dict[str, list[float | None]]] = {s.name: {i: [] for i in ids} for s in subjects}
    for trial in trials:
        scores[trial.subject][trial.task.id].append(trial.success)
    return ScoreTable(
        tasks=ids,
        families=tuple(families[i] for i in ids),
        groups=tuple(groups[i] for i in ids) if grouped else (),
        scores={name: tuple(tuple(rows[i]) for i in ids) for name, rows in scores.items()},
    )


def _summarise(
    params: EvaluateParams, trials: Sequence[Trial], stopped: EarlyStop | None
) -> dict[str, dict[str, SplitScore]]:
    """Scores by subject and split; after an early end only those of which something was run."""
    out: dict[str, dict[str, SplitScore]] = {}
    for subject, split in product(params.subjects, params.splits):
        played = [t for t in trials if t.subject == subject.name and t.split == split]
        if played or stopped is None:
            out.setdefault(subject.name, {})[split] = score_split(played)
    return out


def score_split(trials: Sequence[Trial]) -> SplitScore:
    """Means over tasks of the mean over a task's measured repeats; a task without any is left out."""
    by_task: dict[str, list[float]] = {}
    family_of = {t.task.id: t.task.family for t in trials}
    for trial in trials:
        if trial.success is not None:
            by_task.setdefault(trial.task.id, []).append(trial.success)
    means = {task: fmean(values) for task, values in by_task.items()}
    families: dict[str, list[float]] = {}
    for task, mean in means.items():
        families.setdefault(family_of[task], []).append(mean)
    return SplitScore(
        p=fmean(means.values()) if means else 0.0,
        tasks=len(family_of),
        errors=sum(t.success is None for t in trials),
        tokens=sum(t.episode.tokens for t in trials),
        families={family: fmean(values) for family, values in sorted(families.items())},
    )


def _result_row(trial: Trial) -> JsonObject:
    return {
        "subject": trial.subject,
        "task": trial.task.id,
        "family": trial.task.family,
        "repeat": trial.repeat,
        "success": trial.success,
        "reward": trial.reward,
        "checks": trial.checks,
        "tokens": trial.episode.tokens,
        "turns": trial.episode.turns,
        "error": trial.error,
    }


def _trajectory_row(trial: Trial) -> JsonObject:
    return {
        "subject": trial.subject,
        "task": trial.task.id,
        "family": trial.task.family,
        "repeat": trial.repeat,
        "success": trial.success,
        "messages": trial.episode.messages,
        "tools": list(trial.episode.tools),
    }


def _timing_row(timing: Timing) -> JsonObject:
    return {
        "subject": timing.subject,
        "split": timing.split,
        "episodes": timing.episodes,
        "tokens": timing.tokens,
        "seconds": round(timing.seconds, 3),
    }


def _write_lines(path: Path, rows: Sequence[JsonObject]) -> None:
    path.write_text("".join(canonical_json(row) + "\n" for row in rows))
