"""Files read to the end, for tests that look at rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from curateevo.trajectories.grace import grace_columns
from curateevo.trajectories.model import Trajectory
from curateevo.trajectories.reading import SetAside, read_file


@dataclass(slots=True)
class Reading:
    """What came out of the sources."""

    trajectories: list[Trajectory] = field(default_factory=list)
    set_aside: list[SetAside] = field(default_factory=list)


def read_files(files: Iterable[tuple[Path, str]]) -> Reading:
    """(file, format) pairs in order."""
    return sort_out(row for path, format_name in files for row in read_file(path, format_name))


def scored(features: pl.DataFrame) -> pl.DataFrame:
    """Features with GRACE's columns; where a base model would score turns, chance does."""
    signals = np.random.default_rng(0).normal(size=(features["turns"].sum(), 8)).astype(np.float32)
    signals /= np.linalg.norm(signals, axis=1, keepdims=True)
    return features.hstack(grace_columns(features, signals))


def sort_out(rows: Iterable[Trajectory | SetAside]) -> Reading:
    reading = Reading()
    for row in rows:
        if isinstance(row, SetAside):
            reading.set_aside.append(row)
        else:
            reading.trajectories.append(row)
    return reading
