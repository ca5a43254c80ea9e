"""What leaves the sandbox: references into the corpus, as plain JSON, and their check on the trusted side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from curateevo.api.errors import PolicyRejected
from curateevo.policy.operators.items import Item, MemoryItem, NoteKind, Resources, Rewrite, RewriteKind, RlTask
from curateevo.policy.operators.rewrite import MAX_INSTRUCTION_CHARS

MAX_ROWS = 5_000_000
MAX_COPIES = 1000
MAX_MEMORY = 100_000
MAX_REQUESTS = 100_000
MAX_REASON_CHARS = 500
LEAST_RESULT_CHARS = 40
"""A tool result may not be cut to less."""
REWARDS = ("environment", "action_match")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Checked references: every row, turn and span exists in the corpus."""

    sft: tuple[Item, ...]
    rl: tuple[RlTask, ...]
    memory: tuple[MemoryItem, ...]
    logs: tuple[str, ...]
    metrics: dict[str, float]
    requests: tuple[Rewrite, ...] = ()
    """What the policy asks to have rewritten; items hold those that were answered."""


def encode(resources: Resources, requests: Iterable[Rewrite] = ()) -> dict[str, Any]:
    """Resources and requests as JSON; lineages and instructions are kept once and referred to by number."""
    lineages: dict[tuple[str, ...], int] = {}
    instructions: dict[str, int] = {}

    def number(lineage: tuple[str, ...]) -> int:
        return lineages.setdefault(tuple(map(str, lineage)), len(lineages))

    def rewrite(asked: Rewrite) -> list[Any]:
        return [asked.turn, str(asked.kind), instructions.setdefault(asked.instruction, len(instructions))]

    sft: list[list[Any]] = []
    for i in resources.sft:
        sft.append([i.row, list(i.turns), i.copies, number(i.lineage), list(i.masked), i.max_result_chars])
        if i.rewrites:
            sft[-1].append([rewrite(r) for r in i.rewrites if r.is_kept(i.turns)])
    rl = [[t.row, t.turn, t.reward, t.aimed, number(t.lineage)] for t in resources.rl]
    memory = [
        [m.row, m.turn, m.result, m.start, m.end, m.scope, number(m.lineage), m.kind, m.against]
        for m in resources.memory
    ]
    out: dict[str, Any] = {"sft": sft, "rl": rl, "memory": memory, "lineages": [list(x) for x in lineages]}
    if asked := [[r.row, *rewrite(r)] for r in requests]:
        out["requests"] = asked
    return {**out, "instructions": list(instructions)} if instructions else out


def decode(raw: Any, turns: list[int]) -> Recipe:
    """Check what a sandbox wrote against the corpus (`turns` per row). Raises PolicyRejected."""
    try:
        lineages = [tuple(clean_text(name, 80) for name in x[:40]) for x in raw["lineages"]]
        instructions = [_instruction(text) for text in _bounded(raw.get("instructions", []), MAX_REQUESTS)]
        sft = tuple(_item(entry, turns, lineages, instructions) for entry in _bounded(raw["sft"], MAX_ROWS))
        rl = tuple(_task(entry, turns, lineages) for entry in _bounded(raw["rl"], MAX_ROWS))
        memory = tuple(_note(entry, turns, lineages) for entry in _bounded(raw["memory"], MAX_MEMORY))
        requests = dict.fromkeys(
            _rewrite(_int(entry[0], 0, len(turns), "row"), entry[1:], turns, instructions)
            for entry in _bounded(raw.get("requests", []), MAX_REQUESTS)
        )
        logs = tuple(clean_text(text, 500) for text in raw.get("logs", ())[:200])
        metrics = {clean_text(k, 80): float(v) for k, v in list(raw.get("metrics", {}).items())[:200]}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        why = clean_text(error, MAX_REASON_CHARS)
        raise PolicyRejected(
            "resources", f"what the policy returned can't be read: {why}", "return what operators give"
        ) from error
    return Recipe(sft, rl, memory, logs, metrics, tuple(requests))


def encode_answers(answers: Mapping[Rewrite, str]) -> list[list[Any]]:
    """Answered requests, as the policy's second run is given them."""
    return [[r.row, r.turn, r.kind.value, r.instruction, text] for r, text in answers.items()]


def parse_answers(entries: Iterable[list[Any]]) -> dict[Rewrite, str]:
    """What `encode_answers` wrote: it comes from the trusted side."""
    return {Rewrite(row, turn, RewriteKind(kind), asked): text for row, turn, kind, asked, text in entries}


def clean_text(value: Any, limit: int) -> str:
    """At most `limit` characters of a value as text that can be encoded: JSON may hold halves of surrogate pairs."""
    return str(value)[:limit].encode("utf-8", "replace").decode("utf-8")


def _bounded(entries: Any, limit: int) -> list[Any]:
    if not isinstance(entries, list) or len(entries) > limit:
        raise ValueError(f"more than {limit} entries")
    return entries


def _int(value: Any, low: int, high: int, what: str) -> int:
    if type(value) is not int or not low <= value < high:
        raise ValueError(f"{what} {value!r} is not within {low}..{high - 1}")
    return value


def _item(entry: Any, turns: list[int], lineages: list[tuple[str, ...]], instructions: list[str]) -> Item:
    row = _int(entry[0], 0, len(turns), "row")
    kept = tuple(_int(t, 0, turns[row], "turn") for t in entry[1])
    if not kept or any(a >= b for a, b in pairwise(kept)):
        raise ValueError(f"turns of row {row} are empty or out of order")
    masked = tuple(_int(t, 0, turns[row], "masked turn") for t in entry[4])
    if any(a >= b for a, b in pairwise(masked)) or not set(masked) < set(kept):
        raise ValueError(f"masked turns of row {row} are out of order, not among its turns, or all of them")
    limit = None if entry[5] is None else _int(entry[5], LEAST_RESULT_CHARS, 1 << 31, "max_result_chars")
    rewrites = tuple(_rewrite(row, r, turns, instructions) for r in _bounded(entry[6], MAX_ROWS)) if entry[6:] else ()
    if len({(r.turn, r.kind) for r in rewrites}) < len(rewrites) or not all(r.is_kept(kept) for r in rewrites):
        raise ValueError(f"rewrites of row {row} are of one text twice, or of one that is not kept")
    copies = _int(entry[2], 1, MAX_COPIES + 1, "copies")
    return Item(row, kept, copies, lineages[entry[3]], masked, limit, rewrites)


def _rewrite(row: int, entry: Any, turns: list[int], instructions: list[str]) -> Rewrite:
    turn = _int(entry[0], 0, turns[row], "turn")
    return Rewrite(row, turn, RewriteKind(entry[1]), instructions[_int(entry[2], 0, len(instructions), "instruction")])


def _instruction(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_INSTRUCTION_CHARS:
        raise ValueError("an instruction that is no text, empty or too long")
    return clean_text(value, MAX_INSTRUCTION_CHARS)


def _task(entry: Any, turns: list[int], lineages: list[tuple[str, ...]]) -> RlTask:
    row = _int(entry[0], 0, len(turns), "row")
    if entry[2] not in REWARDS:
        raise ValueError(f"reward {entry[2]!r} is none of {', '.join(REWARDS)}")
    return RlTask(row, _int(entry[1], 0, turns[row], "turn"), entry[2], bool(entry[3]), lineages[entry[4]])


def _note(entry: Any, turns: list[int], lineages: list[tuple[str, ...]]) -> MemoryItem:
    row = _int(entry[0], 0, len(turns), "row")
    start = _int(entry[3], 0, 1 << 31, "start")
    return MemoryItem(
        row,
        _int(entry[1], 0, turns[row], "turn"),
        _int(entry[2], 0, 1 << 16, "result"),
        start,
        _int(entry[4], start + 1, start + 2001, "end"),
        clean_text(entry[5], 200),
        lineages[entry[6]],
        NoteKind(entry[7]),
        None if entry[8] is None else _int(entry[8], 0, len(turns), "against"),
    )
