"""What may still be spent."""

from __future__ import annotations

from curateevo.api.evolution import Spent, SpentOnRewriting
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
    if (text := _used_up("proposer", proposer, spent)) or spec.augmentation is None:
        return text
    return _used_up("augmentation", spec.augmentation.budget, spent.augmentation or SpentOnRewriting())


def _used_up(section: str, budget: LlmBudget, spent: Spent | SpentOnRewriting) -> str | None:
    for name, used, allowed in (
        ("tokens", spent.tokens, budget.tokens),
        ("usd", spent.usd, budget.usd),
        ("calls", spent.calls, budget.calls),
    ):
        if used > 0 and used >= allowed:
            return f"{section}.budget.{name} {allowed:g} is used up"
    return None


def augmentation_left(spec: EvolutionSpec, spent: Spent) -> EvolutionSpec:
    """The spec for a version: its rewriting may spend what is left."""
    if spec.augmentation is None or spent.augmentation is None:
        return spec
    left = budget_left(spec.augmentation.budget, spent.augmentation)
    return spec.model_copy(update={"augmentation": spec.augmentation.model_copy(update={"budget": left})})


def budget_left(budget: LlmBudget, spent: Spent | SpentOnRewriting) -> LlmBudget:
    """What the next round may spend on a model."""
    return LlmBudget(
        tokens=max(0, budget.tokens - spent.tokens),
        usd=max(0.0, budget.usd - spent.usd),
        calls=max(0, budget.calls - spent.calls),
    )


def add_usage(spent: Spent, usage: Usage) -> Spent:
    return spent.model_copy(
        update={
            "gpu_seconds": spent.gpu_seconds + usage.gpu_seconds,
            "tokens": spent.tokens + usage.tokens,
            "usd": spent.usd + usage.usd,
            "calls": spent.calls + usage.calls,
        }
    )


def add_rewriting(spent: Spent, usage: Usage) -> Spent:
    """With what a curation cost: of it only rewriting costs tokens, money and calls."""
    so_far = spent.augmentation or SpentOnRewriting()
    added = SpentOnRewriting(
        tokens=so_far.tokens + usage.tokens, usd=so_far.usd + usage.usd, calls=so_far.calls + usage.calls
    )
    return spent.model_copy(update={"augmentation": added})
