"""Conditions, from the status and the version that is seen: the kstatus triple Ready, Reconciling, Stalled; the ends
Complete, Failed, Suspended; and where the version under test stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from curateevo.api.evolution import (
    Condition,
    EvolutionPhase,
    EvolutionStatus,
    Reason,
    StageState,
    StageStatus,
    VersionPhase,
)
from curateevo.evolution.decision import VersionSeen

Value = Literal["True", "False", "Unknown"]
STALLING = frozenset({Reason.DENIED, Reason.AWAITING_POLICY, Reason.CONTRACT_BROKEN, Reason.SPEC_INVALID})
AT_WORK = (VersionPhase.PENDING, VersionPhase.CURATING, VersionPhase.TRAINING, VersionPhase.EVALUATING)
STAGE_CONDITIONS = {"CurationComplete": AT_WORK[:2], "TrainingComplete": AT_WORK[:3], "EvaluationComplete": AT_WORK}
"""The phases in which it is not so yet."""


class _Fact(NamedTuple):
    type: str
    value: Value
    reason: str
    message: str


def with_conditions(
    status: EvolutionStatus,
    before: EvolutionStatus,
    generation: int,
    now: float,
    version: VersionSeen | None = None,
) -> EvolutionStatus:
    """`status` with its conditions; a condition's transition time moves only when its status does.

    `version` is the one under test.
    """
    old = {c.type: c for c in before.conditions}
    busy = _busy(status, version)
    facts = (*_ends(status, busy), *_progress(version), _quota(status, busy), _REACHABLE)
    conditions = tuple(_condition(fact, old.get(fact.type), generation, now) for fact in facts)
    return status.model_copy(update={"conditions": conditions, "observed_generation": generation})


def with_fault(
    status: EvolutionStatus, kind: str, reason: Reason, message: str, generation: int, now: float
) -> EvolutionStatus:
    """`status` when no plan could be made: `kind` (ArtifactStoreReachable, Ready) is False for `reason`, and the
    evolution is Stalled unless it will pass by itself. Nothing else is touched."""
    stalled: Value = "True" if reason in STALLING else "False"
    facts = {
        kind: _Fact(kind, "False", reason.value, message),
        "Stalled": _Fact("Stalled", stalled, reason.value, message),
    }
    old = {c.type: c for c in status.conditions}
    renewed = {name: _condition(fact, old.get(name), generation, now) for name, fact in facts.items()}
    return status.model_copy(update={"conditions": tuple((old | renewed).values()), "observed_generation": generation})


_REACHABLE = _Fact("ArtifactStoreReachable", "True", "Reachable", "")


def _busy(status: EvolutionStatus, version: VersionSeen | None) -> list[StageStatus]:
    """The stages at work or waiting: the evolution's own, and the version's."""
    if status.phase in (EvolutionPhase.COMPLETE, EvolutionPhase.FAILED, EvolutionPhase.SUSPENDED):
        return []
    own = [s for s in status.stages.values() if s.state in (StageState.ACTIVE, StageState.WAITING)]
    return [*own, version.current] if version is not None and version.current is not None else own


def _ends(status: EvolutionStatus, busy: list[StageStatus]) -> Iterator[_Fact]:
    complete, failed = status.phase is EvolutionPhase.COMPLETE, status.phase is EvolutionPhase.FAILED
    suspended = status.phase is EvolutionPhase.SUSPENDED
    waiting = next((s for s in busy if s.state is StageState.WAITING and s.reason in STALLING), None)
    stalled = failed or waiting is not None or (not complete and status.reason in STALLING)
    reason = (status.reason or Reason.RUNNING).value
    for kind, holds in (
        ("Ready", complete),
        ("Reconciling", not (complete or failed or suspended)),
        ("Stalled", stalled),
        ("Complete", complete),
        ("Failed", failed),
        ("Suspended", suspended),
    ):
        if kind == "Stalled" and waiting is not None and waiting.reason is not None:
            yield _Fact(kind, "True", waiting.reason.value, waiting.message)
        else:
            yield _Fact(kind, "True" if holds else "False", reason, status.message)


def _progress(version: VersionSeen | None) -> Iterator[_Fact]:
    """How far the version under test is."""
    for kind, before in STAGE_CONDITIONS.items():
        if version is None:
            yield _Fact(kind, "Unknown", "NoVersion", "no version is under test yet")
            continue
        over = version.phase in (VersionPhase.REJECTED, VersionPhase.FAILED)
        value: Value = "Unknown" if over else "False" if version.phase in before else "True"
        yield _Fact(kind, value, version.phase.value, f"version {version.number}")


def _quota(status: EvolutionStatus, busy: list[StageStatus]) -> _Fact:
    """Whether the cluster has room for what is to run, in the scheduler's or the queue's words."""
    if not busy:
        return _Fact("QuotaReserved", "Unknown", "NothingToRun", "")
    pending = next((s for s in busy if s.state is StageState.ACTIVE and s.message), None)
    if pending is not None:
        return _Fact("QuotaReserved", "False", "Pending", pending.message)
    return _Fact("QuotaReserved", "True", "Running", "")


def _condition(fact: _Fact, old: Condition | None, generation: int, now: float) -> Condition:
    since = old.last_transition_time if old is not None and old.status == fact.value else now
    return Condition(
        type=fact.type,
        status=fact.value,
        reason=fact.reason,
        message=fact.message[:1024],
        observed_generation=generation,
        last_transition_time=since,
    )
