"""How often each item stands in the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from curateevo.policy.operators.items import Context, Item, Items


def balance(items: Items, ctx: Context, *, per_group: int, by: str = "family") -> Items:
    """Bring every group of feature `by` to `per_group` rows: rare items are repeated, common groups are sampled."""
    return _fill(items, ctx, dict.fromkeys(items.groups(by), per_group), by, "balance")


def match_failures(items: Items, ctx: Context, *, per_group: int, boost: float = 2.0, by: str = "family") -> Items:
    """`balance`, with families that fail on diag given up to `boost` times the rows, in proportion to failure."""
    wanted = {
        key: round(per_group * (1 + (boost - 1) * (1 - ctx.family_success.get(str(key), 1.0))))
        for key in items.groups(by)
    }
    return _fill(items, ctx, wanted, by, "match_failures")


def cap(items: Items, ctx: Context, *, per_group: int, by: str = "family") -> Items:
    """At most `per_group` rows of each group, sampled; groups that are smaller stay whole."""
    wanted = {key: min(per_group, sum(i.copies for i in group)) for key, group in items.groups(by).items()}
    return _fill(items, ctx, wanted, by, "cap")


def _fill(items: Items, ctx: Context, wanted: Mapping[object, int], by: str, operator: str) -> Items:
    copies: dict[int, int] = {}
    for key, group in items.groups(by).items():
        order = list(group)
        ctx.rng.shuffle(order)
        rounds, rest = divmod(wanted[key], len(order))
        for position, item in enumerate(order):
            copies[id(item)] = rounds + (position < rest)
    out: list[Item] = [
        replace(i, copies=copies[id(i)], lineage=(*i.lineage, operator)) for i in items if copies[id(i)] > 0
    ]
    return replace(items, items=tuple(out))
