"""One stage of any object: attempts, deadlines, retries by class of failure. Shared by both plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from curateevo.api.errors import ExitCode
from curateevo.api.evolution import Reason, Stage, StageState, StageStatus
from curateevo.api.spec import Retries
from curateevo.api.stage import Manifest
from curateevo.evolution.decision import Action, AttemptSeen, JobState, Notice, StageSeen, StartJob, StopJob

MAX_BACKOFF_SECONDS = 600.0
DENIED_BACKOFF_SECONDS = 300.0
POLL_SECONDS = 60.0
STOPPING_POLL_SECONDS = 2.0
INFRASTRUCTURE_EXITS = frozenset({ExitCode.TRANSIENT, 128 + 9, 128 + 15, -9, -15})


@dataclass(frozen=True, slots=True)
class StageContext:
    """What planning one stage needs beside its status and what is seen."""

    stage: Stage
    version: int | None
    start: Callable[[int], StartJob]
    """The job of an attempt."""
    name: Callable[[int], str]
    deadline_seconds: float
    pending_seconds: float
    manifest_seconds: float
    retries: Retries


@dataclass(frozen=True, slots=True)
class StageDecision:
    status: StageStatus
    actions: tuple[Action, ...] = ()
    notices: tuple[Notice, ...] = ()
    wake_in: float | None = None
    manifest: Manifest | None = None
    """Set when the stage is done."""

    @property
    def failed(self) -> bool:
        return self.status.state is StageState.FAILED


def plan_stage(status: StageStatus, seen: StageSeen, context: StageContext, now: float) -> StageDecision:
    """The next step of a stage. Intent is saved before its effect: an attempt is first written to the status that is
    returned, and its job is started only by a later plan that was given that status."""
    if status.state is StageState.FAILED:
        return StageDecision(status, _stop_all(seen, context))
    if (done := seen.done) is not None and done.manifest is not None:
        return _finish(status, seen, context, done, done.manifest)
    if seen.highest > status.attempt:
        status = status.model_copy(
            update={
                "attempt": seen.highest,
                "state": StageState.ACTIVE,
                "started_at": seen.at(seen.highest).since or now,
                "retry_at": None,
                "observed": True,
            }
        )
    if status.attempt == 0:
        return _intend(status, 1, now)
    if status.state is StageState.WAITING:
        if status.retry_at is not None and now < status.retry_at:
            return StageDecision(status, wake_in=status.retry_at - now)
        return _intend(status, status.attempt + 1, now)
    return _follow(status, seen.at(status.attempt), context, now)


def _finish(
    status: StageStatus, seen: StageSeen, context: StageContext, done: AttemptSeen, manifest: Manifest
) -> StageDecision:
    finished = status.model_copy(
        update={"state": StageState.DONE, "attempt": max(status.attempt, seen.highest), "digest": manifest.digest,
                "retry_at": None, "reason": None, "message": _said(manifest)[:2048]}
    )  # fmt: skip
    others = StageSeen(tuple(a for a in seen.attempts if a is not done))
    return StageDecision(finished, _stop_all(others, context), manifest=manifest)


def _said(manifest: Manifest) -> str:
    """What the stage says of its end, or whose work it took over."""
    return manifest.message or (f"reused: {manifest.cached_from}" if manifest.cached_from else "")


def _intend(status: StageStatus, attempt: int, now: float) -> StageDecision:
    update = {
        "attempt": attempt,
        "state": StageState.ACTIVE,
        "started_at": now,
        "retry_at": None,
        "observed": False,
    }
    return StageDecision(status.model_copy(update=update), wake_in=0.0)


def _follow(status: StageStatus, attempt: AttemptSeen, context: StageContext, now: float) -> StageDecision:
    """The attempt has no manifest: what its job says."""
    started = status.started_at if status.started_at is not None else now
    match attempt.job:
        case JobState.ABSENT if status.observed:
            return _retry(status, Reason.INFRASTRUCTURE, "the job was deleted", context, now)
        case JobState.ABSENT:
            return StageDecision(status, (context.start(status.attempt),), wake_in=POLL_SECONDS)
        case JobState.STOPPING:
            return StageDecision(status, wake_in=STOPPING_POLL_SECONDS)
        case JobState.LOST:
            resumed = status.model_copy(update={"started_at": now})
            return StageDecision(resumed, (context.start(status.attempt),), wake_in=POLL_SECONDS)
        case JobState.PENDING:
            # A job that ran, and was evicted or preempted, waits anew.
            left = max(started, attempt.since or started) + context.pending_seconds - now
            if left <= 0:
                return _expire(status, Reason.PENDING_TOO_LONG, attempt.message or "no node took the job", context, now)
            return StageDecision(_observed(status, attempt.message), wake_in=min(left, POLL_SECONDS))
        case JobState.RUNNING:
            left = (attempt.since or started) + context.deadline_seconds - now
            if left <= 0:
                text = f"ran longer than {context.deadline_seconds:g} s"
                return _expire(status, Reason.DEADLINE_EXCEEDED, text, context, now)
            return StageDecision(_observed(status, ""), wake_in=min(left, POLL_SECONDS))
        case JobState.SUCCEEDED:
            left = (attempt.since or started) + context.manifest_seconds - now
            if left <= 0:
                return _retry(
                    status,
                    Reason.METRICS_UNAVAILABLE,
                    "the job succeeded and left no valid manifest",
                    context,
                    now,
                )
            return StageDecision(_observed(status, ""), wake_in=left)
        case JobState.FAILED:
            return _retry(status, *_classify(attempt), context, now)
        case _:
            assert_never(attempt.job)


def _observed(status: StageStatus, message: str) -> StageStatus:
    return status.model_copy(update={"observed": True, "message": message[:2048]})


def _classify(attempt: AttemptSeen) -> tuple[Reason, str]:
    message = attempt.message or f"exit code {attempt.exit_code}"
    match attempt.exit_code:
        case ExitCode.CONTRACT_BROKEN:
            return Reason.CONTRACT_BROKEN, message
        case ExitCode.DENIED:
            return Reason.DENIED, message
        case code if code in INFRASTRUCTURE_EXITS or code is None:
            return Reason.INFRASTRUCTURE, message
        case _:
            return Reason.PROGRAM_FAILED, message


def _expire(status: StageStatus, reason: Reason, message: str, context: StageContext, now: float) -> StageDecision:
    decision = _retry(status, reason, message, context, now)
    stop = StopJob(context.name(status.attempt), context.stage, context.version, status.attempt)
    return StageDecision(decision.status, (stop,), decision.notices, decision.wake_in)


def _retry(status: StageStatus, reason: Reason, message: str, context: StageContext, now: float) -> StageDecision:
    """Count the failure and wait for the next attempt, or give up. Infrastructure and application count apart."""
    infrastructure = reason in (Reason.INFRASTRUCTURE, Reason.PENDING_TOO_LONG, Reason.DENIED)
    count = (status.infrastructure_failures if infrastructure else status.application_failures) + 1
    allowed = context.retries.infrastructure if infrastructure else context.retries.application
    field = "infrastructure_failures" if infrastructure else "application_failures"
    update: dict[str, object] = {field: count, "reason": reason, "message": message[:2048]}
    if reason is Reason.CONTRACT_BROKEN or count > allowed:
        update["state"] = StageState.FAILED
        notice = Notice(reason.value, f"{context.stage.value} failed: {message}", warning=True)
        return StageDecision(status.model_copy(update=update), notices=(notice,), wake_in=0.0)
    wait = min(context.retries.backoff_seconds * 2.0 ** (count - 1), MAX_BACKOFF_SECONDS)
    if reason is Reason.DENIED:
        wait = max(wait, DENIED_BACKOFF_SECONDS)
    update |= {"state": StageState.WAITING, "retry_at": now + wait}
    notice = Notice(
        reason.value,
        f"{context.stage.value} attempt {status.attempt}: {message}; again in {wait:g} s",
        warning=True,
    )
    return StageDecision(status.model_copy(update=update), notices=(notice,), wake_in=wait)


def rested(stages: dict[str, StageStatus]) -> dict[str, StageStatus]:
    """The stages of an object that is suspended: that their jobs are gone is no failure, and costs no attempt."""
    return {k: s.model_copy(update={"observed": False}) if s.observed else s for k, s in stages.items()}


def _stop_all(seen: StageSeen, context: StageContext) -> tuple[Action, ...]:
    active = (a for a in seen.attempts if a.job in (JobState.PENDING, JobState.RUNNING))
    return tuple(StopJob(context.name(a.attempt), context.stage, context.version, a.attempt) for a in active)
