"""Dev tasks in three: diag, sel and test, by task and never by trajectory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from curateevo.api.spec import Splits

ORDER = ("diag", "sel", "test")


def split_tasks(tasks: Iterable[tuple[str, str]], splits: Splits) -> dict[str, list[str]]:
    """`tasks` are (id, family). Within each family, tasks are ordered by a seeded hash and cut by the fractions, so
    that every split sees every family. Returns sorted ids by split; they are disjoint and cover all tasks."""
    families: dict[str, list[str]] = {}
    for task_id, family in tasks:
        families.setdefault(family, []).append(task_id)
    out: dict[str, list[str]] = {name: [] for name in ORDER}
    fractions = (splits.diag, splits.sel, splits.test)
    for family in sorted(families):
        ordered = sorted(set(families[family]), key=lambda task_id: _rank(task_id, splits.seed))
        offset = int(_rank(family, splits.seed)[:8], 16) / 0xFFFFFFFF
        bounds = _bounds(len(ordered), fractions, offset)
        for name, start, end in zip(ORDER, bounds, bounds[1:], strict=False):
            out[name] += ordered[start:end]
    return {name: sorted(ids) for name, ids in out.items()}


def _bounds(count: int, fractions: tuple[float, ...], offset: float) -> list[int]:
    """Cut points; a family too small for all splits gives its tasks to them in turn (by `offset`)."""
    total, out = 0.0, [0]
    for fraction in fractions[:-1]:
        total += fraction * count
        out.append(min(count, int(total + (0.5 if count > len(fractions) else offset))))
    return [*out, count]


def _rank(text: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}|{text}".encode()).hexdigest()
