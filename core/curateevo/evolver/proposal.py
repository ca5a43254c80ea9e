"""What a proposer is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from curateevo.api.spec import Focus
from curateevo.api.stage import HistoryEntry
from curateevo.evolver.diagnosis import Diagnosis
from curateevo.evolver.patch import Patch
from curateevo.trajectories.model import JsonObject


@dataclass(frozen=True, slots=True)
class ProposalInput:
    """All that a proposer may know. Nothing of sel and test but the verdicts in the history."""

    number: int
    focus: Focus
    source: str
    """The champion's code."""
    profile: JsonObject
    diagnosis: Diagnosis
    history: tuple[HistoryEntry, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A whole new policy, with the patch that made it where there is one."""

    source: str
    method: str
    hypothesis: str
    expected: str
    patch: Patch | None = None
    tokens: int = 0
    usd: float = 0.0
    calls: int = 0
    transcript: tuple[JsonObject, ...] = ()
    """All that was said to reach it, where there was a conversation."""


class Proposer(Protocol):
    def propose(self, given: ProposalInput) -> Proposal | None:
        """The next policy, or None when there is nothing more to try."""
        ...
