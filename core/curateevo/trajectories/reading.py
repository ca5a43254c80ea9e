"""Files to trajectories: whatever can't be read is set aside with file, line and reason; nothing is lost in silence."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from curateevo.api.errors import CorpusInvalid
from curateevo.trajectories.formats.detect import FILE_READERS, PARSERS, detect_file, detect_or_refuse
from curateevo.trajectories.formats.documents import Document, Line, pieces
from curateevo.trajectories.model import RowInvalid, Trajectory, check

NAMED = 10
SUFFIXES = (".json", ".jsonl", ".parquet", ".traj")
"""The files of a folder that are read."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A row that was not read."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


def source_files(uri: str, base: Path) -> list[Path]:
    """The files behind a path, a glob, a folder or a file:// URI, sorted. Raises CorpusInvalid when there is none."""
    pattern = uri.removeprefix("file://")
    path = Path(pattern) if Path(pattern).is_absolute() else base / pattern
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)
    else:
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207  an absolute pattern is fine here
        found = sorted(Path(p) for p in matches if Path(p).is_file())
    if not found:
        raise CorpusInvalid(f"corpus source {uri!r}: no such file (looked for {path})", "check the path, or the glob")
    return found


def read_file(path: Path, format_name: str) -> Iterator[Trajectory | SetAside]:
    """The rows of a file in order, each checked and marked with the format that it was read as."""
    name, found = open_file(path, format_name)
    return read_pieces(found, path, name)


def open_file(path: Path, format_name: str) -> tuple[str, Iterator[Document | Line]]:
    """The format of a file, `auto` where each row has its own, and what it holds."""
    whole = detect_file(path) if format_name == "auto" else format_name
    name = whole or format_name
    return name, FILE_READERS[name](path) if name in FILE_READERS else pieces(path)


def read_pieces(found: Iterable[Document | Line], path: Path, format_name: str) -> Iterator[Trajectory | SetAside]:
    """What some pieces of a file say, in order."""
    for piece in found:
        document = piece.parse() if isinstance(piece, Line) else piece
        if document.problem is not None:
            yield SetAside(str(path), document.line, document.problem)
            continue
        try:
            trajectory = _parse(document, path, format_name)
            check(trajectory)
        except RowInvalid as error:
            yield SetAside(str(path), document.line, str(error))
        else:
            yield trajectory


def _parse(document: Document, path: Path, format_name: str) -> Trajectory:
    if isinstance(document.value, Trajectory):
        return replace(document.value, format=format_name)
    name = detect_or_refuse(document.value) if format_name == "auto" else format_name
    return replace(PARSERS[name](document.value, f"{path.name}:{document.line}"), format=name)


def unique_ids(ids: Iterable[str], used: dict[str, int]) -> list[str]:
    """Ids that occur again get `#2`, `#3`, ... `used` counts them, and is kept from one call to the next."""
    out = []
    for name in ids:
        used[name] = used.get(name, 0) + 1
        out.append(name if used[name] == 1 else f"{name}#{used[name]}")
    return out


def enforce_limit(read: int, set_aside: Sequence[SetAside], max_fraction: float) -> None:
    """Raise CorpusInvalid when no row was read, or when too many were set aside; the first ten are named."""
    named = "\n".join(f"  {item}" for item in set_aside[:NAMED])
    if not read:
        detail = f"; {len(set_aside)} rows could not be read:\n{named}" if set_aside else ""
        raise CorpusInvalid(f"the corpus is empty{detail}", "a source needs at least one trajectory")
    rows = read + len(set_aside)
    fraction = len(set_aside) / rows
    if fraction > max_fraction:
        raise CorpusInvalid(
            f"{len(set_aside)} of {rows} rows could not be read ({fraction:.1%}, allowed {max_fraction:.1%}):\n{named}",
            "mend these rows, name the right format, or raise corpus.maxSetAsideFraction",
        )


def write_set_aside(items: Sequence[SetAside], path: Path) -> None:
    """One JSON object a line: file, line, reason."""
    with path.open("w", encoding="utf-8") as out:
        for item in items:
            out.write(
                json.dumps({"file": item.file, "line": item.line, "reason": item.reason}, ensure_ascii=False) + "\n"
            )
