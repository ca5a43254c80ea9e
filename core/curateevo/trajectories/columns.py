"""Columns and rows of a corpus as Arrow holds them, made into Python's values when they are asked for."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from curateevo.trajectories.corpus import parse_row
from curateevo.trajectories.model import Trajectory


class Columns(Mapping[str, list[Any]]):
    """Features by name, each by row. A column becomes a list when it is asked for first.

    Equal texts of a column of lists are one object; MinHashes are arrays, which take a tenth of a list's memory. What
    may need threads is done at once: a process that forks has none of them afterwards.
    """

    def __init__(self, features: pl.DataFrame) -> None:
        self._names = features.columns
        self._flat: dict[str, pl.Series | npt.NDArray[np.uint32]] = {}
        self._ends: dict[str, npt.NDArray[np.uint32]] = {}
        self._texts: dict[str, list[str]] = {}
        self._made: dict[str, list[Any]] = {}
        for column in features:
            flat = column
            if isinstance(column.dtype, pl.List):
                self._ends[column.name] = column.list.len().cum_sum().to_numpy()
                flat = column.explode(empty_as_null=False)
                if column.dtype.inner == pl.String:
                    self._texts[column.name] = flat.unique().sort().to_list()
                    flat = flat.rank("dense") - 1
            self._flat[column.name] = flat.to_numpy() if flat.dtype == pl.UInt32 else flat

    def __getitem__(self, name: str) -> list[Any]:
        if name not in self._made:
            self._made[name] = self._make(name, self._flat.pop(name))
        return self._made[name]

    def _make(self, name: str, flat: pl.Series | npt.NDArray[np.uint32]) -> list[Any]:
        ends = self._ends.get(name)
        if ends is None:
            return flat.to_list() if isinstance(flat, pl.Series) else flat.tolist()
        bounds = pairwise([0, *ends.tolist()])
        if isinstance(flat, pl.Series):
            values = flat.to_list()
            return [values[start:end] for start, end in bounds]
        if texts := self._texts.get(name):
            return [[texts[code] for code in flat[start:end].tolist()] for start, end in bounds]
        return [array("I", flat[start:end].tobytes()) for start, end in bounds]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Texts(Mapping[int, Trajectory]):
    """Trajectories by row, each parsed whenever it is asked for."""

    def __init__(self, rows: pl.DataFrame) -> None:
        """`rows`: as `read_rows` gives them."""
        self._rows = rows
        self._numbers: npt.NDArray[np.uint32] = rows["row"].to_numpy()

    def __getitem__(self, row: int) -> Trajectory:
        count = len(self._numbers)
        place = row if 0 <= row < count and self._numbers[row] == row else int(np.searchsorted(self._numbers, row))
        if place == count or self._numbers[place] != row:
            raise KeyError(row)
        return parse_row(dict(zip(self._rows.columns, self._rows.row(place), strict=True)))

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers.tolist())

    def __len__(self) -> int:
        return self._rows.height
