"""Metrics of every step as lines of JSON: continued, never doubled, when training is resumed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from curateevo_jobs.stage import Checkpoints, Progress
from curateevo_jobs.training.checkpoints import mark_complete
from curateevo_jobs.training.gate import NotReleased

SHOWN = ("loss", "reward", "grad_norm")
"""Metrics that progress lines show."""


class MetricsLog:
    """One file of metrics rows: `phase`, `step`, `seconds` and what the trainer logs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """All rows. A line that a kill cut off is left out."""
        if not self.path.is_file():
            return []
        rows = []
        for line in self.path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return rows

    def keep_until(self, phase: str, step: int) -> None:
        """Forget the rows of `phase` after `step`: they will be made again."""
        kept = [r for r in self.rows() if r["phase"] != phase or r["step"] <= step]
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(r) + "\n" for r in kept))
        partial.replace(self.path)

    def append(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Writes metrics, reports progress, completes checkpoints, and stops at a number that is not finite.

    Of several processes only the first does: their numbers are those of all.
    """

    def __init__(self, phase: str, log: MetricsLog, checkpoints: Checkpoints, progress: Progress) -> None:
        self._phase = phase
        self._log = log
        self._checkpoints = checkpoints
        self._progress = progress
        self._last = time.monotonic()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write one row. Raises NotReleased when loss or gradient is not finite."""
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return  # without a loss: the summary at the end
        now = time.monotonic()
        row = {"phase": self._phase, "step": state.global_step, **logs, "seconds": round(now - self._last, 3)}
        self._last = now
        self._log.append(row)
        for name in ("loss", "grad_norm"):
            if name in logs and not math.isfinite(float(logs[name])):
                raise NotReleased(f"{self._phase}: {name} is {logs[name]} at step {state.global_step}")
        shown = {k: float(logs[k]) for k in SHOWN if isinstance(logs.get(k), int | float)}
        self._progress.report(self._phase.split("-")[0], state.global_step, state.max_steps, **shown)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Complete the checkpoint that was just written, by every process, and make it durable."""
        if distributed.is_initialized():
            distributed.barrier()
        if not state.is_world_process_zero:
            return
        mark_complete(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}", {"step": state.global_step})
        self._checkpoints.save()
