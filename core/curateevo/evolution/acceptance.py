"""Commit or revert: the paper's plain rule, and a paired bootstrap that does not take noise for progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from curateevo.api.evolution import Reason
from curateevo.api.spec import Acceptance, AcceptanceRule, Focus
from curateevo.api.stage import ScoreTable

RESAMPLES = 4000
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measured:
    """One side of a comparison: scores on sel, and the cost."""

    scores: ScoreTable
    c: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A judgement and what it rests on. Bounds are of delta P, one-sided at the spec's confidence."""

    commit: bool
    reason: Reason
    message: str
    delta_p: float
    delta_j: float
    lower: float
    upper: float
    tasks: int


def compare(
    champion: Measured, candidate: Measured, focus: Focus, rule: Acceptance, lambda_: float, seed: int
) -> Comparison:
    """Judge a candidate. Pure: the bootstrap's generator is seeded with `seed`. Raises ValueError when no task was
    measured on both sides."""
    old, new = _by_task(champion.scores), _by_task(candidate.scores)
    shared = [task for task in candidate.scores.tasks if task in old.index and task in new.index]
    if not shared:
        raise ValueError("no task was measured for both champion and candidate")
    left = old.values[:, [old.index[t] for t in shared]]
    right = new.values[:, [new.index[t] for t in shared]]
    delta_p = float(right.mean() - left.mean())
    delta_c = candidate.c - champion.c
    delta_j = delta_p - lambda_ * delta_c
    lower, upper = _bounds(left, right, rule.confidence, seed)
    commit, reason, message = _judge(rule, focus, delta_p, delta_c, delta_j, lower, lambda_)
    return Comparison(commit, reason, message, delta_p, delta_j, lower, upper, len(shared))


def _judge(
    rule: Acceptance,
    focus: Focus,
    delta_p: float,
    delta_c: float,
    delta_j: float,
    lower: float,
    lambda_: float,
) -> tuple[bool, Reason, str]:
    match rule.rule:
        case AcceptanceRule.PAPER:
            commit = delta_j > 0
            return commit, Reason.IMPROVED if commit else Reason.NOT_IMPROVED, f"J changed by {delta_j:+.4f}"
        case AcceptanceRule.PAIRED if focus is Focus.EFFICIENCY:
            return _judge_efficiency(rule, delta_p, delta_c, lower)
        case AcceptanceRule.PAIRED:
            bound = lower - lambda_ * delta_c
            commit = bound > 0
            text = f"J changed by {delta_j:+.4f}, at {rule.confidence:.0%} confidence by more than {bound:+.4f}"
            return commit, Reason.IMPROVED if commit else Reason.NOT_IMPROVED, text
        case _:
            assert_never(rule.rule)


def _judge_efficiency(rule: Acceptance, delta_p: float, delta_c: float, lower: float) -> tuple[bool, Reason, str]:
    margin = rule.non_inferiority_margin
    if delta_c >= 0:
        return False, Reason.NOT_CHEAPER, f"C did not fall ({delta_c:+.4f})"
    sure = f"at {rule.confidence:.0%} confidence by more than {lower:+.4f}"
    text = f"C fell by {-delta_c:.4f}; P changed by {delta_p:+.4f}, {sure}"
    if lower > -margin:
        return True, Reason.CHEAPER, text
    return False, Reason.WORSE, f"{text}, and -{margin:g} is the margin"


@dataclass(frozen=True, slots=True)
class _Side:
    index: dict[str, int]
    values: Floats
    """Subjects by tasks."""


def _by_task(table: ScoreTable) -> _Side:
    """Task means per subject, of the tasks that every subject has measured."""
    names = sorted(table.scores)
    rows: dict[str, list[float]] = {}
    for position, task in enumerate(table.tasks):
        means = [_mean(table.scores[name][position]) for name in names]
        if names and all(m is not None for m in means):
            rows[task] = [m for m in means if m is not None]
    values = np.array([rows[t] for t in rows], dtype=np.float64).reshape(len(rows), len(names)).T
    return _Side({task: i for i, task in enumerate(rows)}, values)


def _mean(scores: tuple[float | None, ...]) -> float | None:
    kept = [s for s in scores if s is not None]
    return sum(kept) / len(kept) if kept else None


def _bounds(left: Floats, right: Floats, confidence: float, seed: int) -> tuple[float, float]:
    """One-sided lower and upper bounds of the mean difference: a bootstrap that resamples tasks, and on each side
    training seeds where there are several. Deviations are widened by sqrt(n / (n - 1)), as the plain bootstrap's
    variance is too small by that much."""
    generator = np.random.default_rng(seed)
    tasks = left.shape[1]
    picks = generator.integers(0, tasks, size=(RESAMPLES, tasks))
    means = _resampled(right, picks, generator) - _resampled(left, picks, generator)
    centre = float(right.mean() - left.mean())
    widened = centre + (means - centre) * np.sqrt(tasks / max(1, tasks - 1))
    low, high = np.quantile(widened, [1 - confidence, confidence])
    return float(low), float(high)


def _resampled(values: Floats, picks: npt.NDArray[np.int64], generator: np.random.Generator) -> Floats:
    seeds = values.shape[0]
    if seeds == 1:
        return np.asarray(values[0][picks].mean(axis=1))
    chosen = generator.integers(0, seeds, size=(picks.shape[0], seeds))
    return np.array([values[s][:, p].mean() for s, p in zip(chosen, picks, strict=True)])


def detectable_gain(tasks: int, changed_share: float = 0.3) -> float:
    """The gain in P that is seen one time in two: about 1.28 standard errors, sqrt(d / n), of a paired difference in
    which a share `changed_share` of tasks changed its outcome."""
    return 1.28 * float(np.sqrt(changed_share / max(1, tasks)))
