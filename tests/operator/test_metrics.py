"""Metrics: gauges say what the saved status says, counters count a thing once, and all goes with its evolution."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.samples import Sample

from curateevo.api.evolution import (
    Champion,
    Condition,
    Counts,
    CurationEvolution,
    EvolutionPhase,
    EvolutionStatus,
    Measurement,
    ObjectMeta,
    PolicyVersion,
    Reason,
    Spent,
    SpentOnRewriting,
    Stage,
    StageState,
    StageStatus,
    Verdict,
    VersionPhase,
    VersionSpec,
    VersionStatus,
)
from curateevo.api.stage import Manifest, Outcome, TrainSummary, Usage
from curateevo_operator.metrics import Metrics
from tests.chart.promql import Documented, documented
from tests.cluster.harness import HERE as CLUSTER

ROOT = Path(__file__).parents[2]
SPEC = yaml.safe_load((ROOT / "examples/toolworld.yaml").read_text())["spec"] | {"rounds": {"max": 3}}
OWN = {"namespace": "agents", "evolution": "airline"}


def evolution(name: str = "airline", **status: object) -> CurationEvolution:
    meta = ObjectMeta(name=name, namespace="agents", uid=f"uid-{name}")
    return CurationEvolution(metadata=meta, spec=SPEC, status=EvolutionStatus(**{"started_at": 1.0} | status))


def version(number: int, verdict: Verdict | None = None, **stages: StageStatus) -> PolicyVersion:
    spec = VersionSpec(
        evolution_uid="uid", number=number, policy_digest="p", policy_key="k", corpus_key="c", corpus_digest="d",
        evolution_spec=SPEC,
    )  # fmt: skip
    measured = Measurement(p=0.5, c=0.1, j=0.47, sft_turns=70, rl_turns=30, memory_items=0)
    status = VersionStatus(phase=VersionPhase.TRAINING, stages=stages, verdict=verdict, measurement=measured)
    return PolicyVersion(metadata=ObjectMeta(name=f"airline-v{number}"), spec=spec, status=status)


def stage(state: StageState = StageState.ACTIVE, **more: object) -> StageStatus:
    return StageStatus(**{"state": state, "attempt": 1, "started_at": 100.0} | more)


class Seen:
    """Metrics with their registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)

    def show(self, of: CurationEvolution, *versions: PolicyVersion, now: float = 1000.0) -> None:
        self.metrics.show(of, versions, now)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"curateevo_{name}", OWN | labels)

    def samples(self, prefix: str = "") -> list[Sample]:
        return [s for m in self.registry.collect() for s in m.samples if s.name.startswith(f"curateevo_{prefix}")]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def fill(seen: Seen, name: str = "airline") -> None:
    """Every metric gets a series."""
    champion = Champion(number=0, policy_digest="p", p=0.5, c=0.1, j=0.47)
    condition = Condition(type="Stalled", status="False", reason="Running")
    first = evolution(
        name, phase=EvolutionPhase.TESTING, champion=champion, conditions=(condition,), completed_at=9.0,
        spent=Spent(augmentation=SpentOnRewriting()),
    )  # fmt: skip
    failed = stage(StageState.WAITING, infrastructure_failures=1, reason=Reason.INFRASTRUCTURE, retry_at=200.0)
    seen.show(first, version(0), version(1, train=stage(message="0/1 nodes are available"), curate=stage()))
    seen.show(first, version(0), version(1, train=stage(), curate=failed))
    seen.show(first, version(0), version(1, Verdict.COMMITTED, train=stage(StageState.DONE)))
    seen.metrics.stage_done(first, "train", manifest())
    seen.metrics.store_errors.labels("agents", name, "Denied").inc()
    seen.metrics.count_call("GET", "jobs")
    seen.metrics.watch.labels("jobs").set(1.0)
    with seen.metrics.reconcile():
        pass


def manifest(cached: str | None = None) -> Manifest:
    return Manifest(
        stage=Stage.TRAIN, input_digest="i", outcome=Outcome.OK, files=(), digest="d", summary=TrainSummary(),
        usage=Usage(seconds=90.0), cached_from=cached,
    )  # fmt: skip


# ---- gauges


def test_gauges_say_what_the_status_says(seen: Seen) -> None:
    champion = Champion(number=1, policy_digest="p", p=0.5, c=0.1, j=0.47)
    status = {
        "phase": EvolutionPhase.PROPOSING, "round": 2, "streak": 1, "champion": champion,
        "counts": Counts(committed=2, reverted=1), "spent": Spent(
            gpu_seconds=60.0, tokens=7, usd=0.5, calls=3, augmentation=SpentOnRewriting(tokens=9, usd=0.25, calls=4)
        ),
        "conditions": (
            Condition(type="Ready", status="False", reason="r"),
            Condition(type="Stalled", status="True", reason="r"),
            Condition(type="QuotaReserved", status="Unknown", reason="r"),
        ),
    }  # fmt: skip
    seen.show(evolution(**status), version(0, Verdict.COMMITTED), version(1, Verdict.COMMITTED))
    assert seen.value("evolution_info", model="builtin://toolworld", proposer="rules") == 1
    assert seen.value("evolution_phase", phase="Proposing") == 1 and seen.value("evolution_phase", phase="Failed") == 0
    assert (seen.value("evolution_round"), seen.value("evolution_max_rounds")) == (2, 3)
    assert (seen.value("evolution_score"), seen.value("evolution_cost")) == (0.5, 0.1)
    assert seen.value("evolution_objective") == 0.47 and seen.value("evolution_rounds_since_commit") == 1
    assert seen.value("evolution_versions", verdict="committed") == 2
    assert seen.value("evolution_versions", verdict="reverted") == 1
    assert seen.value("evolution_turns", resource="sft") == 70 and seen.value("evolution_turns", resource="rl") == 30
    assert seen.value("evolution_gpu_seconds") == 60 and seen.value("evolution_evolver_tokens") == 7
    assert seen.value("evolution_evolver_dollars") == 0.5 and seen.value("evolution_evolver_calls") == 3
    assert seen.value("evolution_rewriting_tokens") == 9 and seen.value("evolution_rewriting_calls") == 4
    assert seen.value("evolution_rewriting_dollars") == 0.25
    found = {t: seen.value("evolution_condition", type=t) for t in ("Ready", "Stalled", "QuotaReserved")}
    assert found == {"Ready": 0, "Stalled": 1, "QuotaReserved": -1}


def test_a_restart_loses_no_gauge(seen: Seen) -> None:
    champion = Champion(number=0, policy_digest="p", p=0.5, c=0.1, j=0.47)
    settled = version(0, Verdict.COMMITTED)
    seen.show(evolution(phase=EvolutionPhase.INGESTING, stages={"ingest": stage()}))
    seen.show(evolution(phase=EvolutionPhase.TESTING, champion=champion), settled, version(1, train=stage()))
    last = (
        evolution(phase=EvolutionPhase.TESTING, champion=champion),
        settled,
        version(1, train=stage(message="no node")),
    )
    seen.show(*last)
    again = Seen()
    again.show(*last)
    gauges = {m.name for m in seen.registry.collect() if m.type == "gauge"}
    ours = {(s.name, tuple(s.labels.items())): s.value for s in seen.samples("evolution_") if s.name in gauges}
    theirs = {(s.name, tuple(s.labels.items())): s.value for s in again.samples("evolution_") if s.name in gauges}
    assert theirs and all(ours[key] == value for key, value in theirs.items())


def test_without_a_champion_there_is_no_score(seen: Seen) -> None:
    seen.show(evolution())
    assert seen.value("evolution_score") is None and seen.value("evolution_round") == 0


def test_another_proposer_takes_the_place_of_the_old_one(seen: Seen) -> None:
    seen.show(evolution())
    changed = evolution()
    proposer = changed.spec.proposer.model_copy(update={"type": "manual"})
    spec = changed.spec.model_copy(update={"proposer": type(proposer).model_validate({"type": "manual"})})
    seen.show(changed.model_copy(update={"spec": spec}))
    assert [s.labels["proposer"] for s in seen.samples("evolution_info")] == ["manual"]


def test_an_evolution_that_can_not_be_planned_still_shows_its_conditions(seen: Seen) -> None:
    seen.metrics.show_conditions("agents", "airline", [Condition(type="Stalled", status="True", reason="Denied")])
    assert seen.value("evolution_condition", type="Stalled") == 1


# ---- what waits, and until when


def test_pending_is_the_time_since_the_attempt_began(seen: Seen) -> None:
    seen.show(evolution(), version(0, train=stage(message="Insufficient nvidia.com/gpu")), now=130.0)
    assert seen.value("evolution_pending_seconds") == 30
    seen.show(evolution(), version(0, train=stage()), now=140.0)
    assert seen.value("evolution_pending_seconds") == 0
    assert seen.value("stage_wait_seconds_count", stage="train") == 1
    assert seen.value("stage_wait_seconds_sum", stage="train") == 40


def test_an_attempt_that_never_ran_has_no_wait(seen: Seen) -> None:
    seen.show(evolution(), version(0, train=stage(message="no node")), now=130.0)
    late = stage(StageState.WAITING, retry_at=150.0, infrastructure_failures=1, reason=Reason.PENDING_TOO_LONG)
    seen.show(evolution(), version(0, train=late), now=140.0)
    seen.show(evolution(), version(0, train=stage(attempt=2, started_at=150.0)), now=160.0)
    assert seen.value("stage_wait_seconds_count", stage="train") is None
    assert seen.value("stage_failures_total", stage="train", reason="PendingTooLong") == 1


def test_the_deadline_is_that_of_the_stage_at_work(seen: Seen) -> None:
    own = evolution(phase=EvolutionPhase.TESTING)
    seen.show(own, version(0, curate=stage(StageState.DONE, started_at=50.0), train=stage(started_at=100.0)))
    deadlines = own.spec.deadlines
    wanted = 100.0 + deadlines.pending_seconds + deadlines.train_seconds + deadlines.manifest_seconds
    assert seen.value("evolution_deadline_timestamp_seconds") == wanted
    assert seen.value("evolution_progress_timestamp_seconds") == 100.0


def test_a_stage_that_backs_off_has_until_its_next_attempt(seen: Seen) -> None:
    seen.show(evolution(phase=EvolutionPhase.INGESTING, stages={"ingest": stage(StageState.WAITING, retry_at=170.0)}))
    assert seen.value("evolution_deadline_timestamp_seconds") == 170.0


def test_between_two_stages_the_deadline_is_the_last_progress(seen: Seen) -> None:
    seen.show(evolution(phase=EvolutionPhase.TESTING), version(0, curate=stage(StageState.DONE)))
    assert seen.value("evolution_deadline_timestamp_seconds") == 100.0


@pytest.mark.parametrize(
    "rests",
    [
        {"phase": EvolutionPhase.SUSPENDED},
        {"phase": EvolutionPhase.COMPLETE},
        {"phase": EvolutionPhase.FAILED},
        {"phase": EvolutionPhase.PROPOSING, "reason": Reason.AWAITING_POLICY},
    ],
)
def test_what_may_rest_has_no_deadline(seen: Seen, rests: dict[str, object]) -> None:
    seen.show(evolution(phase=EvolutionPhase.INGESTING, stages={"ingest": stage()}))
    assert seen.value("evolution_deadline_timestamp_seconds") is not None
    seen.show(evolution(stages={"ingest": stage()}, **rests))
    assert seen.value("evolution_deadline_timestamp_seconds") is None


# ---- counters


def test_a_failure_is_counted_once_and_not_at_first_sight(seen: Seen) -> None:
    def failed(count: int, reason: Reason) -> PolicyVersion:
        return version(0, train=stage(StageState.WAITING, retry_at=1.0, infrastructure_failures=count, reason=reason))

    seen.show(evolution(), failed(3, Reason.INFRASTRUCTURE))  # the last operator saw these
    assert not seen.samples("stage_failures_total")
    for _ in range(3):
        seen.show(evolution(), failed(4, Reason.DENIED))
    assert seen.value("stage_failures_total", stage="train", reason="Denied") == 1
    seen.show(evolution(), failed(6, Reason.INFRASTRUCTURE))
    assert seen.value("stage_failures_total", stage="train", reason="InfrastructureFailure") == 2
    assert seen.value("evolution_stage_failures", stage="train", kind="infrastructure") == 6


def test_the_failure_that_ends_a_version_is_counted(seen: Seen) -> None:
    seen.show(evolution(), version(0, train=stage()))
    seen.show(
        evolution(), version(0, train=stage(StageState.FAILED, application_failures=1, reason=Reason.PROGRAM_FAILED))
    )
    seen.show(evolution(), version(0, Verdict.FAILED, train=stage(StageState.FAILED, application_failures=1)))
    assert seen.value("stage_failures_total", stage="train", reason="ProgramFailed") == 1


def test_proposals_of_different_rounds_are_different_stages(seen: Seen) -> None:
    def proposing(round_: int, failures: int) -> CurationEvolution:
        own = stage(StageState.WAITING, retry_at=1.0, application_failures=failures, reason=Reason.PROGRAM_FAILED)
        return evolution(round=round_, stages={"propose": own})

    seen.show(proposing(1, 0))
    seen.show(proposing(1, 1))
    seen.show(proposing(2, 1))
    assert seen.value("stage_failures_total", stage="propose", reason="ProgramFailed") == 2


def test_a_round_is_timed_when_its_verdict_comes(seen: Seen) -> None:
    settled = version(0, Verdict.COMMITTED, curate=stage(StageState.DONE, started_at=10.0))
    seen.show(evolution(), settled, version(1))
    assert not seen.samples("round_seconds")
    stages = {"curate": stage(StageState.DONE, started_at=100.0), "train": stage(StageState.DONE, started_at=150.0)}
    seen.show(evolution(), settled, version(1, **stages), now=160.0)
    for _ in range(3):
        seen.show(evolution(), settled, version(1, Verdict.REVERTED, **stages), now=170.0)
    assert seen.value("round_seconds_count", verdict="Reverted") == 1
    assert seen.value("round_seconds_sum", verdict="Reverted") == 70
    assert seen.value("round_seconds_count", verdict="Committed") is None


def test_work_from_the_cache_is_counted_apart(seen: Seen) -> None:
    seen.metrics.stage_done(evolution(), "train", manifest())
    seen.metrics.stage_done(evolution(), "train", manifest(cached="elsewhere"))
    assert seen.value("stage_seconds_sum", stage="train", outcome="Ok") == 90
    assert seen.value("stage_seconds_count", stage="train", outcome="Cached") == 1


def test_passes_are_counted_by_result(seen: Seen) -> None:
    with seen.metrics.reconcile() as outcome:
        outcome.result = "conflict"
    with seen.metrics.reconcile():
        pass
    found = {s.labels["result"]: s.value for s in seen.samples("reconciles_total")}
    assert found == {"conflict": 1, "ok": 1}
    assert seen.registry.get_sample_value("curateevo_reconcile_seconds_count") == 2


# ---- all of it


def test_series_go_with_their_evolution_and_others_stay(seen: Seen) -> None:
    fill(seen)
    fill(seen, "other")
    of_other = [s for s in seen.samples() if s.labels.get("evolution") == "other"]
    seen.metrics.forget("agents", "airline")
    assert not [s for s in seen.samples() if s.labels.get("evolution") == "airline"]
    assert [s for s in seen.samples() if s.labels.get("evolution") == "other"] == of_other != []


def test_an_object_of_the_same_name_begins_anew(seen: Seen) -> None:
    seen.show(evolution(), version(0, Verdict.COMMITTED), version(1, Verdict.COMMITTED))
    seen.metrics.forget("agents", "airline")
    seen.show(evolution())
    seen.show(evolution(), version(0, Verdict.REJECTED, curate=stage(StageState.DONE)))
    assert seen.value("round_seconds_count", verdict="Rejected") == 1


def test_what_an_evolution_costs_in_series_is_bounded(seen: Seen) -> None:
    """Prometheus keeps each; 500 evolutions are scraped from one operator."""
    fill(seen)
    seen.show(evolution(round=3), *(version(n, Verdict.REVERTED) for n in range(1000)))
    assert len([s for s in seen.samples() if "evolution" in s.labels]) < 100


def test_the_page_on_metrics_names_every_metric_with_its_type_and_labels(seen: Seen) -> None:
    fill(seen)
    exported = {}
    for family in seen.registry.collect():
        total = "_total" if family.type == "counter" else ""
        assert family.samples, f"{family.name}: fill() makes no series"
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        exported[family.name + total] = Documented(family.type, frozenset(labels))
        assert family.documentation.endswith(".") and family.name.startswith("curateevo_")
    assert documented() == exported


@pytest.mark.cluster
def test_names_and_texts_are_as_prometheus_wants_them(seen: Seen) -> None:
    fill(seen)
    subprocess.run([CLUSTER / "packages.sh", "tools"], check=True, timeout=600)
    text = generate_latest(seen.registry)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (0, "")
