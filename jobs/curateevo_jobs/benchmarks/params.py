"""What suites share in reading their params."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from curateevo.api.errors import SpecInvalid
from curateevo_jobs.benchmarks.base import Task


def refuse_unknown(suite: str, params: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises SpecInvalid for a param that the suite does not have."""
    if unknown := sorted(set(params) - set(known)):
        raise SpecInvalid(f"{suite} knows no param {unknown[0]!r}", f"known: {', '.join(sorted(known))}")


def whole_number(suite: str, params: Mapping[str, Any], name: str, default: int | None) -> int | None:
    """A param that is a number of at least 0. The cluster's JSON may hand over 60 as 60.0. Raises SpecInvalid."""
    value = params.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise SpecInvalid(f"{suite}: {name} must be a whole number, not {value!r}")
    return int(value)


def sample(suite: str, tasks: Sequence[Task], count: int | None, seed: int | None) -> list[Task]:
    """`count` of the tasks, in their order; a larger sample holds a smaller one."""
    if count is None or count >= len(tasks):
        return list(tasks)
    order = list(range(len(tasks)))
    random.Random(f"{suite} {seed}").shuffle(order)
    return [tasks[number] for number in sorted(order[:count])]


def names_of(suite: str, what: str, wanted: Any, known: Sequence[str]) -> tuple[str, ...]:
    """The names that a param lists, in the order of `known`. Raises SpecInvalid."""
    if not isinstance(wanted, list | tuple) or not wanted:
        raise SpecInvalid(f"{suite}: {what} must be a list, not {wanted!r}", f"known: {', '.join(known)}")
    if unknown := [name for name in wanted if name not in known]:
        raise SpecInvalid(f"{suite}: {what} has no {unknown[0]!r}", f"known: {', '.join(known)}")
    return tuple(name for name in known if name in wanted)
