"""GRACE: how well each turn's gradient agrees with where successes lead, and with the turns before it.

Li et al. 2026, "GRACE: Gradient-aligned Reasoning Data Curation for Efficient Post-training" (arXiv 2605.13130): a step
is scored by its alignment with the gradient of the answer and by its consistency with the steps before, both from
signals that one forward pass gives (`curateevo_jobs.training.grace` makes them).

Simplified: an agent's last message is mostly no answer ("Done."), so the mean of the turns of the family's other
successes stands for the answer's gradient. Of the paper only the abstract was at hand: the proxy's details are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

ALIGNMENT, CONSISTENCY = "turn_alignment", "turn_consistency"
DECIMALS = 4
"""Of a score: what is behind hangs on the machine."""
Signals = npt.NDArray[np.float32]
"""One unit vector per turn, or NaN where a turn has none."""
Vector = npt.NDArray[np.float64]
Span = tuple[int, int]
"""A trajectory's turns among the signals, the end not included."""


@dataclass(frozen=True, slots=True)
class _Direction:
    """Where some trajectories lead: the sum of their turns' signals, and how many they are."""

    total: Vector
    members: int

    def without(self, own: Vector, is_member: bool) -> Vector | None:
        """The direction of the others; None when there are none."""
        if self.members == int(is_member):
            return None
        return _unit(self.total - own if is_member else self.total)


def grace_columns(features: pl.DataFrame, signals: Signals) -> pl.DataFrame:
    """`turn_alignment` and `turn_consistency` (-1..1): for every trajectory one value per turn, in order.

    `features` holds family, success and turns; `signals` the turns of all trajectories, one after another. Successes
    are those that are labelled so, or in a corpus without such a label all that are not labelled. A family without
    others takes the direction of all others. Null: a turn without a signal, the consistency of a first turn, and an
    alignment where there are no successes.
    """
    good, spans = _successes(features["success"]), list(pairwise([0, *features["turns"].cum_sum().to_list()]))
    everything = _direction(signals, (span for span, is_good in zip(spans, good, strict=True) if is_good))
    families: dict[str, list[int]] = {}
    for row, family in enumerate(features["family"].to_list()):
        families.setdefault(family, []).append(row)
    alignment: list[list[float | None]] = [[None] * (end - start) for start, end in spans]
    consistency: list[list[float | None]] = [[None] * (end - start) for start, end in spans]
    for rows in families.values():
        goal = _direction(signals, (spans[row] for row in rows if good[row]))
        for row in rows:
            turns = _turns(signals, spans[row])
            if turns is None:
                continue
            own = turns.sum(axis=0)
            wanted = goal.without(own, good[row])
            wanted = everything.without(own, good[row]) if wanted is None else wanted
            if wanted is not None:
                alignment[row] = [_cosine(turn, wanted) for turn in turns]
            before = np.cumsum(turns, axis=0)
            consistency[row][1:] = [_cosine(t, _unit(b)) for t, b in zip(turns[1:], before, strict=False)]
    kind = pl.List(pl.Float32())
    return pl.DataFrame([pl.Series(ALIGNMENT, alignment, dtype=kind), pl.Series(CONSISTENCY, consistency, dtype=kind)])


def _successes(labels: pl.Series) -> list[bool]:
    return (labels.fill_null(False) if labels.any() else labels.is_null()).to_list()


def _direction(signals: Signals, spans: Iterable[Span]) -> _Direction:
    """Of the trajectories that have signals."""
    total, members = np.zeros(signals.shape[1]), 0
    for span in spans:
        if (turns := _turns(signals, span)) is not None:
            total += turns.sum(axis=0)
            members += 1
    return _Direction(total, members)


def _turns(signals: Signals, span: Span) -> Vector | None:
    """A trajectory's signals; None when it has none."""
    found = np.asarray(signals[slice(*span)], dtype=np.float64)
    return None if np.isnan(found).any() else found


def _unit(vector: Vector) -> Vector:
    """Of length 1; zero stays zero."""
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector


def _cosine(left: Vector, right: Vector) -> float:
    """Of unit vectors."""
    return round(min(1.0, max(-1.0, float(left @ right))), DECIMALS)
