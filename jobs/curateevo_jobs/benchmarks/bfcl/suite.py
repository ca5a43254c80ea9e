"""BFCL-V4 as a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from curateevo_jobs.benchmarks.base import Environment, Task
from curateevo_jobs.benchmarks.bfcl.categories import GROUPS, chosen
from curateevo_jobs.benchmarks.bfcl.dataset import tasks_of
from curateevo_jobs.benchmarks.bfcl.worlds import open_world
from curateevo_jobs.benchmarks.params import refuse_unknown, sample, whole_number

_KNOWN_PARAMS = frozenset({"categories", "perCategory", "seed"})


class BfclSuite:
    """Params: `categories` (all that are supported), `perCategory` (all tasks) and `seed` (0): which ones those are."""

    name = "bfcl"

    def tasks(self, params: Mapping[str, Any]) -> Sequence[Task]:
        """The tasks, category by category. Raises SpecInvalid for bad params, ContractBroken without the package."""
        refuse_unknown(self.name, params, _KNOWN_PARAMS)
        categories = chosen(params.get("categories", tuple(GROUPS)))
        count = whole_number(self.name, params, "perCategory", None)
        seed = whole_number(self.name, params, "seed", 0)
        return [task for tasks in tasks_of(categories) for task in sample(self.name, tasks, count, seed)]

    def environment(self, state: str) -> Environment:
        """A fresh environment from a task's state."""
        return open_world(state)
