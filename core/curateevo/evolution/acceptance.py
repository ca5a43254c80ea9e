"""Commit or revert: the paper's plain rule, and a paired bootstrap that does not take noise for progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    tasks = run_order(champion.scores, old.index)
    shared = [task for task in tasks if task in new.index]
    if not shared:
        raise ValueError("no task was measured for both champion and candidate")
    left = old.values[:, [old.index[t] for t in shared]]
    right = new.values[:, [new.index[t] for t in shared]]
    delta_p = float(right.mean() - left.mean())
    delta_c = candidate.c - champion.c
    delta_j = delta_p - lambda_ * delta_c
    drawn = draw(group_numbers(champion.scores, tasks), len(right), len(left), seed)
    held = drawn.tasks[:, [task in new.index for task in tasks]]
    lower, upper = _bounds(left, right, held, drawn, rule.confidence)
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


def group_numbers(table: ScoreTable, tasks: Sequence[str]) -> Ints:
    """The number of each task's group, in order of first appearance."""
    group_of = dict(zip(table.tasks, table.groups or table.tasks, strict=True))
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(group_of[task], len(numbers)) for task in tasks], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Draws:
    """RESAMPLES draws with replacement. By resample: how often each of the champion's tasks was drawn, whole groups at
    a time; and the share of each training seed among those drawn, on either side."""

    tasks: Floats
    right: Floats
    left: Floats
    widening: float
    """Of deviations: the plain bootstrap's variance is too small by (n - 1) / n, with n groups. For the number of
    training seeds they are not widened: drawing these counts what tasks vary by once more, which in simulation makes up
    for it. Not finite where there is one group, which tells nothing."""


def draw(groups: Ints, right: int, left: int, seed: int) -> Draws:
    """The draws for a champion's tasks of these `groups` (numbers from 0 on), with `right` and `left` training seeds.
    Which tasks a candidate has measured changes nothing in them."""
    generator = np.random.default_rng(seed)
    count = int(groups.max()) + 1
    tasks = _counts(generator.integers(0, count, size=(RESAMPLES, count)), count)[:, groups]
    seeds = [
        _counts(generator.integers(0, n, size=(RESAMPLES, n)), n) / n if n > 1 else np.ones((RESAMPLES, 1))
        for n in (right, left)
    ]
    return Draws(tasks, seeds[0], seeds[1], float(np.sqrt(count / (count - 1))) if count > 1 else float("inf"))


def _counts(picks: Ints, values: int) -> Floats:
    """How often each of `values` values was drawn, by resample."""
    offsets = np.arange(len(picks))[:, None] * values
    counts = np.bincount((picks + offsets).ravel(), minlength=len(picks) * values)
    return counts.reshape(len(picks), values).astype(np.float64)


def _bounds(left: Floats, right: Floats, tasks: Floats, drawn: Draws, confidence: float) -> tuple[float, float]:
    """One-sided lower and upper bounds of the mean difference. Scores are subjects by tasks; `tasks`: how often each of
    these was drawn."""
    if not np.isfinite(drawn.widening):
        return -1.0, 1.0
    centre = float(right.mean() - left.mean())
    total = tasks.sum(axis=1)
    sums = (tasks * (drawn.right @ right - drawn.left @ left)).sum(axis=1)
    means = np.divide(sums, total, out=np.full(RESAMPLES, centre), where=total > 0)
    low, high = np.quantile(centre + (means - centre) * drawn.widening, [1 - confidence, confidence])
    return float(low), float(high)


def detectable_gain(tasks: int, changed_share: float = 0.3) -> float:
    """The gain in P that is seen one time in two: about 1.28 standard errors, sqrt(d / n), of a paired difference in
    which a share `changed_share` of tasks changed its outcome."""
    return 1.28 * float(np.sqrt(changed_share / max(1, tasks)))
