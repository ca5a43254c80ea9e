"""What a policy over- and under-represents against the corpus: shares of rows, their ratios, and how sure those are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from curateevo.trajectories.model import JsonObject

Floats = npt.NDArray[np.float64]
SAMPLES = 400
CHUNK = 50
CONFIDENCE = 0.95
Z95 = 1.959964
LEAST_TASKS = 5
"""A value of fewer tasks gets no interval: resampling so few says nothing."""
MOST_VALUES = 12
"""Of one dimension; where each row has one value, the rarer ones are taken together."""
REST = "(the rest)"
LENGTHS = ((2, "1 to 2"), (5, "3 to 5"), (10, "6 to 10"), (20, "11 to 20"))
LONGEST = "over 20"
OUTCOMES = {True: "success", False: "failure", None: "unknown"}


@dataclass(frozen=True, slots=True)
class Kept:
    """A row of the data that a policy made: which trajectory it comes from, and its tools."""

    row: int
    tools: frozenset[str]
    copies: int = 1


@dataclass(frozen=True, slots=True)
class _Dimension:
    """One way to divide the rows. `of_corpus` has the values of each corpus row."""

    name: str
    of_corpus: Sequence[frozenset[str]]
    of_kept: Callable[[Kept], frozenset[str]]
    exclusive: bool = True
    """Each row has exactly one value."""
    order: tuple[str, ...] = ()
    """Of values that have an order of their own; others stand by share."""


def representation_of(features: pl.DataFrame, sft: Sequence[Kept], rl: Sequence[Kept]) -> JsonObject:
    """Shares (0..1) of corpus trajectories, SFT rows (copies count) and RL tasks by source, family, tool, turns and
    outcome, and the ratio of a share to the corpus's (1: as in the corpus).

    A row's values are those of its trajectory, whatever turns are kept; an SFT row's tools are those that its own turns
    call, so that the ratios of tools fall together where rows are cut short.
    The 95 % interval of a ratio is a percentile bootstrap over tasks (`SAMPLES` samples, a fixed seed): it says how
    much hangs on which tasks the corpus happens to hold. Where no row is kept, its upper end is Wilson's for none of
    the kept tasks. It is null for a value of fewer than `LEAST_TASKS` tasks.
    """
    names = features["task_id"].to_list()
    numbers = {name: n for n, name in enumerate(dict.fromkeys(names))}
    tasks = np.array([numbers[name] for name in names], dtype=np.int64)
    tools = _sets(features["tools"].to_list())
    corpus = [Kept(row, called) for row, called in enumerate(tools)]
    dimensions = []
    for dimension in _dimensions(features, tools):
        chosen = _chosen(dimension)
        whole = _table(corpus, dimension, chosen, tasks, len(numbers))
        parts = {
            name: _table(rows, dimension, chosen, tasks, len(numbers))
            for name, rows in (("sft", sft), ("rl", rl))
            if rows
        }
        dimensions.append({"name": dimension.name, "values": _values(chosen, whole, parts)})
    return {"tasks": len(numbers), "dimensions": dimensions}


def _dimensions(features: pl.DataFrame, tools: list[frozenset[str]]) -> Iterable[_Dimension]:
    for name in ("source", "family"):
        yield _single(name, [str(value) for value in features[name].to_list()])
    yield _Dimension("tool", tools, lambda kept: kept.tools, exclusive=False)
    lengths = [_length(turns) for turns in features["turns"].to_list()]
    yield _single("turns", lengths, (*(name for _, name in LENGTHS), LONGEST))
    outcomes = [OUTCOMES[value] for value in features["success"].to_list()]
    yield _single("outcome", outcomes, tuple(OUTCOMES.values()))


def _single(name: str, values: list[str], order: tuple[str, ...] = ()) -> _Dimension:
    sets = _sets([value] for value in values)
    return _Dimension(name, sets, lambda kept: sets[kept.row], order=order)


def _sets(rows: Iterable[Iterable[str]]) -> list[frozenset[str]]:
    """Each row's values; equal sets are one object, for a corpus has many rows and few sets."""
    known: dict[frozenset[str], frozenset[str]] = {}
    return [known.setdefault(found, found) for found in map(frozenset, rows)]


def _length(turns: int) -> str:
    return next((name for most, name in LENGTHS if turns <= most), LONGEST)


def _chosen(dimension: _Dimension) -> list[str]:
    """The values that are told, in order."""
    counts = Counter(value for values in dimension.of_corpus for value in values)
    ranked = sorted(counts, key=lambda v: (-counts[v], v))
    if len(ranked) > MOST_VALUES:
        ranked = ranked[: MOST_VALUES - dimension.exclusive] + [REST] * dimension.exclusive
    return sorted(ranked, key=dimension.order.index) if dimension.order else ranked


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows by task and value, and by task."""

    counts: Floats
    totals: Floats

    @property
    def tasks(self) -> int:
        return int((self.totals > 0).sum())

    def shares(self, weights: Floats) -> Floats:
        """Shares of each value, for each line of task weights; NaN where the tasks drawn have no row."""
        totals = weights @ self.totals
        with np.errstate(invalid="ignore"):
            found: Floats = (weights @ self.counts) / totals[:, None]
        return found


def _table(
    rows: Iterable[Kept], dimension: _Dimension, chosen: list[str], tasks: npt.NDArray[np.int64], count: int
) -> _Table:
    places = {value: n for n, value in enumerate(chosen)}
    rest = places.get(REST, -1)
    counts, totals = np.zeros((count, len(chosen))), np.zeros(count)
    for kept in rows:
        task = tasks[kept.row]
        totals[task] += kept.copies
        for place in {places.get(value, rest) for value in dimension.of_kept(kept)} - {-1}:
            counts[task, place] += kept.copies
    return _Table(counts, totals)


def _values(chosen: list[str], whole: _Table, parts: dict[str, _Table]) -> list[JsonObject]:
    once = np.ones((1, len(whole.totals)))
    shares = whole.shares(once)[0]
    tasks = (whole.counts > 0).sum(axis=0)
    out: list[JsonObject] = [
        {"value": value, "tasks": int(tasks[n]), "corpus": _plain(shares[n])} for n, value in enumerate(chosen)
    ]
    for name, part in parts.items():
        kept = part.shares(once)[0]
        low, high = _interval(whole, part)
        none_kept = Z95**2 / (part.tasks + Z95**2)
        for n, entry in enumerate(out):
            known = tasks[n] >= LEAST_TASKS
            upper = high[n] if kept[n] > 0 else none_kept / shares[n]
            entry[name] = {
                "share": _plain(kept[n]),
                "ratio": _plain(kept[n] / shares[n]),
                "low": _plain(low[n]) if known else None,
                "high": _plain(upper) if known else None,
            }
    return out


def _interval(whole: _Table, part: _Table) -> tuple[Floats, Floats]:
    """The ends of each value's ratio over resampled tasks. Counts are whole numbers: sums are exact anywhere."""
    rng = np.random.default_rng(0)
    count = len(whole.totals)
    ratios = []
    for _ in range(0, SAMPLES, CHUNK):
        drawn = [np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(CHUNK)]
        weights = np.array(drawn, dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios.append(part.shares(weights) / whole.shares(weights))
    found = np.concatenate(ratios)
    found[~np.isfinite(found)] = np.nan
    low, high = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    return np.array([_quantile(c, low) for c in found.T]), np.array([_quantile(c, high) for c in found.T])


def _quantile(column: Floats, quantile: float) -> float:
    known = column[~np.isnan(column)]
    return float(np.quantile(known, quantile)) if known.size else float("nan")


def _plain(value: Any) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None
