"""From checked references to rows, written from the corpus by the trusted side: a policy cannot forge text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from curateevo.policy.notes import render_note
from curateevo.policy.operators.items import Item, MemoryItem, Rewrite, RlTask
from curateevo.policy.recipe import Recipe
from curateevo.policy.rewriting import Rewritten, with_rewrites
from curateevo.policy.shorten import needed_words, shorten
from curateevo.trajectories.model import JsonObject, Message, Trajectory

SealedStates = dict[str, tuple[str | None, str | None]]


@dataclass(frozen=True, slots=True)
class Material:
    """The rows of a policy's resources. `lineage` tells for every row where it comes from."""

    sft: list[JsonObject]
    rl: list[JsonObject]
    memory: list[JsonObject]
    lineage: list[JsonObject]

    @property
    def sft_turns(self) -> int:
        return sum(row["turns"] for row in self.sft)

    @property
    def rl_turns(self) -> int:
        return sum(row["turns"] for row in self.rl)


def rows_needed(recipe: Recipe) -> set[int]:
    """Corpus rows whose text the recipe uses."""
    against = {m.against for m in recipe.memory if m.against is not None}
    return {i.row for i in recipe.sft} | {t.row for t in recipe.rl} | {m.row for m in recipe.memory} | against


def materialise(
    recipe: Recipe,
    texts: dict[int, Trajectory],
    families: list[str],
    sealed: SealedStates,
    rewritten: Mapping[Rewrite, Rewritten] = MappingProxyType({}),
) -> Material:
    """Write every row; `rewritten` holds each text that an item has rewritten. Problems of single rows (spans or states
    that are not there) are left to the contract gate: a note that points at nothing gets an empty content, a task
    without a state a null one."""
    sft, lineage = [], []
    for number, item in enumerate(recipe.sft):
        source = with_rewrites(texts[item.row], item.rewrites, rewritten) if item.rewrites else texts[item.row]
        row = _sft_row(f"sft-{number:06d}", item, source, families[item.row])
        sft += [row] * item.copies
        entry = _lineage("sft", row["id"], item.row, texts[item.row].id, list(item.turns), item.lineage, item.copies)
        entry |= {"masked": list(item.masked), "max_result_chars": item.max_result_chars}
        if item.rewrites:
            entry["rewritten"] = [rewritten[request].lineage(request) for request in item.rewrites]
        lineage.append(entry)
    rl = []
    for number, task in enumerate(recipe.rl):
        row = _rl_row(f"rl-{number:06d}", task, texts[task.row], families[task.row], sealed)
        rl.append(row)
        lineage.append(_lineage("rl", row["id"], task.row, texts[task.row].id, [task.turn], task.lineage, 1))
    memory = []
    for number, note in enumerate(recipe.memory):
        row = _memory_row(note, texts, families[note.row])
        memory.append(row)
        name = f"memory-{number:06d}"
        lineage.append(_lineage("memory", name, note.row, texts[note.row].id, [note.turn], note.lineage, 1))
    return Material(sft, rl, memory, lineage)


def _sft_row(name: str, item: Item, source: Trajectory, family: str) -> JsonObject:
    return {
        "id": name,
        "messages": _shortened(item, source).messages(item.turns),
        "tools": list(source.tools),
        "family": family,
        "turns": len(item.turns),
        "masked": [n for n, turn in enumerate(item.turns) if turn in item.masked],
    }


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


def _rl_row(name: str, task: RlTask, source: Trajectory, family: str, sealed: SealedStates) -> JsonObject:
    suite, state = sealed.get(source.id, (None, None))
    by_environment = task.reward == "environment"
    turn = source.turns[task.turn]
    prompt: list[Message] = source.messages(range(0 if by_environment else task.turn))
    if not by_environment:
        prompt += [{"role": "user", "content": text} for text in turn.users]
    return {
        "id": name,
        "task_id": source.task.id,
        "messages": prompt,
        "tools": list(source.tools),
        "family": family,
        "aimed": task.aimed,
        "reward": task.reward,
        "suite": suite if by_environment else None,
        "state": state if by_environment else None,
        "reference": [] if by_environment else [{"name": c.name, "arguments": c.parsed()} for c in turn.calls],
        "turns": len(source.turns) if by_environment else 1,
    }


def _memory_row(note: MemoryItem, texts: dict[int, Trajectory], family: str) -> JsonObject:
    title, content = render_note(note, texts, family)
    evidence: list[list[Any]] = [[texts[note.row].id, note.turn]]
    if note.against is not None:
        evidence.append([texts[note.against].id, 0])
    return {"title": title, "content": content, "scope": note.scope, "evidence": evidence}


def _lineage(
    kind: str, name: str, row: int, trajectory: str, turns: list[int], operators: tuple[str, ...], copies: int
) -> JsonObject:
    return {
        "resource": kind,
        "id": name,
        "row": row,
        "trajectory": trajectory,
        "turns": turns,
        "operators": list(operators),
        "copies": copies,
    }
