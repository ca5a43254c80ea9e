"""When an evaluation may end early: once no score of what has not been run could commit the version.

Sound for every completion, not for likely ones. In one bootstrap resample the difference is a weighted mean of the
tasks' differences, less a little of their plain mean, since deviations are widened: its ceiling takes each open task's
highest score in the first, and its lowest in the second. Quantiles grow with each of their values, so that the quantile
of these ceilings is a ceiling of the quantile.

Tasks that turn out not to be measurable leave the comparison: for as many as the evaluation would still bear, those are
left out without which the mean is the highest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from curateevo.api.evolution import EarlyStop, Reason
from curateevo.api.spec import Acceptance, AcceptanceRule, Focus
from curateevo.api.stage import Against, ScoreTable
from curateevo.evolution.acceptance import (
    Floats,
    Ints,
    Measured,
    apply_rule,
    by_task,
    draw,
    group_numbers,
    mean,
    run_order,
)
from curateevo.evolution.objective import performance

Bools = npt.NDArray[np.bool_]
MOST_STEPS = 50
"""Of an iteration that takes a handful; without its end there is no ceiling."""
ROUNDING = 1e-12
SLACK = 1e-9
"""Added to every ceiling, for the rounding of sums in another order."""
HIGHEST = 2.0
"""No difference in P is higher, nor is a bound of it, widened at most by sqrt(2)."""


@dataclass(frozen=True, slots=True)
class Foregone:
    """The verdict on a candidate that can't be committed any more."""

    reason: Reason
    message: str
    """Why not, with the best that it could have come to."""


def foregone(
    champion: Measured,
    so_far: Measured,
    losable: int,
    focus: Focus,
    rule: Acceptance,
    lambda_: float,
    seed: int,
) -> Foregone | None:
    """The verdict that `compare` must come to, whatever is scored where nothing was run yet; None while the candidate
    could be committed, or nothing be comparable.

    `so_far` has every task; where a subject did not run one yet, its row is empty. At most `losable` more tasks may
    turn out not to be measurable. Pure, as `compare` is.
    """
    delta_c = so_far.c - champion.c
    if (by_cost := foregone_by_cost(focus, rule, delta_c, lambda_)) is not None:
        return by_cost
    board = _lay_out(champion.scores, so_far.scores)
    if board.comparable(losable) == 0:
        return None
    delta_p = board.ceiling(losable) + SLACK
    paired = rule.rule is AcceptanceRule.PAIRED
    lower = board.lower_ceiling(losable, rule.confidence, seed) + SLACK if paired else delta_p
    commit, reason, text = apply_rule(rule, focus, delta_p, delta_c, lower, lambda_)
    return None if commit else Foregone(reason, text)


def foregone_by_cost(focus: Focus, rule: Acceptance, delta_c: float, lambda_: float) -> Foregone | None:
    """The verdict that the cost alone comes to, before anything is trained or run."""
    commit, reason, text = apply_rule(rule, focus, HIGHEST, delta_c, HIGHEST, lambda_)
    return None if commit else Foregone(reason, text)


def stopped_text(stopped: EarlyStop) -> str:
    """An early end, in a line: never P as if all had been run."""
    if stopped.p_so_far is None:
        return f"stopped early, before any episode: {stopped.message}"
    ran = f"{stopped.episodes} of {stopped.of_episodes} episodes"
    p = f"P {stopped.p_so_far:.3f} so far, {stopped.p_at_most:.3f} at most"
    return f"stopped early after {ran} ({p}): at best {stopped.message}"


def early_stop(champion: ScoreTable, so_far: ScoreTable, against: Against, losable: int, runs: int) -> EarlyStop | None:
    """The early end of an evaluation that came as far as `so_far`, of `runs` runs of each task; None while it has to go
    on. The other arguments are those of `foregone`."""
    found = foregone(
        Measured(champion, against.champion_c),
        Measured(so_far, against.c),
        losable,
        against.focus,
        against.acceptance,
        against.lambda_,
        against.seed,
    )
    if found is None:
        return None
    return EarlyStop(
        episodes=sum(len(row) for rows in so_far.scores.values() for row in rows),
        of_episodes=len(so_far.tasks) * len(so_far.scores) * runs,
        p_so_far=performance(so_far),
        p_at_most=_at_most(so_far),
        reason=found.reason,
        message=found.message,
    )


def _at_most(table: ScoreTable) -> float:
    """The highest P that a table can come to, where what was not run (an empty row) may still score 1. 0..1."""
    subjects = []
    for rows in table.scores.values():
        values = [1.0 if not row else mean(row) for row in rows]
        kept = [v for v in values if v is not None]
        subjects.append(sum(kept) / len(kept) if kept else 0.0)
    return sum(subjects) / len(subjects) if subjects else 0.0


@dataclass(frozen=True, slots=True)
class _Board:
    """The champion's tasks that can be compared, in their order. Scores are subjects by tasks."""

    low: Floats
    high: Floats
    """The candidate's score at least and at most: equal where it is known."""
    left: Floats
    is_open: Bools
    """By task: a subject has still to run it, and it may turn out not to be measurable."""
    groups: Ints
    """Of all tasks of the champion's."""
    columns: list[int]
    """Which of these the compared ones are."""

    def comparable(self, losable: int) -> int:
        """How many tasks are left to compare at least."""
        return len(self.columns) - min(losable, int(self.is_open.sum()))

    def ceiling(self, losable: int) -> float:
        """The highest mean difference."""
        return _highest_mean(self.high.mean(axis=0) - self.left.mean(axis=0), self.is_open, losable)

    def lower_ceiling(self, losable: int, confidence: float, seed: int) -> float:
        """A ceiling of the lower bound that `compare` finds."""
        drawn = draw(self.groups, len(self.high), len(self.left), seed)
        if not np.isfinite(drawn.widening):
            return -1.0
        highest = _highest_weighted(
            drawn.tasks[:, self.columns], drawn.right @ self.high - drawn.left @ self.left, self.is_open, losable
        )
        lowest = -_highest_mean(self.left.mean(axis=0) - self.low.mean(axis=0), self.is_open, losable)
        return float(np.quantile(drawn.widening * highest - (drawn.widening - 1) * lowest, 1 - confidence))


def _lay_out(champion: ScoreTable, so_far: ScoreTable) -> _Board:
    old = by_task(champion)
    place = {task: position for position, task in enumerate(so_far.tasks)}
    names = sorted(so_far.scores)
    low: list[list[float]] = []
    high: list[list[float]] = []
    columns: list[int] = []
    still: list[bool] = []
    tasks = run_order(champion, old.index)
    for number, task in enumerate(tasks):
        rows = [so_far.scores[name][place[task]] for name in names] if task in place else [(None,)]
        means = [mean(row) for row in rows]
        if any(row and m is None for row, m in zip(rows, means, strict=True)):
            continue
        low.append([0.0 if m is None else m for m in means])
        high.append([1.0 if m is None else m for m in means])
        still.append(any(m is None for m in means))
        columns.append(number)
    shape = (len(columns), len(names))
    return _Board(
        np.array(low, dtype=np.float64).reshape(shape).T,
        np.array(high, dtype=np.float64).reshape(shape).T,
        old.values[:, [old.index[tasks[number]] for number in columns]],
        np.array(still, dtype=bool),
        group_numbers(champion, tasks),
        columns,
    )


def _highest_mean(values: Floats, may_go: Bools, most: int) -> float:
    """The highest mean when up to `most` of those that may go are left out."""
    lowest = np.sort(values[may_go])[:most]
    sums = values.sum() - np.concatenate([[0.0], np.cumsum(lowest)])
    counts = len(values) - np.arange(len(sums))
    return float((sums[counts > 0] / counts[counts > 0]).max())


def _highest_weighted(weights: Floats, values: Floats, may_go: Bools, most: int) -> Floats:
    """For each resample, a ceiling of the weighted mean when up to `most` of those that may go are left out: the r for
    which weights times (values - r), the lowest of those that may go left out, add up to 0 (Dinkelbach 1967)."""
    most = min(most, int(may_go.sum()))
    total = weights.sum(axis=1)
    sums = (weights * values).sum(axis=1)
    movable, moving = weights[:, may_go], values[:, may_go]
    unsure = (total - movable.sum(axis=1) <= 0) & ((movable > 0).sum(axis=1) <= most)
    found: Floats = np.divide(sums, total, out=np.full(len(total), HIGHEST), where=~unsure)
    if most == 0:
        return found
    for _ in range(MOST_STEPS):
        gains = movable * (moving - found[:, None])
        out = np.argpartition(gains, most - 1, axis=1)[:, :most]
        gone = np.where(np.take_along_axis(gains, out, axis=1) < 0, np.take_along_axis(movable, out, axis=1), 0.0)
        lost = (gone * np.take_along_axis(moving, out, axis=1)).sum(axis=1)
        kept = total - gone.sum(axis=1)
        better = np.divide(sums - lost, kept, out=found.copy(), where=~unsure & (kept > 0))
        if not (better > found + ROUNDING).any():
            return found
        found = np.maximum(found, better)
    return np.full(len(total), HIGHEST)
