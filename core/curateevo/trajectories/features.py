"""Columnar features, computed once at ingest. Policies select on them and touch no text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import polars as pl
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from rensa import RMinHash

from curateevo.trajectories.model import Call, JsonObject, Trajectory, Turn, parameters, tool_name

MINHASH_PERMUTATIONS = 64
MINHASH_SEED = 17
CHARS_PER_TOKEN = 4
ERROR_CHARS = 160
"""Of an error, kept as a feature."""
WORD = re.compile(r"[^\W_]+")
ERROR = re.compile(
    r"^\W*(error|exception|traceback|failed|failure|invalid|not found|none\b|denied)|\"error\"\s*:",
    re.IGNORECASE,
)
MALFORMED = re.compile(r"<tool_call>|<function_call>|\"arguments\"\s*:")
NO_CALL = "no-call"
"""The family of trajectories that have neither a tag nor a call."""
COMMON_VALUES = frozenset({"0", "1"})
"""Values that an agent may well choose by itself."""


class TurnFlag(IntFlag):
    """What is known of one turn without a model."""

    CALL = 1
    """It calls a tool."""
    ERROR = 2
    """A result of it reads like an error."""
    REPEAT = 4
    """The same calls as the turn before."""
    MALFORMED = 8
    """Text that was meant to be a call."""
    BAD_SCHEMA = 16
    """Unknown tool, arguments that are no object, or that do not fit the tool's schema."""
    UNGROUNDED = 32
    """An argument value that stands in no earlier text."""
    UNUSED = 64
    """No later call uses anything of its results, and it is not the last call."""
    FINAL = 128
    """The last turn, without a call: the answer."""
    ASKED = 256
    """A user message stands before it; the opening is none of a turn."""
    NO_OP = 512
    """Calls that were made before with the same results, or neither a call nor a word."""


def words(text: str) -> list[str]:
    """Lower-case words and numbers."""
    return WORD.findall(text.lower())


def reads_like_error(text: str) -> bool:
    return ERROR.search(text[:400]) is not None


def named_values(arguments: JsonObject | None) -> list[tuple[str, str]]:
    """The scalar values of arguments as text, nested ones included, each with the nearest name above it."""
    out: list[tuple[str, str]] = []
    stack: list[tuple[str, Any]] = [("", arguments)]
    while stack:
        name, value = stack.pop()
        if isinstance(value, dict):
            stack.extend(reversed(list(value.items())))
        elif isinstance(value, list):
            stack.extend((name, v) for v in reversed(value))
        elif value is not None and not isinstance(value, bool):
            out.append((name, str(value)))
    return out


def values(arguments: JsonObject | None) -> list[str]:
    """The scalar values of arguments as text, nested ones included."""
    return [value for _, value in named_values(arguments)]


class SchemaCheck:
    """Whether a call fits its tool's schema; compiled validators are kept by tool, and looked up by tool list."""

    def __init__(self) -> None:
        self._validators: dict[str, dict[str, Draft202012Validator | None]] = {}
        self._compiled: dict[str, Draft202012Validator | None] = {}

    def fits(self, call: Call, tools: tuple[JsonObject, ...], tools_key: str) -> bool:
        """True when the tool exists and the arguments fit. An empty tool list knows nothing and accepts all objects."""
        arguments = call.parsed()
        if arguments is None:
            return False
        if not tools:
            return True
        if tools_key not in self._validators:
            self._validators[tools_key] = {tool_name(t): self._compile(t) for t in tools}
        known = self._validators[tools_key]
        if call.name not in known:
            return False
        validator = known[call.name]
        return validator is None or validator.is_valid(arguments)

    def _compile(self, tool: JsonObject) -> Draft202012Validator | None:
        """Tool lists differ more often than tools do."""
        key = json.dumps(tool)
        if key not in self._compiled:
            self._compiled[key] = _validator(tool)
        return self._compiled[key]


def _validator(tool: JsonObject) -> Draft202012Validator | None:
    schema = parameters(tool)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return None
    return Draft202012Validator(schema)


@dataclass(frozen=True, slots=True)
class _Read:
    """What several features ask of a turn, worked out once."""

    values: tuple[tuple[str, ...], ...]
    """The scalar values of each call's arguments."""
    words: frozenset[str]
    """Of its results."""
    hash: int


def _read(turn: Turn) -> _Read:
    return _Read(
        tuple(tuple(values(c.parsed())) for c in turn.calls),
        frozenset(words(" ".join(turn.results))),
        call_hash(turn),
    )


def _turn_flags(trajectory: Trajectory, read: list[_Read], schemas: SchemaCheck) -> list[int]:
    """One `TurnFlag` set per turn."""
    tools_key = json.dumps(trajectory.tools)
    seen = set(words(" ".join([trajectory.system or "", *trajectory.head])))
    flags: list[int] = []
    previous: list[tuple[str, str]] = []
    done: set[tuple[int, tuple[str, ...]]] = set()
    for turn, found in zip(trajectory.turns, read, strict=True):
        seen.update(words(" ".join(turn.users)))
        flag = TurnFlag.ASKED if turn.users else TurnFlag(0)
        step = (found.hash, turn.results)
        if step in done or not (turn.calls or turn.content.strip()):
            flag |= TurnFlag.NO_OP
        if turn.calls:
            done.add(step)
        calls = [(c.name, c.arguments) for c in turn.calls]
        if calls:
            flag |= TurnFlag.CALL
            if calls == previous:
                flag |= TurnFlag.REPEAT
            if any(reads_like_error(r) for r in turn.results):
                flag |= TurnFlag.ERROR
            if not all(schemas.fits(c, trajectory.tools, tools_key) for c in turn.calls):
                flag |= TurnFlag.BAD_SCHEMA
            if any(not grounded(v, seen) for made in found.values for v in made):
                flag |= TurnFlag.UNGROUNDED
        elif MALFORMED.search(turn.content):
            flag |= TurnFlag.MALFORMED
        previous = calls
        seen.update(found.words)
        flags.append(int(flag))
    _mark_unused(read, flags)
    if flags and not trajectory.turns[-1].calls:
        flags[-1] |= TurnFlag.FINAL
    return flags


def grounded(value: str, seen: set[str]) -> bool:
    """Whether a word of the value is among those seen, or there is nothing to look for."""
    found = words(value)
    return value in COMMON_VALUES or not found or any(w in seen for w in found)


def _mark_unused(read: list[_Read], flags: list[int]) -> None:
    """Mark calls whose successful result nothing later uses; errors may be what a later call reacts to."""
    calling = [i for i, flag in enumerate(flags) if flag & TurnFlag.CALL]
    later: set[str] = set()
    for position, index in reversed(list(enumerate(calling))):
        last = position == len(calling) - 1
        if not last and not flags[index] & TurnFlag.ERROR and read[index].words.isdisjoint(later):
            flags[index] |= TurnFlag.UNUSED
        later.update(w for made in read[index].values for v in made for w in words(v))


def call_signature(turns: Iterable[Turn]) -> str:
    """The sequence of tool names, repeats folded: what kind of work this was."""
    names: list[str] = []
    for turn in turns:
        for call in turn.calls:
            if not names or names[-1] != call.name:
                names.append(call.name)
    return ">".join(names)


def call_hash(turn: Turn) -> int:
    """63 bits of the turn's calls, normalised: names, and arguments by key, in lower case; 0 without a call."""
    if not turn.calls:
        return 0
    plain = [(c.name, json.dumps(c.parsed() or c.arguments, sort_keys=True).lower()) for c in turn.calls]
    return int.from_bytes(hashlib.sha256(json.dumps(plain).encode()).digest()[:8], "big") >> 1


def _error(turn: Turn) -> str:
    """The beginning of the first result that reads like an error; empty when none does."""
    return next((" ".join(r[:ERROR_CHARS].split()) for r in turn.results if reads_like_error(r)), "")


def _chars(turn: Turn) -> int:
    return len(turn.content) + sum(map(len, turn.results)) + sum(map(len, turn.users))


def _content_hash(trajectory: Trajectory) -> str:
    plain = [
        [t.users, t.content.strip(), [(c.name, c.arguments) for c in t.calls], t.results] for t in trajectory.turns
    ]
    return hashlib.sha256(json.dumps([trajectory.head, plain]).encode()).hexdigest()[:16]


def _minhash(trajectory: Trajectory, read: list[_Read]) -> list[int]:
    """MinHash of the normalised call sequence and the words around it."""
    tokens = [f"w:{w}" for text in trajectory.head for w in words(text)]
    for turn, found in zip(trajectory.turns, read, strict=True):
        called = zip(turn.calls, found.values, strict=True)
        tokens += [f"c:{c.name}:{v}" for c, made in called for v in made] or [f"a:{w}" for w in words(turn.content)]
        tokens += [f"n:{c.name}" for c in turn.calls]
    sketch = RMinHash(MINHASH_PERMUTATIONS, MINHASH_SEED)
    sketch.update(tokens or [""])
    return list(sketch.digest())


def features_of(trajectories: Iterable[Trajectory]) -> pl.DataFrame:
    """One row per trajectory, in order. Columns are documented in docs/policies.md."""
    schemas = SchemaCheck()
    rows = []
    for trajectory in trajectories:
        read = [_read(turn) for turn in trajectory.turns]
        signature = call_signature(trajectory.turns)
        chars = [_chars(turn) for turn in trajectory.turns]
        rows.append(
            {
                "id": trajectory.id,
                "source": trajectory.source.split(":")[0],
                "task_id": trajectory.task.id,
                "family": trajectory.task.tags[0] if trajectory.task.tags else signature or NO_CALL,
                "signature": signature,
                "env": trajectory.task.env,
                "success": trajectory.outcome.success,
                "reward": trajectory.outcome.reward,
                "turns": len(trajectory.turns),
                "calls": sum(len(t.calls) for t in trajectory.turns),
                "tools": sorted({c.name for t in trajectory.turns for c in t.calls}),
                "tokens": (sum(chars) + sum(map(len, trajectory.head))) // CHARS_PER_TOKEN,
                "turn_flags": _turn_flags(trajectory, read, schemas),
                "turn_tokens": [n // CHARS_PER_TOKEN for n in chars],
                "turn_tools": [">".join(c.name for c in turn.calls) for turn in trajectory.turns],
                "turn_calls": [found.hash for found in read],
                "turn_errors": [_error(turn) for turn in trajectory.turns],
                "content_hash": _content_hash(trajectory),
                "minhash": _minhash(trajectory, read),
            }
        )
    return pl.DataFrame(rows, schema=FEATURES)


FEATURES = pl.Schema(
    {
        "id": pl.String(),
        "source": pl.String(),
        "task_id": pl.String(),
        "family": pl.String(),
        "signature": pl.String(),
        "env": pl.String(),
        "success": pl.Boolean(),
        "reward": pl.Float64(),
        "turns": pl.Int32(),
        "calls": pl.Int32(),
        "tools": pl.List(pl.String()),
        "tokens": pl.Int64(),
        "turn_flags": pl.List(pl.UInt16()),
        "turn_tokens": pl.List(pl.Int32()),
        "turn_tools": pl.List(pl.String()),
        "turn_calls": pl.List(pl.Int64()),
        "turn_errors": pl.List(pl.String()),
        "content_hash": pl.String(),
        "minhash": pl.List(pl.UInt32()),
    }
)
