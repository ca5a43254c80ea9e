"""What is kept for its score. Scores come from `score.py` or from the policy itself: one number per item, in order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from curateevo.policy.operators.items import Items


def keep_between(items: Items, scores: Sequence[float], *, low: float = -math.inf, high: float = math.inf) -> Items:
    """Items whose score is within `low`..`high`, both included."""
    check_scores(items, scores)
    return take(items, {k for k, score in enumerate(scores) if low <= score <= high}, "keep_between")


def keep_top(items: Items, scores: Sequence[float], *, count: int | None = None, turns: int | None = None) -> Items:
    """The highest scores, `count` items or up to `turns` kept turns of them; ties go to the earlier item.

    With `turns`, an item that no longer fits is passed over for later ones that do. The order stays that of the items.
    """
    check_scores(items, scores)
    order = sorted(range(len(items)), key=lambda k: (-scores[k], k))
    chosen = set(order[:count]) if turns is None else within_turns(items, order[:count], turns)
    return take(items, chosen, "keep_top")


def best_of(items: Items, scores: Sequence[float], *, count: int = 1, by: str = "task_id") -> Items:
    """The `count` best items of each group: best-of-N over a task's attempts. Ties go to fewer turns, then earlier."""
    check_scores(items, scores)
    groups: dict[object, list[int]] = {}
    for k, key in enumerate(items.feature(by)):
        groups.setdefault(key, []).append(k)

    def rank(k: int) -> tuple[float, int, int]:
        return -scores[k], len(items.items[k].turns), k

    return take(items, {k for group in groups.values() for k in sorted(group, key=rank)[:count]}, "best_of")


def sample_turns(items: Items, *, turns: int, seed_order: list[float]) -> Items:
    """Items in the order of `seed_order` (one random number per item) until `turns` kept turns are reached."""
    order = sorted(range(len(items)), key=lambda k: (seed_order[k], k))
    return take(items, within_turns(items, order, turns), "sample_turns")


def within_turns(items: Items, order: Sequence[int], turns: int) -> set[int]:
    """Positions of items, taken in `order` as far as their kept turns fit into `turns`."""
    chosen, total = set(), 0
    for k in order:
        size = len(items.items[k].turns)
        if total + size <= turns:
            chosen.add(k)
            total += size
    return chosen


def take(items: Items, positions: set[int], operator: str) -> Items:
    """The items at some positions, in order."""
    position = {id(item): k for k, item in enumerate(items.items)}
    return items.keep(lambda i: position[id(i)] in positions, operator)


def check_scores(items: Items, scores: Sequence[float]) -> None:
    """Raise ValueError unless there is one score, that is a number, for each item."""
    if len(scores) != len(items):
        raise ValueError(f"{len(scores)} scores for {len(items)} items: score the items that you decide on")
    if any(math.isnan(score) for score in scores):
        raise ValueError("a score is not a number")
