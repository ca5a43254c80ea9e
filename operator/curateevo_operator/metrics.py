"""Metrics of the operator and of each evolution, as docs/metrics.md explains. The series of an evolution go with it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, disable_created_metrics

from curateevo.api.evolution import (
    Condition,
    CurationEvolution,
    EvolutionPhase,
    EvolutionStatus,
    PolicyVersion,
    Reason,
    Stage,
    StageState,
    StageStatus,
)
from curateevo.api.spec import EvolutionSpec
from curateevo.api.stage import Manifest
from curateevo.evolution.plan_version import deadline_seconds

OBJECT = ("namespace", "evolution")
RESTING = frozenset({EvolutionPhase.SUSPENDED, EvolutionPhase.COMPLETE, EvolutionPhase.FAILED})
Own = tuple[str, str]
"""Namespace and name of an evolution."""
Place = tuple[int | None, str]
"""A stage: of a version, or of an evolution's own."""


@dataclass(slots=True)
class Outcome:
    result: str = "ok"


@dataclass(slots=True)
class _Before:
    """What an evolution was seen at last, so that what has happened since is counted once."""

    settled: int
    """Highest version with a verdict."""
    failures: dict[Place, int] = field(default_factory=dict)
    pending: dict[Place, int] = field(default_factory=dict)
    """Attempts that wait for a node or a queue."""


class Metrics:
    """All begin with `curateevo_`. Gauges of an evolution are set from its saved status: a restart loses none. Counters
    count what this process has seen, and begin at 0 with it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each counter, of no use
        self._of_objects: list[Gauge | Counter | Summary] = []
        self._before: dict[Own, _Before] = {}
        self._info: dict[Own, tuple[str, str]] = {}
        self._registry = registry
        self._make_gauges()
        self._make_counters()
        self._make_own()

    def _gauge(self, name: str, text: str, *more: str) -> Gauge:
        made = Gauge(f"curateevo_evolution_{name}", text, (*OBJECT, *more), registry=self._registry)
        self._of_objects.append(made)
        return made

    def _make_gauges(self) -> None:
        self.info = self._gauge("info", "1 for each evolution, with its model and proposer.", "model", "proposer")
        self.phase = self._gauge("phase", "1 for the phase that an evolution is in, 0 for the others.", "phase")
        self.condition = self._gauge("condition", "1 for True, 0 for False, -1 for Unknown, by type.", "type")
        self.round = self._gauge("round", "Number of the version under test, or of the last one.")
        self.max_rounds = self._gauge("max_rounds", "spec.rounds.max: the last round's number.")
        self.streak = self._gauge("rounds_since_commit", "Rounds since the last commit.")
        self.verdicts = self._gauge("versions", "Versions by verdict.", "verdict")
        self.score = self._gauge("score", "P of the champion: mean success on sel, 0..1.")
        self.cost = self._gauge("cost", "C of the champion, 0..1.")
        self.objective = self._gauge("objective", "J = P - lambda C of the champion.")
        self.turns = self._gauge("turns", "Turns of the champion's resources.", "resource")
        self.gpu = self._gauge("gpu_seconds", "GPU seconds of the rounds that are decided.")
        self.tokens = self._gauge("evolver_tokens", "Tokens of the evolver's LLM.")
        self.calls = self._gauge("evolver_calls", "Calls of the evolver's LLM.")
        self.dollars = self._gauge("evolver_dollars", "US dollars for the evolver's LLM.")
        self.rewriting_tokens = self._gauge("rewriting_tokens", "Tokens of the LLM that rewrites at policies' request.")
        self.rewriting_calls = self._gauge("rewriting_calls", "Calls of that LLM.")
        self.rewriting_dollars = self._gauge("rewriting_dollars", "US dollars for that LLM.")
        self.pending = self._gauge(
            "pending_seconds", "Seconds that the stage at work has waited for a node or a queue."
        )
        self.attempts = self._gauge(
            "stage_failures", "Failed attempts of the stages of the version under test.", "stage", "kind"
        )
        self.progress = self._gauge("progress_timestamp_seconds", "When an attempt of a stage began last, Unix time.")
        self.deadline = self._gauge(
            "deadline_timestamp_seconds", "When the stage at work has ended or is given up, by the spec, Unix time."
        )
        self.completed = self._gauge("completed_timestamp_seconds", "When the evolution ended, Unix time.")

    def _make_counters(self) -> None:
        def summary(name: str, text: str, *more: str) -> Summary:
            return Summary(f"curateevo_{name}", text, (*OBJECT, *more), registry=self._registry)

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"curateevo_{name}", text, (*OBJECT, *more), registry=self._registry)

        # Sums and counts: buckets would be ten series more for each, of a few rounds a day.
        self.stage_seconds = summary(
            "stage_seconds", "Seconds that a stage's program ran, by its outcome.", "stage", "outcome"
        )
        self.round_seconds = summary(
            "round_seconds", "Seconds from the begin of a version's curation to its verdict.", "verdict"
        )
        self.wait_seconds = summary(
            "stage_wait_seconds", "Seconds that attempts waited for a node or a queue, of those that did.", "stage"
        )
        self.failures = counter("stage_failures_total", "Attempts that failed, by reason.", "stage", "reason")
        self.store_errors = counter("store_errors_total", "Passes that the artifact store put off.", "kind")
        self._of_objects += [
            self.stage_seconds,
            self.round_seconds,
            self.wait_seconds,
            self.failures,
            self.store_errors,
        ]

    def _make_own(self) -> None:
        registry = self._registry
        self.reconciles = Counter("curateevo_reconciles_total", "Passes by result.", ("result",), registry=registry)
        self.reconcile_seconds = Histogram(
            "curateevo_reconcile_seconds",
            "Seconds of a pass.",
            (),
            registry=registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
        )
        self.watch = Gauge(
            "curateevo_last_watch_event_timestamp_seconds",
            "When the last watch event came, Unix time.",
            ("kind",),
            registry=registry,
        )
        self.api_requests = Counter(
            "curateevo_api_requests_total",
            "Requests to the API server, watches aside.",
            ("verb", "resource"),
            registry=registry,
        )
        self.loop_lag = Histogram(
            "curateevo_event_loop_lag_seconds",
            "How much later than asked a task of the event loop wakes.",
            registry=registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 5),
        )
        self.deaf = Gauge("curateevo_deaf", "1 while a watch is missing.", registry=registry)

    # ---- the operator's own

    @contextmanager
    def reconcile(self) -> Iterator[Outcome]:
        """Count and time a pass."""
        outcome, began = Outcome(), time.monotonic()
        try:
            yield outcome
        finally:
            self.reconcile_seconds.observe(time.monotonic() - began)
            self.reconciles.labels(outcome.result).inc()

    def count_call(self, verb: str, resource: str) -> None:
        self.api_requests.labels(verb, resource).inc()

    # ---- evolutions

    def show(self, evolution: CurationEvolution, versions: Iterable[PolicyVersion], now: float) -> None:
        """Set the gauges of an evolution from its status, and count what has happened since the last time."""
        meta, spec, status = evolution.metadata, evolution.spec, evolution.status
        own, found = (meta.namespace, meta.name), list(versions)
        self._show_info(own, (spec.model.base, spec.proposer.type.value))
        for phase in EvolutionPhase:
            self.phase.labels(*own, phase.value).set(phase is status.phase)
        self.show_conditions(*own, status.conditions)
        self.round.labels(*own).set(status.round)
        self.max_rounds.labels(*own).set(spec.rounds.max)
        self.streak.labels(*own).set(status.streak)
        for verdict, count in status.counts.to_wire().items():
            self.verdicts.labels(*own, verdict).set(count)
        self.gpu.labels(*own).set(status.spent.gpu_seconds)
        self.tokens.labels(*own).set(status.spent.tokens)
        self.calls.labels(*own).set(status.spent.calls)
        self.dollars.labels(*own).set(status.spent.usd)
        if (rewriting := status.spent.augmentation) is not None:
            self.rewriting_tokens.labels(*own).set(rewriting.tokens)
            self.rewriting_calls.labels(*own).set(rewriting.calls)
            self.rewriting_dollars.labels(*own).set(rewriting.usd)
        if status.completed_at is not None:
            self.completed.labels(*own).set(status.completed_at)
        self._show_champion(own, status, found)
        self._show_stages(own, spec, status, found, now)

    def show_conditions(self, namespace: str, name: str, conditions: Iterable[Condition]) -> None:
        """Also for an evolution that no plan could be made for: its other gauges keep their values."""
        for condition in conditions:
            value = {"True": 1, "False": 0}.get(condition.status, -1)
            self.condition.labels(namespace, name, condition.type).set(value)

    def _show_info(self, own: Own, info: tuple[str, str]) -> None:
        old = self._info.get(own, info)
        if old != info:
            self.info.remove(*own, *old)
        self._info[own] = info
        self.info.labels(*own, *info).set(1)

    def _show_champion(self, own: Own, status: EvolutionStatus, versions: list[PolicyVersion]) -> None:
        if (champion := status.champion) is None:
            return
        self.score.labels(*own).set(champion.p)
        self.cost.labels(*own).set(champion.c)
        self.objective.labels(*own).set(champion.j)
        version = next((v for v in versions if v.spec.number == champion.number), None)
        if version is not None and version.status.measurement is not None:
            self.turns.labels(*own, "sft").set(version.status.measurement.sft_turns)
            self.turns.labels(*own, "rl").set(version.status.measurement.rl_turns)

    def _show_stages(
        self, own: Own, spec: EvolutionSpec, status: EvolutionStatus, versions: list[PolicyVersion], now: float
    ) -> None:
        settled = max((v.spec.number for v in versions if v.status.verdict is not None), default=-1)
        before = self._before.get(own)
        known = before.settled if before is not None else settled
        recent = [v for v in versions if v.spec.number > known]
        stages: dict[Place, StageStatus] = {(_number(status, name), name): s for name, s in status.stages.items()}
        stages |= {(v.spec.number, name): s for v in recent for name, s in v.status.stages.items()}

        failures = {place: s.infrastructure_failures + s.application_failures for place, s in stages.items()}
        pending = {place: s.attempt for place, s in stages.items() if _waits(s)}
        if before is not None:
            self._count_failures(own, stages, failures, before)
            self._count_waits(own, stages, before, now)
            self._count_rounds(own, recent, now)
        self._before[own] = _Before(settled, failures, pending)

        for (_, name), stage in stages.items():
            self.attempts.labels(*own, name, "infrastructure").set(stage.infrastructure_failures)
            self.attempts.labels(*own, name, "application").set(stage.application_failures)
        self.pending.labels(*own).set(
            max((now - (s.started_at or now) for s in stages.values() if _waits(s)), default=0.0)
        )
        self._show_deadline(own, spec, status, stages)

    def _show_deadline(
        self, own: Own, spec: EvolutionSpec, status: EvolutionStatus, stages: dict[Place, StageStatus]
    ) -> None:
        """By when something must have happened. Between two stages that is now: the time of the last progress."""
        latest = max((s.started_at or 0.0 for s in stages.values()), default=0.0) or status.started_at
        if latest is None:
            return
        self.progress.labels(*own).set(latest)
        if status.phase in RESTING or status.reason is Reason.AWAITING_POLICY:
            self.deadline.remove(*own)
            return
        ends = (_ends_at(spec, name, stage) for (_, name), stage in stages.items())
        self.deadline.labels(*own).set(max((end for end in ends if end is not None), default=latest))

    def _count_failures(
        self, own: Own, stages: dict[Place, StageStatus], failures: dict[Place, int], before: _Before
    ) -> None:
        for place, count in failures.items():
            more = count - before.failures.get(place, 0)
            if more > 0:
                reason = stages[place].reason
                self.failures.labels(*own, place[1], reason.value if reason else "Unknown").inc(more)

    def _count_waits(self, own: Own, stages: dict[Place, StageStatus], before: _Before, now: float) -> None:
        for place, attempt in before.pending.items():
            stage = stages.get(place)
            runs = stage is not None and stage.state is StageState.ACTIVE and not stage.message
            if stage is not None and runs and stage.attempt == attempt and stage.started_at is not None:
                self.wait_seconds.labels(*own, place[1]).observe(max(0.0, now - stage.started_at))

    def _count_rounds(self, own: Own, recent: list[PolicyVersion], now: float) -> None:
        for version in recent:
            began = [s.started_at for s in version.status.stages.values() if s.started_at is not None]
            if version.status.verdict is not None and began:
                self.round_seconds.labels(*own, version.status.verdict.value).observe(max(0.0, now - min(began)))

    def stage_done(self, evolution: CurationEvolution, stage: str, manifest: Manifest) -> None:
        """Count a stage that has just ended."""
        own = (evolution.metadata.namespace, evolution.metadata.name)
        outcome = "Cached" if manifest.cached_from else manifest.outcome.value
        self.stage_seconds.labels(*own, stage, outcome).observe(manifest.usage.seconds)

    def forget(self, namespace: str, name: str) -> None:
        """Remove the series of an evolution that is gone."""
        self._before.pop((namespace, name), None)
        self._info.pop((namespace, name), None)
        for metric in self._of_objects:
            metric.remove_by_labels({"namespace": namespace, "evolution": name})


def _number(status: EvolutionStatus, stage: str) -> int | None:
    """propose is made anew for each round; the evolution's other stages are once."""
    return status.round if stage == Stage.PROPOSE.value else None


def _waits(stage: StageStatus) -> bool:
    """Whether an attempt waits for a node, a queue or quota: its message is their words."""
    return stage.state is StageState.ACTIVE and bool(stage.message) and stage.started_at is not None


def _ends_at(spec: EvolutionSpec, name: str, stage: StageStatus) -> float | None:
    """When an attempt is given up at the latest, or the next one begins; None when neither is to be expected."""
    if stage.state is StageState.WAITING:
        return stage.retry_at
    if stage.state is not StageState.ACTIVE or stage.started_at is None:
        return None
    deadlines = spec.deadlines
    allowed = deadlines.pending_seconds + deadline_seconds(spec, Stage(name)) + deadlines.manifest_seconds
    return stage.started_at + allowed
