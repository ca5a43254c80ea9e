"""Checkpoints of one phase of one training, safe against being killed at any moment.

    <folder>/checkpoint-<step>/            what transformers writes; not atomic
    <folder>/checkpoint-<step>/complete.json   written last, by us, by renaming: names and sizes of the files
    <folder>/finished/                     the phase's model; also with complete.json

A folder without a matching complete.json never happened.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARKER = "complete.json"


def mark_complete(folder: Path, facts: dict[str, Any]) -> None:
    """Declare all that lies in `folder` complete."""
    files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in _files(folder)}
    partial = folder / f"{MARKER}.partial"
    partial.write_text(json.dumps({"facts": facts, "files": files}, sort_keys=True))
    partial.replace(folder / MARKER)


def read_facts(folder: Path) -> dict[str, Any] | None:
    """The facts of a complete folder; None when it is not there, was half-written or has lost a file."""
    try:
        marker = json.loads((folder / MARKER).read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    for name, size in marker["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            return None
    facts: dict[str, Any] = marker["facts"]
    return facts


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(MARKER))


class PhaseFolder:
    """Where one phase, such as `sft-0`, keeps its checkpoints and its result."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.finished = root / "finished"
        root.mkdir(parents=True, exist_ok=True)

    def facts(self) -> dict[str, Any] | None:
        """What the finished phase said of itself; None while it is not finished."""
        return read_facts(self.finished)

    def finish(self, write: Callable[[Path], None], facts: dict[str, Any]) -> None:
        """Let `write` fill the result's folder, and put it in place as a whole."""
        partial = self.root / "finished.partial"
        for stale in (partial, self.finished):
            shutil.rmtree(stale, ignore_errors=True)
        partial.mkdir()
        write(partial)
        mark_complete(partial, facts)
        partial.replace(self.finished)

    def newest(self) -> tuple[Path, int] | None:
        """The newest complete checkpoint and its step. Broken ones are removed, whatever their step."""
        best: tuple[Path, int] | None = None
        for path in self.root.glob("checkpoint-*"):
            facts = read_facts(path)
            if facts is None:
                shutil.rmtree(path)
            elif best is None or facts["step"] > best[1]:
                best = (path, int(facts["step"]))
        return best

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints; the finished model stays."""
        for path in self.root.glob("checkpoint-*"):
            shutil.rmtree(path)
