"""One training: a seed, and the places that its phases share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from curateevo.api.stage import TrainParams
from curateevo_jobs.benchmarks.base import Suite
from curateevo_jobs.stage import StageRun
from curateevo_jobs.training.checkpoints import PhaseFolder
from curateevo_jobs.training.interruption import Interruption, Notice
from curateevo_jobs.training.metrics import MetricsLog, Recorder
from curateevo_jobs.training.weights import save


@dataclass(frozen=True, slots=True)
class Lane:
    """Training number `index`, from the base model to the released one, with one seed."""

    run: StageRun
    params: TrainParams
    base: Path
    index: int
    suites: Mapping[str, Suite]
    notice: Notice | None = None
    """That the program is to end, while a phase runs."""

    @property
    def seed(self) -> int:
        return self.params.training.seed + self.index

    @property
    def metrics(self) -> MetricsLog:
        return MetricsLog(self.run.checkpoints.folder / f"metrics-{self.index}.jsonl")

    def phase(self, name: str) -> PhaseFolder:
        """Where the phase called `name` keeps its checkpoints."""
        return PhaseFolder(self.run.checkpoints.folder / f"{name}-{self.index}")

    def callbacks(self, phase: str) -> list[TrainerCallback]:
        """What its trainer tells of each step. Checkpoints are completed before a step's end is looked at."""
        interruption = [] if self.notice is None else [Interruption(self.notice)]
        return [Recorder(phase, self.metrics, self.run.checkpoints, self.run.progress), *interruption]

    def finish(self, phase: str, trainer: Any, start: Path) -> None:
        """Keep the trained model, trained on `start`, as the phase's result in place of its checkpoints."""
        template = self.params.model.chat_template

        def write(folder: Path) -> None:
            adapter = folder / "adapter"
            save(trainer.model, folder, start=start, base=self.base, chat_template=template, adapter=adapter)

        self.phase(phase).finish(write, {"steps": trainer.state.global_step})
        self.phase(phase).drop_checkpoints()
        self.run.checkpoints.save()
