"""Long tool results, cut to what the rest of the row needs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from curateevo.trajectories.flags import reads_like_error, values, words
from curateevo.trajectories.model import Turn

PIECE = re.compile(r"[^\n,;]+[\n,;]?|[\n,;]")
GAP = " ... "
"""Stands where something was cut."""


def needed_words(later: Iterable[Turn]) -> set[str]:
    """What later turns take from results: the words of their calls' arguments, and what holds a digit in their text."""
    found: set[str] = set()
    for turn in later:
        found.update(w for call in turn.calls for value in values(call.parsed()) for w in words(value))
        found.update(w for w in words(turn.content) if any(c.isdigit() for c in w))
    return found


def shorten(result: str, limit: int, needed: set[str]) -> str:
    """A result of at most `limit` characters, and the marks of what was cut; errors stay as they are.

    Kept are the pieces (up to a comma, semicolon or line end) that hold a needed word, then those from the start, as
    far as they fit, in their order. After the target-centred pruning of Weasel (arXiv 2605.20291), which keeps what
    stands around the target of an action.
    """
    if len(result) <= limit or reads_like_error(result):
        return result
    pieces = PIECE.findall(result)
    wanted = [not needed.isdisjoint(words(piece)) for piece in pieces]
    kept, room = set(), limit
    for index in sorted(range(len(pieces)), key=lambda i: (not wanted[i], i)):
        if len(pieces[index]) <= room:
            kept.add(index)
            room -= len(pieces[index])
        elif not kept:
            return result[:limit] + GAP.rstrip()
    out, cut = [], False
    for index, piece in enumerate(pieces):
        if index not in kept:
            cut = True
            continue
        out.append(GAP + piece.lstrip() if cut else piece)
        cut = False
    return "".join(out) + (GAP.rstrip() if cut else "")
