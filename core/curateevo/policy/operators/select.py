"""Which items to keep."""

from __future__ import annotations

from collections import defaultdict

from curateevo.policy.operators.items import Item, Items, TurnFlag


def keep_successes(items: Items, *, unknown: bool = False) -> Items:
    """Items whose trajectory is labelled a success; unlabelled ones too when `unknown`."""
    success = items.corpus.column("success")
    return items.keep(lambda i: success[i.row] is True or (unknown and success[i.row] is None), "keep_successes")


def keep_valid(items: Items) -> Items:
    """Items whose kept turns hold no malformed call and no call that breaks its tool's schema."""
    bad = TurnFlag.MALFORMED | TurnFlag.BAD_SCHEMA
    return items.keep(lambda i: not any(f & bad for f in items.flags(i)), "keep_valid")


def keep_grounded(items: Items, *, max_ungrounded: int = 0) -> Items:
    """Items with at most `max_ungrounded` turns that pass a value standing in no earlier text."""

    def grounded(item: Item) -> bool:
        return sum(1 for f in items.flags(item) if f & TurnFlag.UNGROUNDED) <= max_ungrounded

    return items.keep(grounded, "keep_grounded")


def keep_recovered(items: Items) -> Items:
    """Items whose last call did not fail: errors are kept where something was done about them."""

    def recovered(item: Item) -> bool:
        calls = [f for f in items.flags(item) if f & TurnFlag.CALL]
        return not calls or not calls[-1] & TurnFlag.ERROR

    return items.keep(recovered, "keep_recovered")


def signature_of(items: Items, item: Item) -> tuple[str, int]:
    """What kind of work the kept turns are: the trajectory's tools, and how many calls are kept."""
    calls = sum(1 for f in items.flags(item) if f & TurnFlag.CALL)
    return (items.corpus.column("signature")[item.row] if calls else "", calls)


def keep_reliable(items: Items, *, min_success: float = 0.5, prior: float = 1.0) -> Items:
    """Items whose kind of work succeeds in their family at a rate of at least `min_success`.

    The rate is over the items given, by (family, signature), with `prior` pseudo-counts at one half: single labels
    are noisy, a kind's rate is not. Use it before filtering by label.
    """
    family, success = items.corpus.column("family"), items.corpus.column("success")
    wins: dict[tuple[str, tuple[str, int]], list[float]] = defaultdict(list)
    for item in items:
        if success[item.row] is not None:
            wins[family[item.row], signature_of(items, item)].append(float(success[item.row]))

    def reliable(item: Item) -> bool:
        seen = wins[family[item.row], signature_of(items, item)]
        return (sum(seen) + prior / 2) / (len(seen) + prior) >= min_success

    return items.keep(reliable, "keep_reliable")


def keep_short(items: Items, *, max_turns: int) -> Items:
    """Items of at most `max_turns` kept turns."""
    return items.keep(lambda i: len(i.turns) <= max_turns, "keep_short")


def sample_turns(items: Items, *, turns: int, seed_order: list[float]) -> Items:
    """Items in the order of `seed_order` (one random number per item) until `turns` kept turns are reached."""
    order = sorted(range(len(items)), key=lambda k: (seed_order[k], k))
    chosen, total = set(), 0
    for k in order:
        size = len(items.items[k].turns)
        if total + size <= turns:
            chosen.add(k)
            total += size
    position = {id(item): k for k, item in enumerate(items.items)}
    return items.keep(lambda i: position[id(i)] in chosen, "sample_turns")
