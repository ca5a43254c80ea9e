"""An episode as the rules see it: typed turns, and for every argument where its value came from.

agentpile's `value_flow_v1` is not enough for that: it follows id-like strings from JSON results only, while values come
from requests, notes, plain text and numbers as well. bench/diagnosis.py prints how much it sees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from curateevo.trajectories.flags import grounded, named_values, reads_like_error, words
from curateevo.trajectories.formats.atif_steps import conversation, read_record, unique_call_ids
from curateevo.trajectories.model import Call, JsonObject, Turn

NOTES = re.compile(r"^notes:\n(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
"""The block that retrieved notes stand in, in a system message or before a request."""
CODE = re.compile(r"[\w-]+")
CODE_DIGITS = 4
MAX_DIGITS = 9
"""Longer numbers are no quantities."""


class Origin(Enum):
    """Where the value of an argument stood before the call."""

    TEXT = auto()
    """In a request or a result, or reckoned from two numbers there."""
    NOTES = auto()
    """In retrieved notes only."""
    NOWHERE = auto()


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    value: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was made, with its result. `number` counts the calls of the episode."""

    number: int
    turn: int
    call: Call
    result: str
    failed: bool
    arguments: tuple[Argument, ...]
    key: str
    """Equal for equal calls, however their JSON is spaced or ordered."""


@dataclass(frozen=True, slots=True)
class Episode:
    task: str
    family: str
    success: float
    turns: tuple[Turn, ...]
    notes: str
    made: tuple[Made, ...]
    tools: tuple[JsonObject, ...] = ()
    checks: Mapping[str, bool] = field(default_factory=dict)

    @property
    def signature(self) -> tuple[tuple[str, bool], ...]:
        """Tools with whether they failed, in order, repeats folded."""
        steps = [(m.call.name, m.failed) for m in self.made]
        return tuple(step for n, step in enumerate(steps) if n == 0 or step != steps[n - 1])

    @property
    def answer(self) -> str:
        """The last assistant text, when nothing was called with it."""
        return self.turns[-1].content if self.turns and not self.turns[-1].calls else ""

    @property
    def last_words(self) -> str:
        """The last assistant text, or else the arguments of its last call."""
        if not self.turns:
            return ""
        last = self.turns[-1]
        return last.content or (last.calls[-1].arguments if last.calls else "")


def read_episode(row: JsonObject, checks: Mapping[str, bool]) -> Episode:
    """A row of trajectories.jsonl. Raises RowInvalid for messages that are no legal conversation."""
    parts = conversation(read_record({"messages": unique_call_ids(row["messages"])}, "openai-messages").steps)
    opening = "\n\n".join([parts.system or "", *parts.head])
    notes = "\n".join(NOTES.findall(opening))
    return Episode(
        task=row["task"],
        family=row["family"],
        success=row["success"],
        turns=parts.turns,
        notes=notes,
        made=_made(parts.turns, NOTES.sub("", opening), notes),
        tools=tuple(row.get("tools") or ()),
        checks=checks,
    )


def _made(turns: tuple[Turn, ...], opening: str, notes: str) -> tuple[Made, ...]:
    seen, noted = set(words(opening)), set(words(notes))
    out: list[Made] = []
    for number, turn in enumerate(turns):
        seen.update(words(" ".join(turn.users)))
        for call, result in zip(turn.calls, turn.results, strict=True):
            parsed = call.parsed()
            arguments = tuple(Argument(n, v, _origin(v, seen, noted)) for n, v in named_values(parsed))
            key = f"{call.name} {json.dumps(parsed, sort_keys=True) if parsed is not None else call.arguments}"
            out.append(Made(len(out), number, call, result, reads_like_error(result), arguments, key))
        seen.update(words(" ".join(turn.results)))
    return tuple(out)


def _origin(value: str, seen: set[str], noted: set[str]) -> Origin:
    if stands_in(value, seen) or reckoned(value, seen):
        return Origin.TEXT
    return Origin.NOTES if stands_in(value, noted) else Origin.NOWHERE


def stands_in(value: str, seen: set[str]) -> bool:
    """Whether a value may have been read. Of a code, such as `card_4421486`, the part with the digits must be there."""
    found = words(value)
    digits = [w for w in found if len(w) >= CODE_DIGITS and any(c.isdigit() for c in w)]
    if digits and CODE.fullmatch(value):
        return all(w in seen for w in digits)
    return grounded(value, seen)


def reckoned(value: str, seen: set[str]) -> bool:
    """Whether a whole number is the sum, difference or product of two that were seen."""
    if not value.isdecimal():
        return False
    number, known = int(value), {int(w) for w in seen if w.isdecimal() and len(w) < MAX_DIGITS}
    return any(
        number - n in known or number + n in known or (n > 1 and number % n == 0 and number // n in known - {1})
        for n in known
        if n > 0
    )
