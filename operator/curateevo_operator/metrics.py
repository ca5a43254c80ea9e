"""Metrics of the operator and of each evolution; the series of an evolution go with it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from curateevo.api.evolution import (
    CurationEvolution,
    EvolutionPhase,
    PolicyVersion,
    StageState,
    StageStatus,
    VersionPhase,
)
from curateevo.api.stage import Manifest

OBJECT = ("namespace", "evolution")
STAGE_BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)


@dataclass(slots=True)
class Outcome:
    result: str = "ok"


class Metrics:
    """All begin with `curateevo_`. Gauges of an evolution are set from its saved status: a restart loses none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *more: str) -> Gauge:
            made = Gauge(f"curateevo_{name}", text, (*OBJECT, *more), registry=registry)
            self._of_objects.append(made)
            return made

        self._of_objects: list[Gauge | Counter | Histogram] = []
        self._known: set[tuple[str, str]] = set()
        self.info = gauge("evolution_info", "1 for each evolution, with its model and proposer.", "model", "proposer")
        self.phase = gauge("evolution_phase", "1 for the phase that an evolution is in, 0 for the others.", "phase")
        self.condition = gauge(
            "evolution_condition", "1 for True, 0 for False, -1 for Unknown, by condition type.", "type"
        )
        self.round = gauge("evolution_round", "Number of the version under test.")
        self.round_since = gauge(
            "evolution_progress_timestamp_seconds", "When a stage of the evolution began or ended last, Unix time."
        )
        self.score = gauge("evolution_score", "P of the champion: mean success on sel, 0..1.")
        self.cost = gauge("evolution_cost", "C of the champion, 0..1.")
        self.objective = gauge("evolution_objective", "J = P - lambda C of the champion.")
        self.verdicts = gauge("evolution_versions", "Versions by verdict.", "verdict")
        self.streak = gauge("evolution_rounds_since_commit", "Rounds since the last commit.")
        self.turns = gauge("evolution_turns", "Turns of the champion's resources.", "resource")
        self.tokens = gauge("evolution_evolver_tokens", "Tokens of the evolver's LLM.")
        self.gpu = gauge("evolution_gpu_seconds", "GPU seconds of the rounds that are decided.")
        self.pending = gauge(
            "evolution_pending_seconds", "Seconds that the current stage has waited for a node or a queue."
        )
        self.attempts = gauge("evolution_stage_failures", "Failed attempts of the stages at work.", "stage", "kind")
        self.stage_seconds = Histogram(
            "curateevo_stage_seconds",
            "Seconds that a stage's program ran, by its outcome.",
            (*OBJECT, "stage", "outcome"),
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self._of_objects.append(self.stage_seconds)
        self.store_errors = Counter(
            "curateevo_store_errors_total",
            "Passes that the artifact store put off.",
            (*OBJECT, "kind"),
            registry=registry,
        )
        self._of_objects.append(self.store_errors)
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
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
        )
        self.deaf = Gauge("curateevo_deaf", "1 while a watch is missing or objects go unheard.", registry=registry)

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

    def show(self, evolution: CurationEvolution, versions: Iterable[PolicyVersion], now: float) -> None:
        """Set the gauges of an evolution from its status."""
        meta, spec, status = evolution.metadata, evolution.spec, evolution.status
        own = (meta.namespace, meta.name)
        self._known.add(own)
        self.info.labels(*own, spec.model.base, spec.proposer.type.value).set(1)
        for phase in EvolutionPhase:
            self.phase.labels(*own, phase.value).set(phase is status.phase)
        for condition in status.conditions:
            self.condition.labels(*own, condition.type).set({"True": 1, "False": 0}.get(condition.status, -1))
        self.round.labels(*own).set(status.round)
        self.streak.labels(*own).set(status.streak)
        for verdict, count in status.counts.to_wire().items():
            self.verdicts.labels(*own, verdict).set(count)
        self.tokens.labels(*own).set(status.spent.tokens)
        self.gpu.labels(*own).set(status.spent.gpu_seconds)
        if (champion := status.champion) is not None:
            self.score.labels(*own).set(champion.p)
            self.cost.labels(*own).set(champion.c)
            self.objective.labels(*own).set(champion.j)
        found = list(versions)
        for version in found:
            if champion is not None and version.spec.number == champion.number and version.status.measurement:
                self.turns.labels(*own, "sft").set(version.status.measurement.sft_turns)
                self.turns.labels(*own, "rl").set(version.status.measurement.rl_turns)
        self._show_stages(own, [dict(status.stages), *(dict(v.status.stages) for v in found if _busy(v))], now)

    def _show_stages(self, own: tuple[str, str], stages: list[dict[str, StageStatus]], now: float) -> None:
        pending, latest = 0.0, 0.0
        for name, stage in (item for one in stages for item in one.items()):
            latest = max(latest, stage.started_at or 0.0)
            if stage.state is StageState.ACTIVE and stage.message and stage.started_at is not None:
                pending = max(pending, now - stage.started_at)
            self.attempts.labels(*own, name, "infrastructure").set(stage.infrastructure_failures)
            self.attempts.labels(*own, name, "application").set(stage.application_failures)
        self.pending.labels(*own).set(pending)
        if latest:
            self.round_since.labels(*own).set(latest)

    def stage_done(self, evolution: CurationEvolution, stage: str, manifest: Manifest) -> None:
        """Count a stage that has just ended."""
        own = (evolution.metadata.namespace, evolution.metadata.name)
        outcome = "Cached" if manifest.cached_from else manifest.outcome.value
        self.stage_seconds.labels(*own, stage, outcome).observe(manifest.usage.seconds)

    def forget(self, namespace: str, name: str) -> None:
        """Remove the series of an evolution that is gone."""
        self._known.discard((namespace, name))
        for metric in self._of_objects:
            metric.remove_by_labels({"namespace": namespace, "evolution": name})


def _busy(version: PolicyVersion) -> bool:
    return version.status.phase not in (VersionPhase.MEASURED, VersionPhase.REJECTED, VersionPhase.FAILED)
