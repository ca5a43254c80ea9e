"""What every stage program is given, and what it gives back. `program.py` does the rest around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from curateevo.api.stage import Outcome, StageRequest, Summary


class Progress(Protocol):
    """Progress to the terminal and as lines of JSON."""

    def report(self, phase: str, done: int, total: int, **metrics: float) -> None:
        """`done` of `total` units of `phase` are finished; `metrics` are shown beside it."""
        ...


class Checkpoints(Protocol):
    """A folder that survives attempts of this stage and version. On one machine it is the folder itself;
    elsewhere `save` copies it to the store."""

    @property
    def folder(self) -> Path: ...

    def save(self) -> None:
        """Make what lies in the folder durable."""
        ...

    def discard(self) -> None:
        """Let go of the copy: no attempt will need it any more."""
        ...


@dataclass(frozen=True, slots=True)
class StageRun:
    """One attempt. Everything under `output` is published when the program returns."""

    request: StageRequest
    inputs: Path
    """Read-only files at the paths of `request.inputs`."""
    output: Path
    scratch: Path
    checkpoints: Checkpoints
    progress: Progress


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a program says of its output; files that hold times or logs are named `volatile`."""

    summary: Summary
    outcome: Outcome = Outcome.OK
    reason: str = ""
    message: str = ""
    volatile: frozenset[str] = frozenset()
    tokens: int = 0
    usd: float = 0.0
    calls: int = 0
    gpu_seconds: float = 0.0
    cache: bool = field(default=True)
    """False: the result depends on more than the inputs and must not be reused."""
