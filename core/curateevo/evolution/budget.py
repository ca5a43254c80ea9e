"""What may still be spent."""

from __future__ import annotations

from curateevo.api.evolution import Spent
from curateevo.api.spec import EvolutionSpec, LlmBudget
from curateevo.api.stage import Usage

SECONDS_PER_HOUR = 3600.0


def spent_budget(spec: EvolutionSpec, spent: Spent, started_at: float, now: float) -> str | None:
    """Which budget is used up, in words; None when there is some of each left."""
    budget, proposer = spec.budget, spec.proposer.budget
    if budget.wall_clock_hours is not None and now - started_at >= budget.wall_clock_hours * SECONDS_PER_HOUR:
        return f"budget.wallClockHours {budget.wall_clock_hours:g} is used up"
    if budget.gpu_hours is not None and spent.gpu_seconds >= budget.gpu_hours * SECONDS_PER_HOUR:
        return f"budget.gpuHours {budget.gpu_hours:g} is used up"
    for name, used, allowed in (
        ("tokens", spent.tokens, proposer.tokens),
        ("usd", spent.usd, proposer.usd),
        ("calls", spent.calls, proposer.calls),
    ):
        if used > 0 and used >= allowed:
            return f"proposer.budget.{name} {allowed:g} is used up"
    return None


def budget_left(budget: LlmBudget, spent: Spent) -> LlmBudget:
    """What the next round's proposer may spend."""
    return LlmBudget(
        tokens=max(0, budget.tokens - spent.tokens),
        usd=max(0.0, budget.usd - spent.usd),
        calls=max(0, budget.calls - spent.calls),
    )


def add_usage(spent: Spent, usage: Usage) -> Spent:
    return Spent(
        gpu_seconds=spent.gpu_seconds + usage.gpu_seconds,
        tokens=spent.tokens + usage.tokens,
        usd=spent.usd + usage.usd,
        calls=spent.calls + usage.calls,
    )
