"""Files to trajectories: whatever can't be read is set aside with file, line and reason; nothing is lost in silence."""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from curateevo.api.errors import CorpusInvalid
from curateevo.trajectories.formats.detect import FILE_READERS, PARSERS, detect_file, detect_or_refuse
from curateevo.trajectories.formats.documents import Document, documents
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


@dataclass(slots=True)
class Reading:
    """What came out of the sources."""

    trajectories: list[Trajectory] = field(default_factory=list)
    set_aside: list[SetAside] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.trajectories) + len(self.set_aside)

    @property
    def formats(self) -> dict[str, int]:
        """Trajectories by the format that they were read as, most frequent first."""
        return dict(Counter(t.format for t in self.trajectories).most_common())

    @property
    def licences(self) -> dict[str, int]:
        """Trajectories by what is known of their licence."""
        return dict(Counter(t.licence or "not stated" for t in self.trajectories).most_common())


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


def read_files(files: Sequence[tuple[Path, str]], on_row: Callable[[int], None] = lambda rows: None) -> Reading:
    """Read (file, format) pairs in order. Ids that occur twice get `#2`, `#3`, ... `on_row` hears the count so far."""
    return collect((row for path, format_name in files for row in read_file(path, format_name)), on_row)


def collect(rows: Iterable[Trajectory | SetAside], on_row: Callable[[int], None] = lambda rows: None) -> Reading:
    """Rows from wherever, told apart by id."""
    reading, used = Reading(), dict[str, int]()
    for row in rows:
        if isinstance(row, SetAside):
            reading.set_aside.append(row)
        else:
            reading.trajectories.append(_with_unique_id(row, used))
        on_row(reading.rows)
    return reading


def read_file(path: Path, format_name: str) -> Iterator[Trajectory | SetAside]:
    """The rows of a file in order, each checked and marked with the format that it was read as."""
    whole = detect_file(path) if format_name == "auto" else format_name
    for document in FILE_READERS[whole](path) if whole in FILE_READERS else documents(path):
        if document.problem is not None:
            yield SetAside(str(path), document.line, document.problem)
            continue
        try:
            trajectory = _parse(document, path, whole or format_name)
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


def _with_unique_id(trajectory: Trajectory, used: dict[str, int]) -> Trajectory:
    used[trajectory.id] = used.get(trajectory.id, 0) + 1
    count = used[trajectory.id]
    return trajectory if count == 1 else replace(trajectory, id=f"{trajectory.id}#{count}")


def enforce_limit(reading: Reading, max_fraction: float) -> None:
    """Raise CorpusInvalid when nothing was read, or when too much was set aside; the first ten are named."""
    named = "\n".join(f"  {item}" for item in reading.set_aside[:NAMED])
    if not reading.trajectories:
        detail = f"; {len(reading.set_aside)} rows could not be read:\n{named}" if reading.set_aside else ""
        raise CorpusInvalid(f"the corpus is empty{detail}", "a source needs at least one trajectory")
    fraction = len(reading.set_aside) / reading.rows
    if fraction > max_fraction:
        raise CorpusInvalid(
            f"{len(reading.set_aside)} of {reading.rows} rows could not be read ({fraction:.1%}, allowed "
            f"{max_fraction:.1%}):\n{named}",
            "mend these rows, name the right format, or raise corpus.maxSetAsideFraction",
        )


def write_set_aside(items: Sequence[SetAside], path: Path) -> None:
    """One JSON object a line: file, line, reason."""
    with path.open("w", encoding="utf-8") as out:
        for item in items:
            out.write(
                json.dumps({"file": item.file, "line": item.line, "reason": item.reason}, ensure_ascii=False) + "\n"
            )
