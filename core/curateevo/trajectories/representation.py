"""What a policy over- and under-represents against the corpus: shares of rows, their ratios, and how sure those are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from curateevo.trajectories.model import JsonObject

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Ends: TypeAlias = tuple[Floats, Floats]
"""The lower ends and the upper ends of some intervals."""
SAMPLES = 400
CHUNK_CELLS = 4_000_000
"""Tasks times samples that are in memory at a time."""
CONFIDENCE = 0.95
Z95 = 1.959964
LEAST_TASKS = 5
"""A value of fewer tasks gets no interval: resampling so few says nothing."""
MOST_VALUES = 12
"""Of one dimension."""
REST = "(the rest)"
LENGTHS = ((2, "1 to 2"), (5, "3 to 5"), (10, "6 to 10"), (20, "11 to 20"))
LONGEST = "over 20"
OUTCOMES = ("success", "failure", "unknown")


@dataclass(frozen=True, slots=True)
class Kept:
    """A row of the data that a policy made: which trajectory it comes from, and its tools."""

    row: int
    tools: frozenset[str]
    copies: int = 1


@dataclass(frozen=True, slots=True)
class _Entries:
    """Rows by their tasks, and the values of each: the value number `place`, of the row number `owner`."""

    tasks: Ints
    """Of each row."""
    copies: Ints
    owners: Ints
    places: Ints
    """-1 for a value that is not told."""


@dataclass(frozen=True, slots=True)
class _Dimension:
    """One way to divide the rows: a value of its own for each row, or the tools that it calls."""

    name: str
    column: pl.Series | None
    """The value of each corpus row; None for tools."""
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
    tasks = features["task_id"].rank("dense").to_numpy().astype(np.int64) - 1
    count = int(tasks.max()) + 1
    parts = {name: rows for name, rows in (("sft", sft), ("rl", rl)) if rows}
    found = []
    for dimension in _dimensions(features):
        flat = features["tools"].explode(empty_as_null=False) if dimension.column is None else dimension.column
        chosen = _chosen(flat, dimension)
        whole = _table(_corpus_entries(features, dimension, flat, chosen, tasks), chosen, count)
        tables = {n: _table(_kept_entries(r, dimension, chosen, tasks), chosen, count) for n, r in parts.items()}
        found.append((dimension.name, chosen, whole, tables))
    ends = iter(_intervals([(whole, part) for _, _, whole, tables in found for part in tables.values()], count))
    dimensions = [
        {"name": name, "values": _values(chosen, whole, {n: (part, next(ends)) for n, part in tables.items()})}
        for name, chosen, whole, tables in found
    ]
    return {"tasks": count, "dimensions": dimensions}


def _dimensions(features: pl.DataFrame) -> Iterable[_Dimension]:
    for name in ("source", "family"):
        yield _Dimension(name, features[name])
    yield _Dimension("tool", None)
    names = (*(name for _, name in LENGTHS), LONGEST)
    numbers = np.searchsorted([most for most, _ in LENGTHS], features["turns"].to_numpy())
    yield _Dimension("turns", pl.Series(names).gather(numbers), names)
    success = features["success"].cast(pl.String).fill_null("null")
    outcomes = success.replace_strict(
        {"true": "success", "false": "failure", "null": "unknown"}, return_dtype=pl.String
    )
    yield _Dimension("outcome", outcomes, OUTCOMES)


def _chosen(flat: pl.Series, dimension: _Dimension) -> list[str]:
    """The values that are told, in order; where each row has one value, the rarer ones are taken together."""
    counts = flat.alias("value").value_counts().sort(["count", "value"], descending=[True, False])
    ranked: list[str] = counts["value"].to_list()
    if len(ranked) > MOST_VALUES:
        ranked = ranked[:MOST_VALUES] if dimension.column is None else [*ranked[: MOST_VALUES - 1], REST]
    return sorted(ranked, key=dimension.order.index) if dimension.order else ranked


def _corpus_entries(
    features: pl.DataFrame, dimension: _Dimension, flat: pl.Series, chosen: list[str], tasks: Ints
) -> _Entries:
    rows = np.arange(features.height)
    owners = rows if dimension.column is not None else np.repeat(rows, features["tools"].list.len().to_numpy())
    return _Entries(tasks, np.ones_like(tasks), owners, _places(flat, chosen))


def _kept_entries(kept: Sequence[Kept], dimension: _Dimension, chosen: list[str], tasks: Ints) -> _Entries:
    rows = np.array([k.row for k in kept], dtype=np.int64)
    copies = np.array([k.copies for k in kept], dtype=np.int64)
    if dimension.column is not None:
        return _Entries(tasks[rows], copies, np.arange(len(rows)), _places(dimension.column.gather(rows), chosen))
    owners = np.repeat(np.arange(len(rows)), [len(k.tools) for k in kept])
    called = pl.Series([name for k in kept for name in k.tools], dtype=pl.String)
    return _Entries(tasks[rows], copies, owners, _places(called, chosen))


def _places(values: pl.Series, chosen: list[str]) -> Ints:
    """The number of each value among those chosen: that of the rest, where there is one, for others, else -1."""
    numbers = {value: n for n, value in enumerate(chosen)}
    found: Ints = values.replace_strict(numbers, default=numbers.get(REST, -1), return_dtype=pl.Int64).to_numpy()
    return found


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


def _table(rows: _Entries, chosen: list[str], count: int) -> _Table:
    """Of `count` tasks."""
    told = rows.places >= 0
    owners = rows.owners[told]
    cells = rows.tasks[owners] * len(chosen) + rows.places[told]
    counts = np.bincount(cells, weights=rows.copies[owners], minlength=count * len(chosen)).astype(np.float64)
    totals = np.bincount(rows.tasks, weights=rows.copies, minlength=count).astype(np.float64)
    return _Table(counts.reshape(count, len(chosen)), totals)


def _values(chosen: list[str], whole: _Table, parts: Mapping[str, tuple[_Table, Ends]]) -> list[JsonObject]:
    once = np.ones((1, len(whole.totals)))
    shares = whole.shares(once)[0]
    tasks = (whole.counts > 0).sum(axis=0)
    out: list[JsonObject] = [
        {"value": value, "tasks": int(tasks[n]), "corpus": _plain(shares[n])} for n, value in enumerate(chosen)
    ]
    for name, (part, (low, high)) in parts.items():
        kept = part.shares(once)[0]
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


def _intervals(pairs: Sequence[tuple[_Table, _Table]], count: int) -> list[Ends]:
    """The ends of each value's ratio over resampled tasks, the same samples for all tables. Counts are whole numbers:
    sums are exact anywhere."""
    rng = np.random.default_rng(0)
    ratios: list[list[Floats]] = [[] for _ in pairs]
    at_once = max(1, min(SAMPLES, CHUNK_CELLS // count))
    for start in range(0, SAMPLES, at_once):
        drawn = range(start, min(start + at_once, SAMPLES))
        weights = np.array([np.bincount(rng.integers(count, size=count), minlength=count) for _ in drawn], np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            for found, (whole, part) in zip(ratios, pairs, strict=True):
                found.append(part.shares(weights) / whole.shares(weights))
    return [_ends(np.concatenate(found)) for found in ratios]


def _ends(ratios: Floats) -> Ends:
    ratios[~np.isfinite(ratios)] = np.nan
    low, high = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    return np.array([_quantile(c, low) for c in ratios.T]), np.array([_quantile(c, high) for c in ratios.T])


def _quantile(column: Floats, quantile: float) -> float:
    known = column[~np.isnan(column)]
    return float(np.quantile(known, quantile)) if known.size else float("nan")


def _plain(value: Any) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None
