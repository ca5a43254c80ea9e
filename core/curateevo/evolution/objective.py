"""J = P - lambda * C (CurateEvo, arXiv 2607.06140, section on the objective)."""

from __future__ import annotations

import math

from curateevo.api.spec import Objective
from curateevo.api.stage import CurateSummary, IngestSummary, ScoreTable


def cost(turns: int, reference_turns: int) -> float:
    """C = tanh(log(1 + turns) / log(1 + reference)), 0..1. Both are counts of turns; the reference is at least 1."""
    return math.tanh(math.log1p(turns) / math.log1p(max(1, reference_turns)))


def cost_of(spec: Objective, curated: CurateSummary, ingested: IngestSummary) -> float:
    """C of what a policy kept, rounded as it is recorded."""
    return round(cost(curated.sft_turns + curated.rl_turns, spec.reference_turns or ingested.turns), 9)


def objective(p: float, c: float, lambda_: float) -> float:
    return p - lambda_ * c


def mean_success(table: ScoreTable, subject: str) -> float | None:
    """Mean over tasks of the mean over a task's measured repeats; None when nothing was measured."""
    means = [sum(kept) / len(kept) for row in table.scores[subject] if (kept := [s for s in row if s is not None])]
    return sum(means) / len(means) if means else None


def performance(table: ScoreTable) -> float | None:
    """P: the mean over subjects (training seeds) of their mean success."""
    means = [m for name in sorted(table.scores) if (m := mean_success(table, name)) is not None]
    return sum(means) / len(means) if means else None
