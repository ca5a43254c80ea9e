"""BFCL-V4 as a suite."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from curateevo.api.errors import SpecInvalid
from curateevo_jobs.benchmarks.base import Environment, Task
from curateevo_jobs.benchmarks.bfcl.categories import GROUPS, chosen
from curateevo_jobs.benchmarks.bfcl.dataset import tasks_of
from curateevo_jobs.benchmarks.bfcl.worlds import open_world

_KNOWN_PARAMS = frozenset({"categories", "perCategory", "seed"})


class BfclSuite:
    """Params: `categories` (all that are supported), `perCategory` (all tasks) and `seed` (0): which ones those are."""

    name = "bfcl"

    def tasks(self, params: Mapping[str, Any]) -> Sequence[Task]:
        """The tasks, category by category. Raises SpecInvalid for bad params, ContractBroken without the package."""
        if unknown := sorted(set(params) - _KNOWN_PARAMS):
            raise SpecInvalid(f"bfcl knows no param {unknown[0]!r}", f"known: {', '.join(sorted(_KNOWN_PARAMS))}")
        categories = chosen(params.get("categories", tuple(GROUPS)))
        count = whole_number(params, "perCategory", None)
        seed = whole_number(params, "seed", 0)
        return [task for tasks in tasks_of(categories) for task in sample(tasks, count, seed)]

    def environment(self, state: str) -> Environment:
        """A fresh environment from a task's state."""
        return open_world(state)


def sample(tasks: Sequence[Task], count: int | None, seed: int | None) -> list[Task]:
    """`count` of the tasks, in their order; a larger sample holds a smaller one."""
    if count is None or count >= len(tasks):
        return list(tasks)
    order = list(range(len(tasks)))
    random.Random(f"bfcl {seed}").shuffle(order)
    return [tasks[number] for number in sorted(order[:count])]


def whole_number(params: Mapping[str, Any], name: str, default: int | None) -> int | None:
    """A param that is a number of at least 0. The cluster's JSON may hand over 60 as 60.0."""
    value = params.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise SpecInvalid(f"bfcl: {name} must be a whole number, not {value!r}")
    return int(value)
