"""Exact and near duplicates."""

from __future__ import annotations

from curateevo.policy.operators.items import Item, Items


def drop_exact_duplicates(items: Items) -> Items:
    """Of items with equal content and equal kept turns keep the first."""
    hashes = items.corpus.column("content_hash")
    seen: set[tuple[str, tuple[int, ...]]] = set()

    def first(item: Item) -> bool:
        key = (hashes[item.row], item.turns)
        return not (key in seen or seen.add(key))  # type: ignore[func-returns-value]

    return items.keep(first, "drop_exact_duplicates")


def drop_near_duplicates(items: Items, *, threshold: float = 0.85) -> Items:
    """Drop an item when an earlier one has the same calls and a MinHash similarity of at least `threshold` (0..1).

    Similarity is the share of equal permutations of the trajectories' signatures (Broder 1997); items are compared
    within the same kept call signature only.
    """
    sketches, signatures = items.corpus.column("minhash"), items.corpus.column("signature")
    kept: dict[tuple[str, int], list[list[int]]] = {}

    def fresh(item: Item) -> bool:
        bucket = kept.setdefault((signatures[item.row], len(item.turns)), [])
        sketch = sketches[item.row]
        if any(similarity(sketch, other) >= threshold for other in bucket):
            return False
        bucket.append(sketch)
        return True

    return items.keep(fresh, "drop_near_duplicates")


def similarity(left: list[int], right: list[int]) -> float:
    """Estimated Jaccard similarity of two MinHash sketches of equal length."""
    return sum(a == b for a, b in zip(left, right, strict=True)) / len(left)
