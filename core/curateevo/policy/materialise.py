"""From checked references to rows, written from the corpus by the trusted side: a policy cannot forge text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

from curateevo.policy.notes import render_note
from curateevo.policy.operators.items import Item, MemoryItem, Rewrite, RlTask
from curateevo.policy.recipe import Recipe
from curateevo.policy.rewriting import Rewritten, with_rewrites
from curateevo.policy.shorten import needed_words, shorten
from curateevo.trajectories.model import JsonObject, Message, Trajectory

SERVED_ORDER = ("name", "description", "parameters")
SealedStates = dict[str, tuple[str | None, str | None]]


class Rows(Iterable[JsonObject]):
    """Rows that are made anew whenever they are gone through: all of them need not fit into memory."""

    def __init__(self, make: Callable[[], Iterator[JsonObject]], count: int) -> None:
        self._make, self._count = make, count

    def __iter__(self) -> Iterator[JsonObject]:
        return self._make()

    def __len__(self) -> int:
        return self._count


@dataclass(frozen=True, slots=True)
class Material:
    """The rows of a policy's resources. `lineage` tells for every row where it comes from."""

    sft: Rows | Sequence[JsonObject]
    rl: Rows | Sequence[JsonObject]
    memory: list[JsonObject]
    lineage: Iterable[JsonObject]
    sft_turns: int
    rl_turns: int


@dataclass(frozen=True, slots=True)
class Source:
    """What rows are made from: the corpus, and what a model rewrote of it."""

    texts: Mapping[int, Trajectory]
    ids: Sequence[str]
    families: Sequence[str]
    turns: Sequence[int]
    """How many each trajectory has."""
    sealed: SealedStates = field(default_factory=dict)
    rewritten: Mapping[Rewrite, Rewritten] = field(default_factory=dict)
    """Each text that an item has rewritten."""


def rows_needed(recipe: Recipe) -> set[int]:
    """Corpus rows whose text the recipe uses."""
    against = {m.against for m in recipe.memory if m.against is not None}
    return {i.row for i in recipe.sft} | {t.row for t in recipe.rl} | {m.row for m in recipe.memory} | against


def materialise(recipe: Recipe, source: Source) -> Material:
    """Every row. Problems of single rows (spans or states that are not there) are left to the contract gate: a note
    that points at nothing gets an empty content, a task without a state a null one."""
    return Material(
        sft=Rows(lambda: _sft_rows(recipe, source), sum(item.copies for item in recipe.sft)),
        rl=Rows(lambda: _rl_rows(recipe, source), len(recipe.rl)),
        memory=[_memory_row(note, source.texts, source.families[note.row]) for note in recipe.memory],
        lineage=Rows(lambda: _lineage(recipe, source), len(recipe.sft) + len(recipe.rl) + len(recipe.memory)),
        sft_turns=sft_turns(recipe),
        rl_turns=sum(rl_turns(task, source.turns) for task in recipe.rl),
    )


def _sft_rows(recipe: Recipe, source: Source) -> Iterator[JsonObject]:
    for number, item in enumerate(recipe.sft):
        text = source.texts[item.row]
        if item.rewrites:
            text = with_rewrites(text, item.rewrites, source.rewritten)
        row = _sft_row(_name("sft", number), item, text, source.families[item.row])
        yield from repeat(row, item.copies)


def _rl_rows(recipe: Recipe, source: Source) -> Iterator[JsonObject]:
    for number, task in enumerate(recipe.rl):
        yield _rl_row(_name("rl", number), task, source)


def _lineage(recipe: Recipe, source: Source) -> Iterator[JsonObject]:
    for number, item in enumerate(recipe.sft):
        entry = _origin("sft", number, source.ids[item.row], item, list(item.turns), item.copies)
        entry |= {"masked": list(item.masked), "max_result_chars": item.max_result_chars}
        if item.rewrites:
            entry["rewritten"] = [source.rewritten[request].lineage(request) for request in item.rewrites]
        yield entry
    for number, task in enumerate(recipe.rl):
        yield _origin("rl", number, source.ids[task.row], task, [task.turn])
    for number, note in enumerate(recipe.memory):
        yield _origin("memory", number, source.ids[note.row], note, [note.turn])


def _sft_row(name: str, item: Item, source: Trajectory, family: str) -> JsonObject:
    return {
        "id": name,
        "messages": _shortened(item, source).messages(item.turns),
        "tools": [as_served(tool) for tool in source.tools],
        "family": family,
        "turns": len(item.turns),
        "masked": [n for n, turn in enumerate(item.turns) if turn in item.masked],
    }


def as_served(tool: JsonObject) -> JsonObject:
    """A tool's schema with its keys in the order in which OpenAI-compatible servers hand them to the chat template."""
    if not isinstance(function := tool.get("function"), dict):
        return tool
    order = [key for key in SERVED_ORDER if key in function]
    rest = [key for key in function if key not in SERVED_ORDER]
    return {"type": "function", "function": {key: function[key] for key in (*order, *rest)}}


def _shortened(item: Item, source: Trajectory) -> Trajectory:
    """The source, its kept results cut to the item's limit."""
    if item.max_result_chars is None:
        return source
    turns = list(source.turns)
    for position, number in enumerate(item.turns):
        needed = needed_words(source.turns[t] for t in item.turns[position + 1 :])
        results = tuple(shorten(r, item.max_result_chars, needed) for r in turns[number].results)
        turns[number] = replace(turns[number], results=results)
    return replace(source, turns=tuple(turns))


def _rl_row(name: str, task: RlTask, source: Source) -> JsonObject:
    text = source.texts[task.row]
    suite, state = source.sealed.get(text.id, (None, None))
    by_environment = task.reward == "environment"
    turn = text.turns[task.turn]
    prompt: list[Message] = text.messages(range(0 if by_environment else task.turn))
    if not by_environment:
        prompt += [{"role": "user", "content": said} for said in turn.users]
    return {
        "id": name,
        "task_id": text.task.id,
        "messages": prompt,
        "tools": [as_served(tool) for tool in text.tools],
        "family": source.families[task.row],
        "aimed": task.aimed,
        "reward": task.reward,
        "suite": suite if by_environment else None,
        "state": state if by_environment else None,
        "reference": [] if by_environment else [{"name": c.name, "arguments": c.parsed()} for c in turn.calls],
        "turns": rl_turns(task, source.turns),
    }


def sft_turns(recipe: Recipe) -> int:
    """Turns of all SFT rows, copies included."""
    return sum(len(item.turns) * item.copies for item in recipe.sft)


def rl_turns(task: RlTask, turns: Sequence[int]) -> int:
    """Turns that an RL task counts for. `turns`: of each corpus row."""
    return turns[task.row] if task.reward == "environment" else 1


def _memory_row(note: MemoryItem, texts: Mapping[int, Trajectory], family: str) -> JsonObject:
    title, content = render_note(note, texts, family)
    evidence: list[list[Any]] = [[texts[note.row].id, note.turn]]
    if note.against is not None:
        evidence.append([texts[note.against].id, 0])
    return {"title": title, "content": content, "scope": note.scope, "evidence": evidence}


def _name(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}"


def _origin(
    kind: str, number: int, trajectory: str, made: Item | RlTask | MemoryItem, turns: list[int], copies: int = 1
) -> JsonObject:
    return {
        "resource": kind,
        "id": _name(kind, number),
        "row": made.row,
        "trajectory": trajectory,
        "turns": turns,
        "operators": list(made.lineage),
        "copies": copies,
    }
