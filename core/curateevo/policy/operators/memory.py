"""Memory: notes on tools, errors, recoveries, kinds of tasks and the environment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from curateevo.policy.notes import render_note
from curateevo.policy.operators.items import Corpus, Item, Items, MemoryItem, NoteKind
from curateevo.trajectories.features import NO_CALL
from curateevo.trajectories.flags import WORD, reads_like_error, values, words
from curateevo.trajectories.model import Trajectory


def memory_facts(corpus: Corpus, *, limit: int, trust_failures: bool = True) -> tuple[MemoryItem, ...]:
    """Environment facts: tool results that repeat an argument and say something more about it.

    A fact is a span of a result without an error. Results that say different things of the same arguments are no
    facts of the environment but of one run, and are left out. Trajectories that failed are believed as well unless
    `trust_failures` is false: what a tool answered is true whatever became of the run.
    """
    found: dict[tuple[str, str], dict[str, MemoryItem]] = defaultdict(dict)
    success = corpus.column("success")
    for row, trajectory in corpus.trajectories(range(len(corpus))).items():
        if not trust_failures and success[row] is not True:
            continue
        for number, turn in enumerate(trajectory.turns):
            for position, (call, result) in enumerate(zip(turn.calls, turn.results, strict=True)):
                if (fact := _fact(result, values(call.parsed()))) is not None:
                    start, end, key = fact
                    text = " ".join(words(result[start:end]))
                    item = MemoryItem(row, number, position, start, end, call.name, ("memory_facts",))
                    found[key, _shape(text, key)].setdefault(text, item)
    facts = [next(iter(texts.values())) for texts in found.values() if len(texts) == 1]
    unique: dict[str, MemoryItem] = {}
    for item, texts in zip(facts, (t for t in found.values() if len(t) == 1), strict=True):
        unique.setdefault(next(iter(texts)), item)
    return tuple(unique.values())[:limit]


MAX_FACT_CHARS = 240


def _fact(result: str, arguments: list[str]) -> tuple[int, int, str] | None:
    """The span from the echoed argument to the end of the line, and the argument; None when nothing more is said."""
    if reads_like_error(result):
        return None
    known = {w for value in arguments for w in words(value)}
    for value in arguments:
        if len(value) < 2 or value.isdigit():
            continue
        start = result.find(value)
        if start < 0:
            continue
        end = result.find("\n", start)
        end = len(result) if end < 0 else end
        if end - start <= MAX_FACT_CHARS and any(w not in known for w in words(result[start:end])):
            return start, end, value.lower()
    return None


def _shape(text: str, key: str) -> str:
    """The fact without its value: the words up to the last one."""
    found = WORD.findall(text)
    return " ".join(found[:-1]) if len(found) > 1 else key


def memory_tools(items: Items, *, limit: int) -> tuple[MemoryItem, ...]:
    """Signatures of the tools that the items call, the most called first. Reads the items' text."""
    found: dict[str, list[MemoryItem]] = defaultdict(list)
    texts = _texts(items)
    for item, turn, position in _calls(items, texts):
        name = texts[item.row].turns[turn].calls[position].name
        found[name].append(_note(item.row, turn, position, name, "memory_tools", NoteKind.TOOL))
    return _most_frequent(items, texts, found, limit)


def memory_constraints(items: Items, *, limit: int) -> tuple[MemoryItem, ...]:
    """What tools answer when a call breaks a rule, the most frequent errors first. Reads the items' text.

    Errors are the same when they differ in numbers and in the call's own values only; one of each is kept.
    """
    found: dict[tuple[str, str], list[MemoryItem]] = defaultdict(list)
    texts = _texts(items)
    for item, turn, position in _calls(items, texts):
        call, text = texts[item.row].turns[turn].calls[position], texts[item.row].turns[turn].results[position]
        if reads_like_error(text):
            start = len(text) - len(text.lstrip())
            line = text[start:].split("\n", 1)[0][:MAX_FACT_CHARS]
            note = _note(item.row, turn, position, call.name, "memory_constraints", NoteKind.CONSTRAINT)
            note = replace(note, start=start, end=start + len(line))
            found[call.name, _error_shape(line, values(call.parsed()))].append(note)
    return _most_frequent(items, texts, found, limit)


def memory_recoveries(items: Items, *, limit: int) -> tuple[MemoryItem, ...]:
    """What the next successful call does after an error, the most frequent first. Reads the items' text.

    In names of tools and arguments: the values belong to another case.
    """
    found: dict[str, list[MemoryItem]] = defaultdict(list)
    texts = _texts(items)
    families = items.corpus.column("family")
    for item, turn, position in _calls(items, texts):
        call, text = texts[item.row].turns[turn].calls[position], texts[item.row].turns[turn].results[position]
        if reads_like_error(text):
            note = _note(item.row, turn, position, call.name, "memory_recoveries", NoteKind.RECOVERY)
            content = render_note(note, texts, families[item.row]).content
            found[_error_shape(content, values(call.parsed()))].append(note)
    return _most_frequent(items, texts, found, limit)


def memory_rules(items: Items, *, limit: int, min_success: float = 0.5) -> tuple[MemoryItem, ...]:
    """One rule per family: the tools that succeed there, in order, and the way that fails. Reads the rules' text.

    Where the source names no families (and they are call signatures), one per task. The way taken is the call signature
    with the best success rate among the items, `min_success` (0..1) or more; ties go to the more frequent one. The way
    to avoid is the most frequent signature of failures, if no success took it.
    In the manner of MetaEvo (Ren et al. 2026, arXiv 2606.07603), which abstracts principles from successes and failures
    and reuses them. Simplified: no model writes or learns to write the principle, it is a contrast of tools.
    """
    names = ("family", "signature", "task_id", "success")
    family, signature, task, success = (items.corpus.column(name) for name in names)
    named = {family[i.row] for i in items if family[i.row] not in (signature[i.row], NO_CALL)}
    ways: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in (i.row for i in items if success[i.row] is not None):
        ways[family[row] if family[row] in named else task[row]][signature[row]].append(row)
    notes = []
    for name, taken in ways.items():
        rate = {way: sum(success[row] for row in rows) / len(rows) for way, rows in taken.items() if way}
        best = max(rate, key=lambda way: (rate[way], len(taken[way])), default=None)
        if best is None or rate[best] == 0 or rate[best] < min_success:
            continue
        lost = [way for way, rows in taken.items() if not any(success[row] for row in rows)]
        worst = max(lost, key=lambda way: len(taken[way]), default=None)
        row = next(row for row in taken[best] if success[row])
        note = _note(row, 0, 0, name, "memory_rules", NoteKind.RULE)
        notes.append(replace(note, against=None if worst is None else taken[worst][0]))
    texts = items.corpus.trajectories({row for n in notes for row in (n.row, n.against) if row is not None})
    return tuple(n for n in notes if render_note(n, texts, family[n.row]).content)[:limit]


def _texts(items: Items) -> dict[int, Trajectory]:
    return items.corpus.trajectories({item.row for item in items})


def _calls(items: Items, texts: dict[int, Trajectory]) -> Iterator[tuple[Item, int, int]]:
    """Item, turn and number of each kept call."""
    for item in items:
        for turn in item.turns:
            for position in range(len(texts[item.row].turns[turn].calls)):
                yield item, turn, position


def _note(row: int, turn: int, result: int, scope: str, operator: str, kind: NoteKind) -> MemoryItem:
    """A note without a span."""
    return MemoryItem(row, turn, result, 0, 1, scope, (operator,), kind)


def _error_shape(text: str, arguments: list[str]) -> str:
    """An error without the numbers and values of its call."""
    own = {w for value in arguments for w in words(value)}
    return " ".join("*" if w in own or any(c.isdigit() for c in w) else w for w in words(text))


def _most_frequent(
    items: Items, texts: dict[int, Trajectory], found: Mapping[Any, list[MemoryItem]], limit: int
) -> tuple[MemoryItem, ...]:
    """The first note of each group that can be written, larger groups first."""
    families = items.corpus.column("family")
    groups = sorted(found.values(), key=len, reverse=True)
    notes = (next((n for n in group if render_note(n, texts, families[n.row]).content), None) for group in groups)
    return tuple(note for note in notes if note is not None)[:limit]
