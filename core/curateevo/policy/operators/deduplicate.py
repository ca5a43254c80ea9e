"""Exact and near duplicates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from curateevo.policy.operators.decide import take
from curateevo.policy.operators.items import Item, Items


def drop_exact_duplicates(items: Items) -> Items:
    """Of items with equal content, equal kept and equal masked turns keep the first."""
    hashes = items.corpus.column("content_hash")
    return _first_of(items, lambda i: (hashes[i.row], i.turns, i.masked), "drop_exact_duplicates")


def drop_same_calls(items: Items, *, by: str = "task_id") -> Items:
    """Of items of one group (of feature `by`) that make the same calls, whatever they say, keep the first.

    Calls are compared in order, tool by tool, arguments by key and without case. Items without a call stay.
    """
    groups = items.corpus.column(by)

    def calls(item: Item) -> tuple[object, ...]:
        made = tuple(h for h in items.of_turns(item, "turn_calls") if h)
        return (groups[item.row], made) if made else (id(item),)

    return _first_of(items, calls, "drop_same_calls")


def _first_of(items: Items, key: Callable[[Item], tuple[object, ...]], operator: str) -> Items:
    seen: set[tuple[object, ...]] = set()

    def first(item: Item) -> bool:
        found = key(item)
        return not (found in seen or seen.add(found))  # type: ignore[func-returns-value]

    return items.keep(first, operator)


def drop_near_duplicates(items: Items, *, threshold: float = 0.85) -> Items:
    """Drop an item when an earlier one has the same calls and a MinHash similarity of at least `threshold` (0..1).

    Similarity is the share of equal permutations of the trajectories' signatures (Broder 1997); items are compared
    within the same kept call signature only.
    """
    sketches, signatures = items.corpus.column("minhash"), items.corpus.column("signature")
    buckets: dict[tuple[str, int], list[int]] = {}
    for position, item in enumerate(items):
        buckets.setdefault((signatures[item.row], len(item.turns)), []).append(position)
    fresh: set[int] = set()
    for positions in buckets.values():
        found = np.array([sketches[items.items[k].row] for k in positions])
        kept = np.empty_like(found)
        count = 0
        for position, sketch in zip(positions, found, strict=True):
            if not ((kept[:count] == sketch).mean(axis=1) >= threshold).any():
                kept[count] = sketch
                count += 1
                fresh.add(position)

    return take(items, fresh, "drop_near_duplicates")


def similarity(left: list[int], right: list[int]) -> float:
    """Estimated Jaccard similarity of two MinHash sketches of equal length."""
    return sum(a == b for a, b in zip(left, right, strict=True)) / len(left)
