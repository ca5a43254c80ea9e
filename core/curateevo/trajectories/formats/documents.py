"""A file as numbered documents: JSON by line, Parquet by row. A broken one is named and never ends the file."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from curateevo.trajectories.json_text import encodable, load_line

MAX_LINE_BYTES = 64 << 20
MAX_ARRAY_BYTES = 2 << 30
PEEK_BYTES = 4096
PARQUET_ROWS = 1024
"""Rows of a Parquet file that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Document:
    """One value at a line of a file (a row of Parquet, from 1), or why there is none."""

    line: int
    value: Any = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of JSON that is still to be parsed."""

    number: int
    raw: bytes

    def parse(self) -> Document:
        try:
            return Document(self.number, load_line(self.raw.removeprefix(codecs.BOM_UTF8)))
        except UnicodeDecodeError as error:
            return Document(self.number, problem=f"not UTF-8 at byte {error.start} of the line")
        except RecursionError:
            return Document(self.number, problem="nested too deeply")
        except ValueError as error:
            return Document(self.number, problem=f"not JSON: {error}")


def documents(path: Path) -> Iterator[Document]:
    """The documents of `path`: rows of Parquet; of JSON, the items of one array, one object, or one object a line."""
    for piece in pieces(path):
        yield piece.parse() if isinstance(piece, Line) else piece


def pieces(path: Path) -> Iterator[Document | Line]:
    """As `documents`, with lines left to be parsed where there is time."""
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    with path.open("rb") as stream:
        start = stream.read(PEEK_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
        stream.seek(0)
        if start.startswith(b"[") or (start.startswith(b"{") and _is_one_object(path, stream)):
            stream.seek(0)
            yield from _array_items(stream)
        else:
            stream.seek(0)
            yield from _lines(stream)


def _parquet_rows(path: Path) -> Iterator[Document]:
    """Rows as objects. A null within a struct is a field that another row has: it is left out."""
    try:
        frame = pl.scan_parquet(path)
        for start in range(0, frame.select(pl.len()).collect().item(), PARQUET_ROWS):
            for number, row in enumerate(frame.slice(start, PARQUET_ROWS).collect().iter_rows(named=True), start + 1):
                yield Document(number, _without_nulls(row))
    except (OSError, pl.exceptions.PolarsError) as error:
        yield Document(1, problem=f"not Parquet: {error}")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(v) for key, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _is_one_object(path: Path, stream: BinaryIO) -> bool:
    """A pretty-printed object: its first line is not JSON by itself."""
    if path.suffix == ".jsonl":
        return False
    line = stream.readline(MAX_LINE_BYTES)
    try:
        json.loads(line)
    except ValueError:
        return path.suffix in (".json", ".traj") and line.strip() == b"{"
    return False


def _lines(stream: BinaryIO) -> Iterator[Document | Line]:
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
            _skip_line(stream)
            yield Document(number, problem=f"line is longer than {MAX_LINE_BYTES >> 20} MiB")
        elif raw.strip():
            yield Line(number, raw)


def _skip_line(stream: BinaryIO) -> None:
    while chunk := stream.readline(MAX_LINE_BYTES):
        if chunk.endswith(b"\n"):
            return


def _array_items(stream: BinaryIO) -> Iterator[Document]:
    """Items of a top-level array (or one object), decoded one by one: a truncated file keeps its whole items."""
    raw = stream.read(MAX_ARRAY_BYTES + 1)
    if len(raw) > MAX_ARRAY_BYTES:
        yield Document(1, problem=f"a JSON array of more than {MAX_ARRAY_BYTES >> 30} GiB: write it as JSONL")
        return
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        yield Document(raw[: error.start].count(b"\n") + 1, problem=f"not UTF-8 at byte {error.start}")
        return
    decoder, position, line, counted = json.JSONDecoder(), _skip_space(text, 0), 1, 0
    is_array = text.startswith("[", position)
    position += is_array
    while (position := _skip_space(text, position)) < len(text):
        if text[position] in ",]":
            position += 1
            continue
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            yield Document(line, problem=f"not JSON from here on: {error}")
            return
        try:
            yield Document(line, encodable(value))
        except ValueError as error:
            yield Document(line, problem=f"not JSON: {error}")
    if is_array and not text.rstrip().endswith("]"):
        yield Document(text.count("\n") + 1, problem="the array is not closed: the file is cut off")


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position
