"""ACEBench-Agent as a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from curateevo.api.errors import SpecInvalid
from curateevo_jobs.benchmarks.acebench.dataset import LAYOUT, tasks_of
from curateevo_jobs.benchmarks.acebench.worlds import open_world
from curateevo_jobs.benchmarks.base import Environment, Task
from curateevo_jobs.benchmarks.params import names_of, refuse_unknown, sample, whole_number
from curateevo_jobs.benchmarks.simulator import simulator_of

FAMILIES = ("multi_step-en", "multi_step-zh", "multi_turn-en", "multi_turn-zh")
TALKS = "multi_turn"
_KNOWN_PARAMS = frozenset({"folder", "families", "perFamily", "seed", "user"})


class AcebenchSuite:
    """Params: `folder`, where the data lies; `families` (all four), `perFamily` (all tasks) and `seed` (0): which ones
    those are; `user`, the simulator of multi_turn: see `simulator.py`."""

    name = "acebench"

    def tasks(self, params: Mapping[str, Any]) -> Sequence[Task]:
        """The tasks, family by family. Raises SpecInvalid for bad params, ContractBroken without data or package."""
        refuse_unknown(self.name, params, _KNOWN_PARAMS)
        folder = params.get("folder")
        if not isinstance(folder, str) or not folder:
            raise SpecInvalid("acebench: the data does not come along: `folder` says where it lies", LAYOUT)
        families = names_of(self.name, "families", params.get("families", FAMILIES), FAMILIES)
        count = whole_number(self.name, params, "perFamily", None)
        seed = whole_number(self.name, params, "seed", 0)
        talks = any(family.startswith(TALKS) for family in families)
        simulator = simulator_of(self.name, params) if talks or "user" in params else None
        found = [tasks_of(name, Path(folder), simulator if name.startswith(TALKS) else None) for name in families]
        return [task for tasks in found for task in sample(self.name, tasks, count, seed)]

    def environment(self, state: str) -> Environment:
        """A fresh environment from a task's state."""
        return open_world(state)
