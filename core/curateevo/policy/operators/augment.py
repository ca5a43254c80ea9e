"""How often each item stands in the data."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from curateevo.policy.operators.decide import check_scores
from curateevo.policy.operators.items import Context, Item, Items
from curateevo.policy.operators.score import score_failures


def balance(items: Items, ctx: Context, *, per_group: int, by: str = "family") -> Items:
    """Bring every group of feature `by` to `per_group` rows: rare items are repeated, common groups are sampled."""
    groups = items.groups(by)
    return _fill(items, ctx, groups, dict.fromkeys(groups, per_group), "balance")


def match_failures(items: Items, ctx: Context, *, per_group: int, boost: float = 2.0, by: str = "family") -> Items:
    """`balance`, with families that fail on diag given up to `boost` times the rows, in proportion to failure."""
    groups = items.groups(by)
    wanted = {key: round(per_group * (1 + (boost - 1) * (1 - ctx.family_success.get(str(key), 1.0)))) for key in groups}
    return _fill(items, ctx, groups, wanted, "match_failures")


def balance_scores(items: Items, ctx: Context, scores: Sequence[float], *, per_group: int, bins: int = 3) -> Items:
    """`balance` over `bins` groups of scores, of as equal sizes as ties allow: by difficulty, length, rarity."""
    check_scores(items, scores)
    if bins < 1:
        raise ValueError(f"balance_scores: bins {bins} is below 1")
    ranked = sorted(scores)
    groups: dict[object, list[Item]] = {}
    for item, score in zip(items, scores, strict=True):
        groups.setdefault(bisect_left(ranked, score) * bins // len(ranked), []).append(item)
    return _fill(items, ctx, groups, dict.fromkeys(groups, per_group), "balance_scores")


def balance_tools(items: Items, *, per_tool: int, max_copies: int = 8) -> Items:
    """Repeat items until each tool is called by `per_tool` rows, each `max_copies` times at most. None is dropped."""
    rows = Counter({tool: 0 for tools in items.feature("tools") for tool in tools})
    for item, tools in zip(items, items.feature("tools"), strict=True):
        rows.update(dict.fromkeys(tools, item.copies))

    def repeat(item: Item) -> Item:
        tools = items.corpus.column("tools")[item.row]
        times = max((-(-per_tool // rows[tool]) for tool in tools), default=1)
        return replace(item, copies=max(item.copies, min(item.copies * times, max_copies)))

    return items.change(repeat, "balance_tools")


def upsample_failures(items: Items, ctx: Context, *, boost: float = 4.0, modes: Iterable[str] = ()) -> Items:
    """Repeat items of families that the parent fails on, 1 + `boost` * `score_failures` times, rounded."""
    scores = score_failures(items, ctx, modes=modes)
    times = {id(item): round(1 + boost * score) for item, score in zip(items, scores, strict=True)}
    return items.change(lambda i: replace(i, copies=i.copies * max(1, times[id(i)])), "upsample_failures")


def cap(items: Items, ctx: Context, *, per_group: int, by: str = "family") -> Items:
    """At most `per_group` rows of each group, sampled; groups that are smaller stay whole."""
    wanted = {key: min(per_group, sum(i.copies for i in group)) for key, group in items.groups(by).items()}
    return _fill(items, ctx, items.groups(by), wanted, "cap")


def _fill(
    items: Items, ctx: Context, groups: Mapping[Any, list[Item]], wanted: Mapping[Any, int], operator: str
) -> Items:
    copies: dict[int, int] = {}
    for key, group in groups.items():
        order = list(group)
        ctx.rng.shuffle(order)
        rounds, rest = divmod(wanted[key], len(order))
        for position, item in enumerate(order):
            copies[id(item)] = rounds + (position < rest)
    out: list[Item] = [
        replace(i, copies=copies[id(i)], lineage=(*i.lineage, operator)) for i in items if copies[id(i)] > 0
    ]
    return replace(items, items=tuple(out))
