"""Which turns of an item to keep."""

from __future__ import annotations

from dataclasses import replace

from curateevo.policy.operators.items import Item, Items, TurnFlag

FAILED = TurnFlag.ERROR | TurnFlag.BAD_SCHEMA | TurnFlag.MALFORMED


def drop_malformed_turns(items: Items) -> Items:
    """Drop answers that were meant to be calls and are not. What follows stays."""
    return items.keep_turns(lambda i, t, f: not f & TurnFlag.MALFORMED, "drop_malformed_turns")


def fold_repeats(items: Items) -> Items:
    """Of the same calls in a row keep the first: the failure and its recovery stay, the insisting goes."""
    return items.keep_turns(lambda i, t, f: not f & TurnFlag.REPEAT, "fold_repeats")


def drop_unused_calls(items: Items) -> Items:
    """Drop successful look-ups whose results no later call uses, and no later answer tells a number of (detours). What
    a look-up is, the first word of the tool's name says (get, find, search, ...). The last call stays."""
    return items.keep_turns(lambda i, t, f: not f & TurnFlag.UNUSED, "drop_unused_calls")


def drop_no_ops(items: Items) -> Items:
    """Drop turns that change nothing: calls made before with the same results, and answers that say nothing."""
    return items.keep_turns(lambda i, t, f: not f & TurnFlag.NO_OP, "drop_no_ops")


def mask_failed_turns(items: Items) -> Items:
    """Mask turns that failed or are malformed: the recovery is learnt from what it reacts to, the failure is not."""
    return items.mask_turns(lambda i, t, f: bool(f & FAILED), "mask_failed_turns")


def drop_error_turns(items: Items) -> Items:
    """Drop turns whose calls failed. Shorter, but nothing is left to learn recovery from."""
    return items.keep_turns(lambda i, t, f: not f & TurnFlag.ERROR, "drop_error_turns")


def keep_tail(items: Items, *, max_turns: int) -> Items:
    """The last `max_turns` kept turns of each item; the opening is always kept."""
    return items.keep_turns(lambda i, t, f: t in i.turns[-max_turns:], "keep_tail")


def keep_head(items: Items, *, max_turns: int) -> Items:
    """The first `max_turns` kept turns of each item."""
    return items.keep_turns(lambda i, t, f: t in i.turns[:max_turns], "keep_head")


def drop_middle(items: Items, *, head: int, tail: int) -> Items:
    """The first `head` and the last `tail` kept turns of each item: how it begins, and how it ends."""

    def outer(item: Item, turn: int, flags: int) -> bool:
        return turn in item.turns[:head] or turn in item.turns[len(item.turns) - tail :]

    return items.keep_turns(outer, "drop_middle")


def shorten_results(items: Items, *, max_chars: int) -> Items:
    """Cut tool results to `max_chars` characters (40 or more), what later turns use first; errors stay whole.

    The text is cut when the row is written (`policy/shorten.py`); a limit that is lower already stays.
    """
    if max_chars < 40:
        raise ValueError(f"shorten_results: max_chars {max_chars} is below 40")

    def limit(item: Item) -> Item:
        return replace(item, max_result_chars=min(max_chars, item.max_result_chars or max_chars))

    return items.change(limit, "shorten_results")


def segment(items: Items, *, max_turns: int = 8, context: int = 0) -> Items:
    """Cut items into decision segments: one for each user message after the opening, of at most `max_turns` turns.

    Up to `context` kept turns before a segment are shown as masked turns. The opening is in every segment.
    """
    if max_turns < 1 or context < 0:
        raise ValueError(f"segment: max_turns {max_turns} must be 1 or more, context {context} 0 or more")
    out: list[Item] = []
    for item in items:
        starts = [0]
        for position, flags in enumerate(items.flags(item)):
            if position and (flags & TurnFlag.ASKED or position - starts[-1] == max_turns):
                starts.append(position)
        if len(starts) == 1:
            out.append(item)
            continue
        for start, end in zip(starts, [*starts[1:], len(item.turns)], strict=True):
            first = max(0, start - context)
            before = set(item.turns[first:start])
            turns = item.turns[first:end]
            masked = tuple(t for t in turns if t in before or t in item.masked)
            if len(masked) < len(turns):
                lineage = (*item.lineage, "segment")
                out.append(replace(item, turns=turns, masked=masked, lineage=lineage))
    return replace(items, items=tuple(out))
