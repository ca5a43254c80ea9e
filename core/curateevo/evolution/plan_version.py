"""The plan of one policy version: curate, train, evaluate, and then measured, Rejected or Failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from curateevo.api.evolution import (
    EarlyStop,
    Measurement,
    Reason,
    Stage,
    StageStatus,
    Verdict,
    VersionPhase,
    VersionSpec,
    VersionStatus,
)
from curateevo.api.spec import EvolutionSpec
from curateevo.api.stage import CurateSummary, EvaluateSummary, IngestSummary, Manifest, Outcome, StageRequest
from curateevo.evolution.decision import (
    Action,
    Decision,
    JobState,
    Notice,
    Release,
    StageSeen,
    StartJob,
    StopJob,
    VersionStagesSeen,
)
from curateevo.evolution.names import job_name
from curateevo.evolution.objective import cost_of, objective
from curateevo.evolution.plan_stage import StageContext, StageDecision, plan_stage, rested
from curateevo.evolution.requests import Identity, against_of, curate_request, evaluate_request, train_request
from curateevo.evolution.stopping import Foregone, foregone_by_cost, stopped_text

TERMINAL = frozenset({VersionPhase.MEASURED, VersionPhase.REJECTED, VersionPhase.FAILED})
STAGES = (Stage.CURATE, Stage.TRAIN, Stage.EVALUATE)
OPERATIONAL = ("templates", "deadlines", "retries", "queue")
PHASES = {
    Stage.CURATE: VersionPhase.CURATING,
    Stage.TRAIN: VersionPhase.TRAINING,
    Stage.EVALUATE: VersionPhase.EVALUATING,
}


def plan_version(
    who: Identity, spec: VersionSpec, status: VersionStatus, seen: VersionStagesSeen, now: float
) -> Decision[VersionStatus]:
    """Pure and total. Deletion and suspension are looked at first; a terminal phase only takes over its verdict."""
    stops = stop_jobs(who, ((stage, spec.number, found) for stage, found in seen.stages.items()))
    if seen.deleting:
        return Decision(status, stops or (Release(),))
    if status.phase in TERMINAL:
        return _take_verdict(status, seen, stops)
    if seen.suspended:
        resting = status.model_copy(update={"stages": rested(status.stages)})
        return Decision(resting, stops)
    if seen.ingest is None or seen.policy is None or (spec.parent is not None and seen.champion is None):
        return Decision(status)
    manifests: dict[Stage, Manifest] = {}
    for stage in STAGES:
        start = _starter(who, spec, stage, seen, manifests)
        context = stage_context(who, spec.evolution_spec, stage, spec.number, start)
        step = plan_stage(status.stages.get(stage, StageStatus()), seen.stages.get(stage, StageSeen()), context, now)
        status = _with_stage(status, stage, step)
        if step.failed:
            failed = status.model_copy(
                update={
                    "phase": VersionPhase.FAILED,
                    "reason": step.status.reason,
                    "message": f"{stage}: {step.status.message}"[:2048],
                }
            )
            return Decision(failed, step.actions, step.notices, wake_in=0.0)
        if step.manifest is None:
            return Decision(status, step.actions, step.notices, step.wake_in)
        if step.manifest.outcome is Outcome.REJECTED:
            return _reject(status, step)
        manifests[stage] = step.manifest
        if stage is Stage.CURATE and (hopeless := _hopeless(spec, seen, manifests)) is not None:
            return _measure(spec, status, seen.ingest, manifests, hopeless)
    return _measure(spec, status, seen.ingest, manifests)


def in_force(version: VersionSpec, spec: EvolutionSpec) -> VersionSpec:
    """What a version runs under: what decides its result is pinned, how it is run follows the spec of today, so that a
    wrong template or a deadline that is too short can be mended while its round runs."""
    operational = {name: getattr(spec, name) for name in OPERATIONAL}
    pinned = version.evolution_spec.model_copy(update=operational)
    return version.model_copy(update={"evolution_spec": pinned})


def deadline_seconds(spec: EvolutionSpec, stage: Stage) -> int:
    """How long a stage may run. The servers of an evaluation, one for each model, may start one after another."""
    deadlines, trained = spec.deadlines, spec.training.repeats
    models = {Stage.FLOORS: 1, Stage.SEAL: 2 * trained}.get(stage, trained)
    return {
        Stage.INGEST: deadlines.ingest_seconds,
        Stage.PROPOSE: deadlines.propose_seconds,
        Stage.CURATE: deadlines.curate_seconds,
        Stage.TRAIN: deadlines.train_seconds,
    }.get(stage, deadlines.evaluate_seconds + models * deadlines.serve_start_seconds)


def stage_context(
    who: Identity,
    spec: EvolutionSpec,
    stage: Stage,
    version: int | None,
    start: Callable[[int], StageRequest],
) -> StageContext:
    """Deadlines and names of a stage."""
    deadlines = spec.deadlines

    def name(attempt: int) -> str:
        return job_name(who.name, stage, version, attempt)

    return StageContext(
        stage=stage,
        version=version,
        start=lambda attempt: StartJob(name(attempt), start(attempt)),
        name=name,
        deadline_seconds=deadline_seconds(spec, stage),
        pending_seconds=deadlines.pending_seconds,
        manifest_seconds=deadlines.manifest_seconds,
        retries=spec.retries,
    )


def stop_jobs(who: Identity, stages: Iterable[tuple[Stage, int | None, StageSeen]]) -> tuple[Action, ...]:
    """Stop whatever of these stages (each with its version) still runs. A job with a manifest is at its end: it keeps
    its logs."""
    return tuple(
        StopJob(job_name(who.name, stage, version, a.attempt), stage, version, a.attempt)
        for stage, version, found in stages
        for a in found.attempts
        if a.manifest is None and a.job in (JobState.PENDING, JobState.RUNNING)
    )


def _starter(
    who: Identity, spec: VersionSpec, stage: Stage, seen: VersionStagesSeen, manifests: dict[Stage, Manifest]
) -> Callable[[int], StageRequest]:
    assert seen.ingest is not None and seen.policy is not None
    ingest, policy, context = seen.ingest, seen.policy, seen.context
    match stage:
        case Stage.CURATE:
            return lambda attempt: curate_request(who, spec, attempt, ingest, policy, context)
        case Stage.TRAIN:
            return lambda attempt: train_request(who, spec, attempt, manifests[Stage.CURATE])
        case _:
            return lambda attempt: evaluate_request(
                who, spec, attempt, ingest, manifests[Stage.CURATE], manifests[Stage.TRAIN], seen.champion
            )


def _with_stage(status: VersionStatus, stage: Stage, step: StageDecision) -> VersionStatus:
    stages = {**status.stages, stage.value: step.status}
    return status.model_copy(update={"stages": stages, "phase": PHASES[stage]})


def _reject(status: VersionStatus, step: StageDecision) -> Decision[VersionStatus]:
    """A policy that broke its contract, or made a model that may not be released: a result."""
    assert step.manifest is not None
    gate = step.manifest.reason == Reason.RELEASE_GATE.value
    reason = Reason.RELEASE_GATE if gate else Reason.POLICY_REJECTED
    rejected = status.model_copy(
        update={"phase": VersionPhase.REJECTED, "reason": reason, "message": step.manifest.message[:2048]}
    )
    return Decision(rejected, step.actions, wake_in=0.0)


def _hopeless(spec: VersionSpec, seen: VersionStagesSeen, manifests: dict[Stage, Manifest]) -> Foregone | None:
    """What the cost of the curated data alone decides: then nothing is trained."""
    if seen.champion is None or seen.ingest is None:
        return None
    against = against_of(spec, seen.ingest, manifests[Stage.CURATE], seen.champion)
    if against is None:
        return None
    return foregone_by_cost(against.focus, against.acceptance, against.c - against.champion_c, against.lambda_)


def _measure(
    spec: VersionSpec,
    status: VersionStatus,
    ingest: Manifest,
    manifests: dict[Stage, Manifest],
    hopeless: Foregone | None = None,
) -> Decision[VersionStatus]:
    measurement = measure(spec.evolution_spec, ingest, manifests, hopeless)
    if isinstance(measurement, str):
        failed = status.model_copy(
            update={
                "phase": VersionPhase.FAILED,
                "reason": Reason.METRICS_UNAVAILABLE,
                "message": measurement,
            }
        )
        return Decision(failed, wake_in=0.0)
    measured = status.model_copy(update={"phase": VersionPhase.MEASURED, "measurement": measurement})
    text = f"version {spec.number}: {measured_text(measurement)}"
    return Decision(measured, notices=(Notice("Measured", text),), wake_in=0.0)


def measured_text(measurement: Measurement) -> str:
    """What was measured, in a line."""
    if measurement.p is None and measurement.stopped is not None:
        return f"C {measurement.c:.3f}, {stopped_text(measurement.stopped)}"
    return f"P {measurement.p:.3f}, C {measurement.c:.3f}, J {measurement.j:.3f}"


def measure(
    spec: EvolutionSpec, ingest: Manifest, manifests: dict[Stage, Manifest], hopeless: Foregone | None = None
) -> Measurement | str:
    """P, C and J from the manifests; text when one of them does not hold what it must. `hopeless`: why the version is
    not trained; then there is a cost only."""
    curate = manifests[Stage.CURATE].summary
    if not isinstance(curate, CurateSummary):
        return "the curate manifest holds the summary of another stage"
    if not isinstance(ingest.summary, IngestSummary):
        return "the ingest manifest holds the summary of another stage"
    usage = [m.usage for m in manifests.values()]
    cost = Measurement(
        c=cost_of(spec.objective, curate, ingest.summary),
        sft_turns=curate.sft_turns,
        rl_turns=curate.rl_turns,
        memory_items=curate.memory_items,
        seconds=sum(u.seconds for u in usage),
        gpu_seconds=sum(u.gpu_seconds for u in usage),
    )
    if hopeless is not None:
        episodes = ingest.summary.dev_tasks.get("sel", 0) * spec.evaluation.runs * spec.training.repeats
        stopped = EarlyStop(
            episodes=0, of_episodes=episodes, p_at_most=1.0, reason=hopeless.reason, message=hopeless.message
        )
        return cost.model_copy(update={"stopped": stopped})
    evaluate = manifests[Stage.EVALUATE].summary
    if not isinstance(evaluate, EvaluateSummary):
        return "the evaluate manifest holds the summary of another stage"
    return _with_scores(cost, evaluate, spec.objective.lambda_)


def _with_scores(cost: Measurement, evaluate: EvaluateSummary, lambda_: float) -> Measurement | str:
    sel = [splits["sel"] for splits in evaluate.scores.values() if "sel" in splits]
    if (not sel and evaluate.stopped is None) or not all(0.0 <= s.p <= 1.0 for s in sel):
        return "the evaluation has no score on sel between 0 and 1"
    update: dict[str, object] = {
        "tokens": sum(s.tokens for splits in evaluate.scores.values() for s in splits.values()),
        "errors": sum(s.errors for s in sel),
    }
    if (stopped := evaluate.stopped) is not None:
        cost = cost.model_copy(update={"stopped": stopped})
        if stopped.episodes < stopped.of_episodes:
            return cost.model_copy(update=update)
    p = sum(s.p for s in sel) / len(sel)
    return cost.model_copy(update=update | {"p": round(p, 6), "j": round(objective(p, cost.c, lambda_), 6)})


def _take_verdict(status: VersionStatus, seen: VersionStagesSeen, stops: tuple[Action, ...]) -> Decision[VersionStatus]:
    record = seen.decision
    if record is None or status.verdict is record.verdict:
        return Decision(status, stops)
    update: dict[str, object] = {"verdict": record.verdict}
    if record.verdict in (Verdict.COMMITTED, Verdict.REVERTED):
        update |= {"reason": Reason(record.reason), "message": record.message}
    return Decision(status.model_copy(update=update), stops)
