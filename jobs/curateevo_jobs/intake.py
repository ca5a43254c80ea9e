"""Sources to rows and features on disk, batch by batch: a few batches are in memory at a time, never a corpus.

Large sources are read by several processes. What comes out is the same, whatever their number.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import polars as pl

from curateevo.api.errors import Transient
from curateevo.policy.confine import die_with_parent
from curateevo.trajectories.corpus import trajectories_frame
from curateevo.trajectories.features import features_of
from curateevo.trajectories.formats.documents import Document, Line
from curateevo.trajectories.leakage import LeakIndex
from curateevo.trajectories.model import Trajectory
from curateevo.trajectories.reading import SetAside, open_file, read_pieces, unique_ids

BATCH_ROWS = 512
BATCH_BYTES = 4 << 20
POOL_BYTES = 32 << 20
"""Files of less than this in all are read by this process: others take a second to start."""
IN_FLIGHT = 2
"""Batches per process that are read ahead."""
ROWS, FEATURES = "rows", "features"
OnRows: TypeAlias = Callable[[int], None]
"""Told how many rows were read so far."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some of a file, not read yet; or rows that were."""

    content: Sequence[Document | Line] | Sequence[Trajectory | SetAside]
    file: Path | None = None
    format: str = ""

    def rows(self) -> Iterable[Trajectory | SetAside]:
        if self.file is None:
            return self.content  # type: ignore[return-value]
        return read_pieces(self.content, self.file, self.format)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Part:
    """What a batch became; its rows and features are on disk."""

    ids: list[str]
    read: int
    """Trajectories, the leaked ones included."""
    set_aside: list[SetAside]
    leaked: list[SetAside]
    formats: Counter[str]
    licences: Counter[str]


@dataclass(slots=True)
class Intake:
    """What was read. `folder` holds rows and features in parts."""

    folder: Path
    parts: int = 0
    read: int = 0
    set_aside: list[SetAside] = field(default_factory=list)
    leaked: list[SetAside] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    """Trajectories by the format that they were read as."""
    licences: Counter[str] = field(default_factory=Counter)
    """Trajectories by what is known of their licence."""

    def rows(self) -> pl.LazyFrame:
        """As `trajectories_frame` makes them, in the order of the sources."""
        return self._scan(ROWS)

    def features(self) -> pl.LazyFrame:
        return self._scan(FEATURES)

    def add(self, part: Part, used: dict[str, int]) -> None:
        ids = unique_ids(part.ids, used)
        if ids != part.ids:
            for kind in (ROWS, FEATURES):
                path = _path(self.folder, kind, self.parts)
                renamed = path.with_suffix(".renamed")
                pl.read_ipc(path).with_columns(pl.Series("id", ids)).write_ipc(renamed)
                renamed.replace(path)
        self.parts += 1
        self.read += part.read
        self.set_aside += part.set_aside
        self.leaked += part.leaked
        self.formats += part.formats
        self.licences += part.licences

    def _scan(self, kind: str) -> pl.LazyFrame:
        return pl.scan_ipc([_path(self.folder, kind, number) for number in range(self.parts)])


def file_batches(path: Path, format_name: str) -> Iterator[Batch]:
    """A file in pieces of at most `BATCH_ROWS` rows, and of not much more than `BATCH_BYTES`."""
    name, found = open_file(path, format_name)
    batch, size = list[Document | Line](), 0
    for piece in found:
        batch.append(piece)
        size += len(piece.raw) if isinstance(piece, Line) else 0
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield Batch(tuple(batch), path, name)
            batch, size = [], 0
    if batch:
        yield Batch(tuple(batch), path, name)


def row_batches(rows: Iterable[Trajectory | SetAside]) -> Iterator[Batch]:
    """Rows that something else reads."""
    found = iter(rows)
    while some := tuple(islice(found, BATCH_ROWS)):
        yield Batch(some)


def take_in(
    batches: Iterable[Batch], folder: Path, dev_prompts: dict[str, str], *, processes: int, on_rows: OnRows
) -> Intake:
    """Read all batches; trajectories in which a dev task stands are left out, with the words that were found."""
    intake, used = Intake(folder), dict[str, int]()
    parts = (
        _in_turn(batches, folder, dev_prompts) if processes == 1 else _at_once(batches, folder, dev_prompts, processes)
    )
    for part in parts:
        intake.add(part, used)
        on_rows(intake.read + len(intake.set_aside))
    return intake


def _in_turn(batches: Iterable[Batch], folder: Path, dev_prompts: dict[str, str]) -> Iterator[Part]:
    index = LeakIndex(dev_prompts)
    return (read_batch(batch, number, folder, index) for number, batch in enumerate(batches))


def _at_once(batches: Iterable[Batch], folder: Path, dev_prompts: dict[str, str], processes: int) -> Iterator[Part]:
    """Parts in order, a few batches ahead. Raises Transient when a process dies."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _begin, (dev_prompts,))
    waiting: deque[Future[Part]] = deque()
    try:
        for number, batch in enumerate(batches):
            waiting.append(pool.submit(_read, batch, number, folder))
            if len(waiting) > processes * IN_FLIGHT:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise Transient(
            f"a process that reads the corpus died: {error}", "give ingest more memory, or the sources smaller rows"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(dev_prompts: dict[str, str]) -> None:
    """What a reading process does first."""
    global _index
    die_with_parent()
    gc.disable()  # rows hold no cycles, and looking for some takes a tenth of the time
    _index = LeakIndex(dev_prompts)


_index = LeakIndex({})
"""Of a reading process."""


def _read(batch: Batch, number: int, folder: Path) -> Part:
    return read_batch(batch, number, folder, _index)


def read_batch(batch: Batch, number: int, folder: Path, index: LeakIndex) -> Part:
    """One batch, its rows and features written as part `number`."""
    set_aside, leaked, read, kept = list[SetAside](), list[SetAside](), list[Trajectory](), list[Trajectory]()
    for row in batch.rows():
        if isinstance(row, SetAside):
            set_aside.append(row)
            continue
        read.append(row)
        if found := index.find(row.task.id, row.said_by_user()):
            quote = f": {found.quote!r}" if found.quote else ""
            leaked.append(SetAside(row.source, 0, f"{row.id}: {found}{quote}"))
        else:
            kept.append(row)
    trajectories_frame(kept).write_ipc(_path(folder, ROWS, number))
    features_of(kept).write_ipc(_path(folder, FEATURES, number))
    return Part(
        [t.id for t in kept],
        len(read),
        set_aside,
        leaked,
        Counter(t.format for t in read),
        Counter(t.licence or "not stated" for t in read),
    )


def _path(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}-{number:06d}.arrow"
