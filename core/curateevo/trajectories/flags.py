"""What is known of single turns without a model: their words, their calls' values, and what is wrong with them."""

from __future__ import annotations

import hashlib
import marshal
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache
from typing import Any

from jsonschema_rs import Draft202012Validator, ValidationError

from curateevo.trajectories.json_text import canonical
from curateevo.trajectories.model import Call, JsonObject, Trajectory, Turn, parameters, tool_name

WORD = re.compile(r"[^\W_]+")
SPACES = str.maketrans({code: " " for code in map(chr, range(128)) if not code.isalnum()})
"""The ASCII characters that are no part of a word."""
ERROR = re.compile(
    r"^\W*(error|exception|traceback|failed|failure|invalid|not found|none\b|denied)|\"error\"\s*:",
    re.IGNORECASE,
)
ERROR_LOOK_CHARS = 400
"""Of a result, read for an error."""
MALFORMED = re.compile(r"<tool_call>|<function_call>|\"arguments\"\s*:")
LOOK_UP = re.compile(
    r"(browse|calculate|check(?!_?out)|compute|count|describe|fetch|find|get|inspect|is|list|look|lookup|query|read"
    r"|retrieve|search|see|show|think|view)(?![a-z])",
)
NUMBER = re.compile(r"[^\W_]*\d[^\W_]+|[^\W_]+\d[^\W_]*")
"""Words with a digit in them, of two characters or more."""
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
    """A look-up of which no later call uses anything and no later answer tells a number; not the last call."""
    FINAL = 128
    """The last turn, without a call: the answer."""
    ASKED = 256
    """A user message stands before it; the opening is none of a turn."""
    NO_OP = 512
    """Calls that were made before with the same results, or neither a call nor a word."""


def words(text: str) -> list[str]:
    """Lower-case words and numbers."""
    return text.lower().translate(SPACES).split() if text.isascii() else WORD.findall(text.lower())


def reads_like_error(text: str) -> bool:
    return ERROR.search(text[:ERROR_LOOK_CHARS]) is not None


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
        self._known: dict[int, tuple[tuple[JsonObject, ...], dict[str, Draft202012Validator | None]]] = {}
        """By the identity of a tool list, which is kept so that no other takes its place."""
        self._compiled: dict[bytes, Draft202012Validator | None] = {}

    def fits(self, call: Call, tools: tuple[JsonObject, ...]) -> bool:
        """True when the tool exists and the arguments fit. An empty tool list knows nothing and accepts all objects."""
        return self.fit(call.name, call.parsed(), self.validators(tools))

    def validators(self, tools: tuple[JsonObject, ...]) -> dict[str, Draft202012Validator | None]:
        """By tool name; None for a tool whose schema is none, or points to another place."""
        if id(tools) not in self._known:
            self._known[id(tools)] = tools, {tool_name(t): self._compile(t) for t in tools}
        return self._known[id(tools)][1]

    @staticmethod
    def fit(name: str, arguments: JsonObject | None, known: dict[str, Draft202012Validator | None]) -> bool:
        """As `fits`, with what was read of the call and of its tools."""
        if arguments is None or (known and name not in known):
            return False
        validator = known.get(name)
        return validator is None or validator.is_valid(arguments)

    def _compile(self, tool: JsonObject) -> Draft202012Validator | None:
        """Tool lists differ more often than tools do."""
        key = marshal.dumps(tool)
        if key not in self._compiled:
            self._compiled[key] = _validator(parameters(tool))
        return self._compiled[key]


def _validator(schema: JsonObject) -> Draft202012Validator | None:
    try:
        return Draft202012Validator(schema, retriever=_refuse)
    except (ValidationError, ValueError):
        return None


def _refuse(uri: str) -> Any:
    """A corpus's schema may name any address."""
    raise ValueError(f"{uri}: nothing is fetched")


@dataclass(frozen=True, slots=True)
class TurnRead:
    """What several features ask of a turn, worked out once."""

    arguments: tuple[JsonObject | None, ...]
    """Of each call, parsed."""
    values: tuple[tuple[tuple[str, list[str]], ...], ...]
    """The scalar values of each call's arguments, each with its words."""
    words: frozenset[str]
    """Of its results."""
    hash: int
    """Of its calls: see `call_hash`."""
    error: str | None
    """The first result that reads like an error."""


def read_turn(turn: Turn) -> TurnRead:
    if not turn.calls:
        return NO_CALLS
    arguments = tuple(c.parsed() for c in turn.calls)
    return TurnRead(
        arguments,
        tuple(tuple((v, words(v)) for v in values(a)) for a in arguments),
        frozenset(words(" ".join(turn.results))),
        _hash(turn, arguments),
        next(filter(reads_like_error, turn.results), None),
    )


NO_CALLS = TurnRead((), (), frozenset(), 0, None)


def turn_flags(trajectory: Trajectory, read: list[TurnRead], schemas: SchemaCheck) -> list[int]:
    """One `TurnFlag` set per turn."""
    known = schemas.validators(trajectory.tools)
    asked = set(words(" ".join([*trajectory.head, *trajectory.tail])))
    seen = set(words(" ".join([trajectory.system or "", *trajectory.head])))
    flags: list[int] = []
    previous: list[tuple[str, str]] = []
    done: set[tuple[int, tuple[str, ...]]] = set()
    for turn, found in zip(trajectory.turns, read, strict=True):
        flag = 0
        if turn.users:
            flag |= ASKED
            said = words(" ".join(turn.users))
            seen.update(said)
            asked.update(said)
        calls = [(c.name, c.arguments) for c in turn.calls]
        if calls:
            flag |= CALL
            step = (found.hash, turn.results)
            if step in done:
                flag |= NO_OP
            done.add(step)
            if calls == previous:
                flag |= REPEAT
            if found.error is not None:
                flag |= ERRED
            if not all(schemas.fit(c.name, a, known) for c, a in zip(turn.calls, found.arguments, strict=True)):
                flag |= BAD_SCHEMA
            if not all(_grounded(v, said, seen) for made in found.values for v, said in made):
                flag |= UNGROUNDED
            seen |= found.words
        elif not turn.content.strip():
            flag |= NO_OP
        elif MALFORMED.search(turn.content):
            flag |= BAD_CALL
        previous = calls
        flags.append(flag)
    _mark_unused(trajectory.turns, read, flags, asked)
    if flags and not trajectory.turns[-1].calls:
        flags[-1] |= FINAL
    return flags


CALL, ERRED, REPEAT, BAD_CALL, BAD_SCHEMA, UNGROUNDED, UNUSED, FINAL, ASKED, NO_OP = map(int, TurnFlag)
"""Plain numbers: an enum's operators cost more than all else here."""


def grounded(value: str, seen: set[str]) -> bool:
    """Whether a word of the value is among those seen, or there is nothing to look for."""
    return _grounded(value, words(value), seen)


def _grounded(value: str, said: list[str], seen: set[str]) -> bool:
    return not said or not seen.isdisjoint(said) or value in COMMON_VALUES


def _mark_unused(turns: tuple[Turn, ...], read: list[TurnRead], flags: list[int], asked: set[str]) -> None:
    """Mark look-ups whose successful result nothing later uses; errors may be what a later call reacts to. `asked`:
    words of the user, which an answer that repeats them has from there."""
    later: set[str] = set()
    called_later = False
    for turn, found, number in zip(reversed(turns), reversed(read), reversed(range(len(flags))), strict=True):
        if turn.calls:
            idle = called_later and not flags[number] & ERRED and found.words.isdisjoint(later)
            if idle and all(looks_up(c.name) for c in turn.calls):
                flags[number] |= UNUSED
            called_later = True
            later.update(w for made in found.values for _, said in made for w in said)
        if turn.content:
            later.update(w for w in NUMBER.findall(turn.content.lower()) if w not in asked)


@lru_cache(maxsize=4096)
def looks_up(tool: str) -> bool:
    """Whether a tool only reads, by the first word of its name: what may change something is no detour, whatever uses
    its result."""
    return LOOK_UP.match(tool.replace("__", ".").rsplit(".", 1)[-1]) is not None


def call_signature(turns: Iterable[Turn]) -> str:
    """The sequence of tool names, repeats folded: what kind of work this was."""
    names: list[str] = []
    for turn in turns:
        for call in turn.calls:
            if not names or names[-1] != call.name:
                names.append(call.name)
    return ">".join(names)


def call_hash(turn: Turn) -> int:
    """63 bits of the turn's calls, normalised: names, and arguments by key, without case; 0 without a call."""
    return _hash(turn, tuple(c.parsed() for c in turn.calls))


def _hash(turn: Turn, arguments: tuple[JsonObject | None, ...]) -> int:
    if not turn.calls:
        return 0
    plain = canonical([(c.name, a or c.arguments) for c, a in zip(turn.calls, arguments, strict=True)])
    return int.from_bytes(hashlib.sha256(plain.decode().lower().encode()).digest()[:8], "big") >> 1
