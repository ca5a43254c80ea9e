"""Which format a row is, and the reader of each format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curateevo.trajectories.formats.atif import parse_atif
from curateevo.trajectories.formats.openai import parse_openai
from curateevo.trajectories.formats.tau_bench import parse_tau_bench
from curateevo.trajectories.model import RowInvalid, Trajectory

Parser = Callable[[Any, str], Trajectory]
PARSERS: dict[str, Parser] = {
    "openai": parse_openai,
    "toolworld": parse_openai,
    "atif": parse_atif,
    "tau-bench": parse_tau_bench,
}


def detect(row: Any) -> str | None:
    """The name of the format that `row` looks like, or None."""
    if not isinstance(row, dict):
        return None
    if str(row.get("schema_version", "")).startswith("ATIF-"):
        return "atif"
    if "traj" in row and "task_id" in row:
        return "tau-bench"
    return "openai" if "messages" in row else None


def parse_auto(row: Any, source: str) -> Trajectory:
    """Read a row by what it looks like. Raises RowInvalid."""
    name = detect(row)
    if name is None:
        keys = ", ".join(sorted(map(str, row))[:6]) if isinstance(row, dict) else type(row).__name__
        raise RowInvalid(f"no known format (openai, atif, tau-bench) looks like this: {keys}")
    return PARSERS[name](row, source)
