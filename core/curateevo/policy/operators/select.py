"""Which items to keep."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from curateevo.policy.operators.items import Item, Items, MemoryItem, TurnFlag
from curateevo.trajectories.flags import values, words
from curateevo.trajectories.leakage import LeakIndex
from curateevo.trajectories.model import Trajectory


def keep_successes(items: Items, *, unknown: bool = False) -> Items:
    """Items whose trajectory is labelled a success; unlabelled ones too when `unknown`."""
    success = items.corpus.column("success")
    return items.keep(lambda i: success[i.row] is True or (unknown and success[i.row] is None), "keep_successes")


def keep_valid(items: Items) -> Items:
    """Items whose kept turns hold no malformed call and no call that breaks its tool's schema."""
    bad = TurnFlag.MALFORMED | TurnFlag.BAD_SCHEMA
    return items.keep(lambda i: not any(f & bad for f in items.flags(i)), "keep_valid")


def keep_grounded(items: Items, *, max_ungrounded: int = 0, facts: Iterable[MemoryItem] = ()) -> Items:
    """Items with at most `max_ungrounded` turns that pass a value standing in no earlier text.

    With `facts` (of `memory_facts`), a value is grounded as well if a fact joins it to another value of its call: the
    agent can have it from memory.
    """
    known = _fact_pairs(items, facts)
    suspects = {i.row for i in items if any(f & TurnFlag.UNGROUNDED for f in items.flags(i))}
    texts = items.corpus.trajectories(suspects) if known else {}

    def ungrounded(item: Item, turn: int, flags: int) -> bool:
        if not flags & TurnFlag.UNGROUNDED:
            return False
        return not (item.row in texts and _explained(texts[item.row], turn, known))

    def grounded(item: Item) -> bool:
        flagged = zip(item.turns, items.flags(item), strict=True)
        return sum(ungrounded(item, turn, flags) for turn, flags in flagged) <= max_ungrounded

    return items.keep(grounded, "keep_grounded")


def _fact_pairs(items: Items, facts: Iterable[MemoryItem]) -> frozenset[tuple[str, str]]:
    """Words that stand together in one fact, in both orders."""
    notes = list(facts)
    texts = items.corpus.trajectories({n.row for n in notes})
    spans = (words(texts[n.row].turns[n.turn].results[n.result][n.start : n.end]) for n in notes)
    return frozenset((a, b) for span in spans for a in span for b in span if a != b)


def _explained(trajectory: Trajectory, turn: int, known: frozenset[tuple[str, str]]) -> bool:
    """Whether every value of the turn's calls stands in an earlier text or is joined by a fact to another value."""
    seen = set(words(" ".join([trajectory.system or "", *trajectory.head])))
    for earlier in trajectory.turns[:turn]:
        seen.update(words(" ".join([*earlier.users, *earlier.results])))
    seen.update(words(" ".join(trajectory.turns[turn].users)))
    for call in trajectory.turns[turn].calls:
        found = {w for value in values(call.parsed()) for w in words(value)}
        if any(w not in seen and not any((other, w) in known for other in found & seen) for w in found):
            return False
    return True


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
    """Items whose kind of work succeeds in their family at a rate of at least `min_success`, or is the family's best.

    The rate is over the items given, by (family, signature), with `prior` pseudo-counts at one half: single labels
    are noisy, a kind's rate is not. Use it before filtering by label. No family loses all of its kinds.
    """
    family, success = items.corpus.column("family"), items.corpus.column("success")
    wins: dict[tuple[str, tuple[str, int]], list[float]] = defaultdict(list)
    for item in items:
        if success[item.row] is not None:
            wins[family[item.row], signature_of(items, item)].append(float(success[item.row]))

    rates = {kind: (sum(seen) + prior / 2) / (len(seen) + prior) for kind, seen in wins.items()}
    best: dict[str, float] = {}
    for (name, _), rate in rates.items():
        best[name] = max(rate, best.get(name, 0.0))

    def reliable(item: Item) -> bool:
        name = family[item.row]
        return rates.get((name, signature_of(items, item)), 0.0) >= min(min_success, best.get(name, 0.0))

    return items.keep(reliable, "keep_reliable")


def keep_short(items: Items, *, max_turns: int) -> Items:
    """Items of at most `max_turns` kept turns."""
    return items.keep(lambda i: len(i.turns) <= max_turns, "keep_short")


def keep_tools(items: Items, tools: Iterable[str]) -> Items:
    """Items whose kept turns call at least one of `tools`."""
    wanted = set(tools)
    return items.keep(lambda i: not wanted.isdisjoint(_called(items, i)), "keep_tools")


def drop_tools(items: Items, tools: Iterable[str]) -> Items:
    """Items whose kept turns call none of `tools`."""
    unwanted = set(tools)
    return items.keep(lambda i: unwanted.isdisjoint(_called(items, i)), "drop_tools")


def _called(items: Items, item: Item) -> set[str]:
    return {name for names in items.of_turns(item, "turn_tools") for name in names.split(">")}


def keep_errors(items: Items, pattern: str) -> Items:
    """Items with a kept turn whose error matches `pattern` (a regular expression, anywhere, of any case)."""
    found = re.compile(pattern, re.IGNORECASE)
    return items.keep(lambda i: _fails_with(items, i, found), "keep_errors")


def drop_errors(items: Items, pattern: str) -> Items:
    """Items without a kept turn whose error matches `pattern` (a regular expression, anywhere, of any case)."""
    found = re.compile(pattern, re.IGNORECASE)
    return items.keep(lambda i: not _fails_with(items, i, found), "drop_errors")


def _fails_with(items: Items, item: Item, pattern: re.Pattern[str]) -> bool:
    return any(error and pattern.search(error) for error in items.of_turns(item, "turn_errors"))


def decontaminate(items: Items, tasks: Mapping[str, str]) -> Items:
    """Items that share neither id, prompt nor 13 words in a row with `tasks` (prompts by id). Reads the items' text.

    For benchmarks that you name. The dev tasks of a run are kept out at ingest and by the gate; no policy sees them.
    """
    index = LeakIndex(tasks)
    texts = items.corpus.trajectories({i.row for i in items})

    def clean(item: Item) -> bool:
        text = texts[item.row]
        asked = [user for turn in item.turns for user in text.turns[turn].users]
        return index.find(text.task.id, [*text.head, *asked]) is None

    return items.keep(clean, "decontaminate")
