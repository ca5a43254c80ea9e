"""Commit or revert: the paper's plain rule, and a paired bootstrap that does not take noise for progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from curateevo.api.evolution import Reason
from curateevo.api.spec import Acceptance, AcceptanceRule, Focus
from curateevo.api.stage import ScoreTable

RESAMPLES = 4000
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    old, new = by_task(champion.scores), by_task(candidate.scores)
    shared = [
        task for task in run_order(champion.scores, candidate.scores.tasks) if task in old.index and task in new.index
    ]
    if not shared:
        raise ValueError("no task was measured for both champion and candidate")
    left = old.values[:, [old.index[t] for t in shared]]
    right = new.values[:, [new.index[t] for t in shared]]
    delta_p = float(right.mean() - left.mean())
    delta_c = candidate.c - champion.c
    delta_j = delta_p - lambda_ * delta_c
    lower, upper = _bounds(left, right, rule.confidence, seed)
    commit, reason, message = apply_rule(rule, focus, delta_p, delta_c, lower, lambda_)
    return Comparison(commit, reason, message, delta_p, delta_j, lower, upper, len(shared))


def run_order(champion: ScoreTable, tasks: Iterable[str]) -> list[str]:
    """Tasks in the order in which a candidate runs and is compared on them: those that the champion does worst first,
    then by id; last those without a score of the champion's. What it fails, a candidate fails most often, and only
    what a candidate fails brings the end of its evaluation nearer (see `stopping`)."""
    side = by_task(champion)
    means = {task: float(side.values[:, column].mean()) for task, column in side.index.items()}
    return sorted(tasks, key=lambda task: (means.get(task, 2.0), task))


def apply_rule(
    rule: Acceptance, focus: Focus, delta_p: float, delta_c: float, lower: float, lambda_: float
) -> tuple[bool, Reason, str]:
    """Whether to commit, why, and in words. What is committed at some `delta_p` and `lower` bound of it is committed at
    higher ones as well."""
    delta_j = delta_p - lambda_ * delta_c
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
class Side:
    """Task means of one side."""

    index: dict[str, int]
    values: Floats
    """Subjects by tasks."""


def by_task(table: ScoreTable) -> Side:
    """Task means per subject, of the tasks that every subject has measured."""
    names = sorted(table.scores)
    rows: dict[str, list[float]] = {}
    for position, task in enumerate(table.tasks):
        means = [mean(table.scores[name][position]) for name in names]
        if names and all(m is not None for m in means):
            rows[task] = [m for m in means if m is not None]
    values = np.array([rows[t] for t in rows], dtype=np.float64).reshape(len(rows), len(names)).T
    return Side({task: i for i, task in enumerate(rows)}, values)


def mean(scores: tuple[float | None, ...]) -> float | None:
    """Of what was measured; None where nothing was."""
    kept = [s for s in scores if s is not None]
    return sum(kept) / len(kept) if kept else None


@dataclass(frozen=True, slots=True)
class Draws:
    """RESAMPLES draws with replacement: of columns (tasks), and of rows (training seeds) on either side; no rows where
    there is one."""

    tasks: Ints
    right: Ints | None
    left: Ints | None


def draw(tasks: int, right: int, left: int, seed: int) -> Draws:
    """The draws of a comparison over `tasks` tasks, with `right` and `left` training seeds."""
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, tasks, size=(RESAMPLES, tasks))
    rows = [generator.integers(0, n, size=(RESAMPLES, n)) if n > 1 else None for n in (right, left)]
    return Draws(picks, *rows)


def widening(tasks: int) -> float:
    """By how much deviations are widened: the plain bootstrap's variance is too small by (n - 1) / n."""
    return float(np.sqrt(tasks / max(1, tasks - 1)))


def _bounds(left: Floats, right: Floats, confidence: float, seed: int) -> tuple[float, float]:
    """One-sided lower and upper bounds of the mean difference: a bootstrap that resamples tasks, and on each side
    training seeds where there are several, its deviations widened."""
    tasks = left.shape[1]
    drawn = draw(tasks, right.shape[0], left.shape[0], seed)
    means = _resampled(right, drawn.tasks, drawn.right) - _resampled(left, drawn.tasks, drawn.left)
    centre = float(right.mean() - left.mean())
    widened = centre + (means - centre) * widening(tasks)
    low, high = np.quantile(widened, [1 - confidence, confidence])
    return float(low), float(high)


def _resampled(values: Floats, picks: Ints, rows: Ints | None) -> Floats:
    if rows is None:
        return np.asarray(values[0][picks].mean(axis=1))
    return np.asarray(values[rows[:, :, None], picks[:, None, :]].mean(axis=(1, 2)))


def detectable_gain(tasks: int, changed_share: float = 0.3) -> float:
    """The gain in P that is seen one time in two: about 1.28 standard errors, sqrt(d / n), of a paired difference in
    which a share `changed_share` of tasks changed its outcome."""
    return 1.28 * float(np.sqrt(changed_share / max(1, tasks)))
