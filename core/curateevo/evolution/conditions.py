"""Conditions from the phase: the kstatus triple Ready, Reconciling, Stalled; the ends Complete, Failed, Suspended."""

from __future__ import annotations

from typing import Literal

from curateevo.api.evolution import Condition, EvolutionPhase, EvolutionStatus, Reason, StageState

TYPES = ("Ready", "Reconciling", "Stalled", "Complete", "Failed", "Suspended")
STALLING = frozenset({Reason.DENIED, Reason.AWAITING_POLICY, Reason.CONTRACT_BROKEN})


def with_conditions(status: EvolutionStatus, before: EvolutionStatus, generation: int, now: float) -> EvolutionStatus:
    """`status` with its conditions; a condition's transition time moves only when its status does."""
    old = {c.type: c for c in before.conditions}
    holds = _holds(status)
    conditions = tuple(_condition(kind, holds[kind], status, old.get(kind), generation, now) for kind in TYPES)
    return status.model_copy(update={"conditions": conditions, "observed_generation": generation})


def _holds(status: EvolutionStatus) -> dict[str, bool]:
    complete, failed = status.phase is EvolutionPhase.COMPLETE, status.phase is EvolutionPhase.FAILED
    suspended = status.phase is EvolutionPhase.SUSPENDED
    waiting = any(s.state is StageState.WAITING and s.reason in STALLING for s in status.stages.values())
    stalled = failed or waiting or (not complete and status.reason in STALLING)
    return {
        "Ready": complete,
        "Reconciling": not (complete or failed or suspended),
        "Stalled": stalled,
        "Complete": complete,
        "Failed": failed,
        "Suspended": suspended,
    }


def _condition(
    kind: str, holds: bool, status: EvolutionStatus, old: Condition | None, generation: int, now: float
) -> Condition:
    value: Literal["True", "False"] = "True" if holds else "False"
    since = old.last_transition_time if old is not None and old.status == value else now
    return Condition(
        type=kind,
        status=value,
        reason=(status.reason or Reason.RUNNING).value,
        message=status.message[:1024],
        observed_generation=generation,
        last_transition_time=since,
    )
