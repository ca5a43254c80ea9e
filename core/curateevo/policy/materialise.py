"""From checked references to rows, written from the corpus by the trusted side: a policy cannot forge text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from curateevo.policy.operators.items import Item, MemoryItem, RlTask
from curateevo.policy.recipe import Recipe
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
    return {i.row for i in recipe.sft} | {t.row for t in recipe.rl} | {m.row for m in recipe.memory}


def materialise(recipe: Recipe, texts: dict[int, Trajectory], families: list[str], sealed: SealedStates) -> Material:
    """Write every row. Problems of single rows (spans or states that are not there) are left to the contract gate:
    a memory span outside its result gives an empty content, a task without a state a null one."""
    sft, lineage = [], []
    for number, item in enumerate(recipe.sft):
        row = _sft_row(f"sft-{number:06d}", item, texts[item.row], families[item.row])
        sft += [row] * item.copies
        lineage.append(
            _lineage("sft", row["id"], item.row, texts[item.row].id, list(item.turns), item.lineage, item.copies)
        )
    rl = []
    for number, task in enumerate(recipe.rl):
        row = _rl_row(f"rl-{number:06d}", task, texts[task.row], families[task.row], sealed)
        rl.append(row)
        lineage.append(_lineage("rl", row["id"], task.row, texts[task.row].id, [task.turn], task.lineage, 1))
    memory = []
    for number, note in enumerate(recipe.memory):
        row = _memory_row(note, texts[note.row])
        memory.append(row)
        name = f"memory-{number:06d}"
        lineage.append(_lineage("memory", name, note.row, texts[note.row].id, [note.turn], note.lineage, 1))
    return Material(sft, rl, memory, lineage)


def _sft_row(name: str, item: Item, source: Trajectory, family: str) -> JsonObject:
    return {
        "id": name,
        "messages": source.messages(item.turns),
        "tools": list(source.tools),
        "family": family,
        "turns": len(item.turns),
    }


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


def _memory_row(note: MemoryItem, source: Trajectory) -> JsonObject:
    results = source.turns[note.turn].results
    text = results[note.result] if note.result < len(results) else ""
    evidence: list[Any] = [source.id, note.turn]
    content = " ".join(text[note.start : note.end].split())
    return {
        "title": content.rpartition(" ")[0] or content,
        "content": content,
        "scope": note.scope,
        "evidence": [evidence],
    }


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
