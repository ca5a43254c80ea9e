"""What a proposer is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from curateevo.api.errors import ContractBroken
from curateevo.api.spec import Focus
from curateevo.api.stage import HistoryEntry
from curateevo.evolver.diagnosis import Diagnosis
from curateevo.evolver.patch import Patch
from curateevo.evolver.spending import Ledger
from curateevo.trajectories.model import JsonObject

COVERED = "covered_tools"
"""In a curation's profile and in the context: the tools that the data calls."""


@dataclass(frozen=True, slots=True)
class TriedPolicy:
    """The code of an earlier candidate."""

    number: int
    source: str


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
    tried: tuple[TriedPolicy, ...] = ()
    """Earlier candidates that were tested: none is to be proposed again."""
    rewriting: bool = False
    """Whether the run has a model for `request_rewrite`."""


def context_of(diagnosis: Diagnosis, profile: JsonObject, covered: Sequence[str] = ()) -> JsonObject:
    """What the next policy may know of its parent's failures: `ctx`, as a file. `covered`: the tools that the parent's
    data calls, for the contract gate."""
    found = diagnosis.to_json()
    known = {"failures": found["clusters"], "family_success": found["familySuccess"], "profile": profile}
    return {**known, COVERED: list(covered)}


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


class ProposalRefused(ContractBroken):
    """Nothing acceptable, or no budget for more. Carries what the round has cost and all that was said."""

    def __init__(
        self, reason: str, message: str, spent: Ledger, transcript: tuple[JsonObject, ...], source: str = ""
    ) -> None:
        super().__init__(message)
        self.reason = reason
        """`ProposalRefused` or `BudgetSpent`."""
        self.transcript = transcript
        self.tokens, self.usd, self.calls = spent.tokens, spent.usd, spent.calls
        self.source = source
        """The policy that was refused, where there is one."""


class Proposer(Protocol):
    def propose(self, given: ProposalInput) -> Proposal | None:
        """The next policy, or None when there is nothing more to try. Raises ProposalRefused."""
        ...
