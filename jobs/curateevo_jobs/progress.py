"""Progress of a stage: a bar on a terminal, lines of JSON everywhere else."""

from __future__ import annotations

import json
import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

MIN_INTERVAL_SECONDS = 0.2


class JsonProgress:
    """One JSON object a line: stage, phase, done, total, metrics, time (seconds since the epoch)."""

    def __init__(self, stage: str, stream: TextIO) -> None:
        self._stage = stage
        self._stream = stream
        self._last: tuple[str, float] = ("", 0.0)

    def report(self, phase: str, done: int, total: int, **metrics: float) -> None:
        now = time.time()
        if phase == self._last[0] and done < total and now - self._last[1] < MIN_INTERVAL_SECONDS:
            return
        self._last = (phase, now)
        line = {
            "stage": self._stage,
            "phase": phase,
            "done": done,
            "total": total,
            "metrics": metrics,
            "time": round(now, 3),
        }
        print(json.dumps(line), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to do: every line is out already."""


class TerminalProgress:
    """A bar per phase."""

    def __init__(self, stage: str) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._progress.start()
        self._stage = stage
        self._tasks: dict[str, TaskID] = {}

    def report(self, phase: str, done: int, total: int, **metrics: float) -> None:
        note = " ".join(f"{name} {value:.3g}" for name, value in metrics.items())
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(f"{self._stage} {phase}", total=total, note=note)
        self._progress.update(self._tasks[phase], completed=done, total=total, note=note)

    def close(self) -> None:
        self._progress.stop()


def open_progress(stage: str, kind: str) -> JsonProgress | TerminalProgress:
    """`kind`: json, bar, or auto (a bar on a terminal)."""
    if kind == "bar" or (kind == "auto" and sys.stderr.isatty()):
        return TerminalProgress(stage)
    return JsonProgress(stage, sys.stdout)
