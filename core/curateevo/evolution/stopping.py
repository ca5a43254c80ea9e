"""When an evaluation may end early: once no score of what has not been run could commit the version.

Sound for every completion, not for likely ones. The statistic of one bootstrap resample is linear in the scores: over
scores between 0 and 1 it is highest where each open score is 0 or 1 by the sign of its weight. Quantiles grow with each
of their values, so that the quantile of these ceilings is a ceiling of the quantile. (To score all open tasks 1 gives
none: deviations are widened, so that tasks which a resample leaves out count against it.)

Tasks that turn out not to be measurable leave the comparison and move those after them to other columns: each number of
them that the evaluation would still bear is looked at, with the best score that each column could then hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from curateevo.api.evolution import EarlyStop, Reason
from curateevo.api.spec import Acceptance, AcceptanceRule, Focus
from curateevo.api.stage import Against, ScoreTable
from curateevo.evolution.acceptance import (
    RESAMPLES,
    Draws,
    Floats,
    Ints,
    Measured,
    apply_rule,
    by_task,
    draw,
    mean,
    run_order,
    widening,
)
from curateevo.evolution.objective import performance

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
    told: Foregone | None = None
    for lost in range(min(losable, board.open_tasks) + 1):
        columns = board.columns(lost)
        if columns.tasks == 0:
            return None
        delta_p = columns.ceiling() + SLACK
        paired = rule.rule is AcceptanceRule.PAIRED
        lower = _lower_ceiling(columns, rule.confidence, seed) + SLACK if paired else delta_p
        commit, reason, text = apply_rule(rule, focus, delta_p, delta_c, lower, lambda_)
        if commit:
            return None
        told = told or Foregone(reason, text)
    return told


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
class _Columns:
    """What each column (a task) of a comparison holds at least and at most. Subjects by tasks, right the candidate."""

    right_low: Floats
    right_high: Floats
    left_low: Floats
    left_high: Floats

    @property
    def tasks(self) -> int:
        return int(self.right_low.shape[1])

    def ceiling(self) -> float:
        """The highest mean difference."""
        return float(self.right_high.mean() - self.left_low.mean())


@dataclass(frozen=True, slots=True)
class _Board:
    """The tasks that can be compared, in their order. Subjects by tasks."""

    low: Floats
    high: Floats
    """The candidate's score at least and at most: equal where it is known."""
    left: Floats
    settled: int
    """Tasks before the first that a subject has still to run: nothing moves them."""
    open_tasks: int
    """Tasks that a subject has still to run: each may turn out not to be measurable."""

    def columns(self, lost: int) -> _Columns:
        """The columns when `lost` open tasks are left out, whichever they are: a column behind the settled ones then
        holds its own task or one of the next `lost`."""
        return _Columns(
            -self._highest_next(-self.low, lost),
            self._highest_next(self.high, lost),
            -self._highest_next(-self.left, lost),
            self._highest_next(self.left, lost),
        )

    def _highest_next(self, values: Floats, lost: int) -> Floats:
        if lost == 0:
            return values
        settled, moving = values[:, : self.settled], values[:, self.settled :]
        if lost == moving.shape[1]:
            return settled
        windows = np.lib.stride_tricks.sliding_window_view(moving, lost + 1, axis=1)
        return np.concatenate([settled, windows.max(axis=2)], axis=1)


def _lay_out(champion: ScoreTable, so_far: ScoreTable) -> _Board:
    old = by_task(champion)
    place = {task: position for position, task in enumerate(so_far.tasks)}
    names = sorted(so_far.scores)
    low: list[list[float]] = []
    high: list[list[float]] = []
    columns: list[int] = []
    still: list[bool] = []
    for task in run_order(champion, so_far.tasks):
        rows = [so_far.scores[name][place[task]] for name in names]
        means = [mean(row) for row in rows]
        if task not in old.index or any(row and m is None for row, m in zip(rows, means, strict=True)):
            continue
        low.append([0.0 if m is None else m for m in means])
        high.append([1.0 if m is None else m for m in means])
        still.append(any(m is None for m in means))
        columns.append(old.index[task])
    shape = (len(columns), len(names))
    return _Board(
        np.array(low, dtype=np.float64).reshape(shape).T,
        np.array(high, dtype=np.float64).reshape(shape).T,
        old.values[:, columns],
        settled=still.index(True) if True in still else len(still),
        open_tasks=sum(still),
    )


def _lower_ceiling(columns: _Columns, confidence: float, seed: int) -> float:
    """A ceiling of the lower bound that `compare` finds."""
    tasks = columns.tasks
    drawn = draw(tasks, columns.right_low.shape[0], columns.left_low.shape[0], seed)
    highest = _highest(drawn, drawn.right, columns.right_low, columns.right_high)
    lowest = -_highest(drawn, drawn.left, -columns.left_high, -columns.left_low)
    return float(np.quantile(highest - lowest, 1 - confidence))


def _highest(drawn: Draws, rows: Ints | None, low: Floats, high: Floats) -> Floats:
    """For each resample the highest that one side's widened mean can be: each score takes the end that the sign of its
    weight asks for."""
    subjects, tasks = low.shape
    factor = widening(tasks)
    share = _counts(drawn.tasks, tasks) / tasks
    chosen = np.ones((RESAMPLES, 1)) if rows is None else _counts(rows, subjects) / subjects
    total = np.zeros(RESAMPLES)
    for subject in range(subjects):
        weights = factor * chosen[:, subject, None] * share - (factor - 1) / (subjects * tasks)
        # sum of w * high over w > 0 and of w * low over w < 0
        total += weights @ low[subject] + np.clip(weights, 0, None) @ (high[subject] - low[subject])
    return total


def _counts(picks: Ints, values: int) -> Floats:
    """How often each of `values` values was drawn, by resample."""
    offsets = np.arange(len(picks))[:, None] * values
    counts = np.bincount((picks + offsets).ravel(), minlength=len(picks) * values)
    return counts.reshape(len(picks), values).astype(np.float64)
