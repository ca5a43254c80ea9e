"""Which format a row or a file is, and the reader of each format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from curateevo.trajectories.formats.atif import parse_atif
from curateevo.trajectories.formats.bfcl import parse_bfcl
from curateevo.trajectories.formats.documents import Document
from curateevo.trajectories.formats.openai import parse_openai
from curateevo.trajectories.formats.sessions import (
    looks_like_claude_code,
    looks_like_otlp,
    read_claude_code,
    read_otlp,
)
from curateevo.trajectories.formats.sharegpt import parse_sharegpt
from curateevo.trajectories.formats.swe_agent import parse_swe_agent
from curateevo.trajectories.formats.tau_bench import parse_tau_bench
from curateevo.trajectories.formats.toucan import parse_toucan
from curateevo.trajectories.model import RowInvalid, Trajectory

Parser = Callable[[Any, str], Trajectory]
FileReader = Callable[[Path], Iterator[Document]]
"""Yields trajectories as documents' values, and problems."""

PARSERS: dict[str, Parser] = {
    "openai": parse_openai,
    "toolworld": parse_openai,
    "atif": parse_atif,
    "sharegpt": parse_sharegpt,
    "toucan": parse_toucan,
    "swe-agent": parse_swe_agent,
    "tau-bench": parse_tau_bench,
    "bfcl": parse_bfcl,
}
"""Formats whose unit is a row."""
FILE_READERS: dict[str, FileReader] = {"otlp": read_otlp, "claude-code": read_claude_code}
"""Formats whose unit is a file."""
FOUND = (*(name for name in PARSERS if name != "toolworld"), *FILE_READERS)
"""What `auto` may find."""


def detect_file(path: Path) -> str | None:
    """The format whose unit is a file that `path` looks like, or None."""
    if path.suffix == ".parquet":
        return None
    if looks_like_otlp(path):
        return "otlp"
    return "claude-code" if looks_like_claude_code(path) else None


def detect(row: Any) -> str | None:
    """The name of the format that `row` looks like, or None. The first that fits of a fixed order."""
    if not isinstance(row, dict):
        return None
    marks = {
        "atif": str(row.get("schema_version", "")).startswith("ATIF-"),
        "tau-bench": "traj" in row and "task_id" in row,
        "swe-agent": isinstance(row.get("history"), list),
        "bfcl": "result" in row and ("inference_log" in row or "input_token_count" in row or "traceback" in row),
        "toucan": "messages" in row and ("available_tools" in row or "target_tools" in row),
        "sharegpt": "conversations" in row,
        "openai": "messages" in row,
    }
    return next((name for name, fits in marks.items() if fits), None)


def detect_or_refuse(row: Any) -> str:
    """The name of the row's format. Raises RowInvalid with what was seen instead."""
    if (name := detect(row)) is not None:
        return name
    keys = ", ".join(sorted(map(str, row))[:6]) if isinstance(row, dict) else type(row).__name__
    raise RowInvalid(f"no known format ({', '.join(FOUND)}) looks like this: {keys}")


def parse_auto(row: Any, source: str) -> Trajectory:
    """Read a row by what it looks like. Raises RowInvalid."""
    return PARSERS[detect_or_refuse(row)](row, source)
