"""Which turns of an item to keep."""

from __future__ import annotations

from curateevo.policy.operators.items import Items, TurnFlag


def drop_malformed_turns(items: Items) -> Items:
    """Drop answers that were meant to be calls and are not. What follows stays."""
    return items.keep_turns(lambda i, t, f: not f & TurnFlag.MALFORMED, "drop_malformed_turns")


def fold_repeats(items: Items) -> Items:
    """Of the same calls in a row keep the first: the failure and its recovery stay, the insisting goes."""
    return items.keep_turns(lambda i, t, f: not f & TurnFlag.REPEAT, "fold_repeats")


def drop_unused_calls(items: Items) -> Items:
    """Drop successful calls whose results no later call uses (detours). The last call stays."""
    return items.keep_turns(lambda i, t, f: not f & TurnFlag.UNUSED, "drop_unused_calls")


def drop_error_turns(items: Items) -> Items:
    """Drop turns whose calls failed. Shorter, but nothing is left to learn recovery from."""
    return items.keep_turns(lambda i, t, f: not f & TurnFlag.ERROR, "drop_error_turns")


def keep_tail(items: Items, *, max_turns: int) -> Items:
    """The last `max_turns` kept turns of each item; the opening is always kept."""
    return items.keep_turns(lambda i, t, f: t in i.turns[-max_turns:], "keep_tail")
