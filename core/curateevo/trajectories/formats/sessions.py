"""Formats in which a file, not a row, is the unit: OTLP traces and Claude Code sessions. Read by agentpile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import agentpile

from curateevo.trajectories.formats.atif import record_to_trajectory
from curateevo.trajectories.formats.atif_steps import EXTENSION, READER_ERRORS
from curateevo.trajectories.formats.documents import PEEK_BYTES, Document, documents
from curateevo.trajectories.model import JsonObject, RowInvalid

OTLP, CLAUDE_CODE = "otlp-json", "claude-code-jsonl"
"""agentpile's names of its readers."""


def looks_like_otlp(path: Path) -> bool:
    """Spans are spoken of at the beginning of the file."""
    with path.open("rb") as stream:
        start = stream.read(PEEK_BYTES)
    return b'"resourceSpans"' in start or b'"resource_spans"' in start


def looks_like_claude_code(path: Path) -> bool:
    """A JSONL file of typed records, one of its first fifty being a message with session, uuid and version."""
    return bool(agentpile.readers.get(CLAUDE_CODE).sniff(path))


def read_otlp(path: Path) -> Iterator[Document]:
    """The traces of a file, each a Trajectory; a trace may lie on several lines. Broken lines, and traces of frameworks
    that agentpile doesn't map, are problems. A trace's line is that of its first span."""
    found = list(documents(path))
    yield from (document for document in found if document.problem is not None)
    good = [document for document in found if document.problem is None]
    try:
        for run in agentpile.load([document.value for document in good], reader=OTLP):
            record = run.to_dict()
            line = next((d.line for d in good if str(run.id) in str(d.value)), 1)
            yield _document(record, f"{path.name}:{line}", line)
    except READER_ERRORS as error:
        yield Document(1, problem=f"{OTLP}: {error}; no further trace of this file was read")


def read_claude_code(path: Path) -> Iterator[Document]:
    """One session, a Trajectory. Its subagents' files are sessions of their own; its system records (an API error,
    where it was compacted) are left out: no model has seen them."""
    yield from (document for document in documents(path) if document.problem is not None)
    try:
        record = next(iter(agentpile.load(path, reader=CLAUDE_CODE))).to_dict()
    except READER_ERRORS as error:
        yield Document(1, problem=f"{CLAUDE_CODE}: {error or type(error).__name__}")
        return
    record["steps"] = [step for step in record["steps"] if step["source"] != "system"]
    yield _document(record, f"{path.name}:1", 1)


def _document(record: JsonObject, source: str, line: int) -> Document:
    try:
        trajectory = record_to_trajectory(record, source)
    except RowInvalid as error:
        return Document(line, problem=str(error))
    if not trajectory.turns:
        lost = record.get("extra", {}).get(EXTENSION, {}).get("source", {}).get("lost_fields") or ["no agent step"]
        return Document(line, problem=f"no assistant message: {lost[0]}")
    return Document(line, trajectory)
