"""Exact and near duplicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from curateevo.policy.operators.decide import take
from curateevo.policy.operators.items import Item, Items


def drop_exact_duplicates(items: Items) -> Items:
    """Of items with equal content, equal kept, masked and rewritten turns keep the first."""
    hashes = items.corpus.column("content_hash")
    return _first_of(
        items,
        lambda i: (hashes[i.row], i.turns, i.masked, i.rewrites and tuple(replace(r, row=0) for r in i.rewrites)),
        "drop_exact_duplicates",
    )


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
    within the same kept call signature only. Other turns, or other words, of the same trajectory are no duplicates.
    """
    sketches, signatures = items.corpus.column("minhash"), items.corpus.column("signature")
    groups: dict[tuple[str, int], list[int]] = {}
    for position, item in enumerate(items):
        groups.setdefault((signatures[item.row], len(item.turns)), []).append(position)
    fresh: set[int] = set()
    for positions in groups.values():
        mine = [items.items[k] for k in positions]
        found = np.array([sketches[item.row] for item in mine], dtype=np.uint32)
        fresh.update(positions[k] for k in _dissimilar(found, threshold, partial(_parts_of_one, mine)))
    return take(items, fresh, "drop_near_duplicates")


def _parts_of_one(items: Sequence[Item], left: int, right: int) -> bool:
    one, other = items[left], items[right]
    return one.row == other.row and (one.turns != other.turns or one.rewrites != other.rewrites)


def _dissimilar(
    sketches: npt.NDArray[np.uint32], threshold: float, apart: Callable[[int, int], bool] = lambda left, right: False
) -> list[int]:
    """Of sketches in order, those that are not similar to one kept before. Two that are `apart` are not compared.

    Two that are similar differ in at most so many permutations, so that of one band more than that, some band is equal
    in both: only sketches that share a band are compared, and none is missed.
    """
    size = sketches.shape[1]
    least = next((n for n in range(size + 1) if n / size >= threshold), None)
    if least is None:
        return list(range(len(sketches)))
    edges = [round(size * k / (size - least + 1)) for k in range(size - least + 2)]
    kept: list[int] = []
    banded: dict[tuple[int, bytes], list[int]] = {}
    for k, sketch in enumerate(sketches):
        raw = sketch.tobytes()
        bands = [(n, raw[4 * start : 4 * end]) for n, (start, end) in enumerate(pairwise(edges))]
        near = {other for band in bands for other in banded.get(band, ()) if not apart(other, k)}
        if not (np.count_nonzero(sketches[sorted(near)] == sketch, axis=1) >= least).any():
            kept.append(k)
            for band in bands:
                banded.setdefault(band, []).append(k)
    return kept


def similarity(left: list[int], right: list[int]) -> float:
    """Estimated Jaccard similarity of two MinHash sketches of equal length."""
    return sum(a == b for a, b in zip(left, right, strict=True)) / len(left)
