"""The trajectory model. A turn is an assistant message together with the results of its calls: they never part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from curateevo.trajectories.json_text import loads

JsonObject = dict[str, Any]
Message = dict[str, Any]


class RowInvalid(ValueError):
    """A row that is no legal trajectory; the text says why."""


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments: str
    """JSON text, as the source had it when it did not parse."""

    def parsed(self) -> JsonObject | None:
        """The arguments as an object, or None when the text is not one."""
        try:
            value = loads(self.arguments)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant message, the user messages before it (none, as a rule, within tool use), and its results."""

    users: tuple[str, ...]
    content: str
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    """Text of each call's result, in the order of `calls`."""
    reasoning: str | None = None

    def messages(self) -> list[Message]:
        """The turn as OpenAI messages."""
        out: list[Message] = [{"role": "user", "content": text} for text in self.users]
        answer: Message = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            answer["reasoning_content"] = self.reasoning
        if self.calls:
            answer["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.calls
            ]
        out.append(answer)
        for call, result in zip(self.calls, self.results, strict=True):
            out.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result})
        return out


@dataclass(frozen=True, slots=True)
class TaskRef:
    """The task that a trajectory tried. `state` and `reference` are sealed: no policy can read them."""

    id: str
    prompt: str
    env: str | None = None
    """The suite whose environment runs this task, if there is one."""
    state: str | None = None
    """JSON text for that environment."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What the source says of the run's end. Often wrong: labels are data, not truth."""

    success: bool | None = None
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    id: str
    source: str
    """File and line, or the name of a generator."""
    task: TaskRef
    tools: tuple[JsonObject, ...]
    """OpenAI tool schemas, sorted by name."""
    system: str | None
    head: tuple[str, ...]
    """The opening user messages: every segment keeps them."""
    turns: tuple[Turn, ...]
    tail: tuple[str, ...] = ()
    """User messages that nobody answered."""
    outcome: RunOutcome = RunOutcome()
    labels: JsonObject = field(default_factory=dict)
    """What else the source said."""
    format: str = ""
    """The format that it was read as."""
    licence: str | None = None
    """What the source, or its format, says of its licence; None when nothing does."""

    def messages(self, keep: Iterable[int] | None = None) -> list[Message]:
        """OpenAI messages of the opening and of the turns in `keep` (all when None)."""
        out: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        out += [{"role": "user", "content": text} for text in self.head]
        for index in range(len(self.turns)) if keep is None else keep:
            out += self.turns[index].messages()
        return out

    def said_by_user(self) -> Iterator[str]:
        """All messages of the user, in order."""
        yield from self.head
        for turn in self.turns:
            yield from turn.users
        yield from self.tail


def split_opening(turns: Sequence[Turn]) -> tuple[tuple[str, ...], tuple[Turn, ...]]:
    """Move the user messages before the first answer from that turn into the head."""
    if not turns:
        return (), ()
    first = turns[0]
    rest = Turn((), first.content, first.calls, first.results, first.reasoning)
    return first.users, (rest, *turns[1:])


def check(trajectory: Trajectory) -> None:
    """The invariants. Raises RowInvalid naming the first one that is broken."""
    if not trajectory.turns:
        raise RowInvalid("no assistant message")
    if not trajectory.head and not any(t.users for t in trajectory.turns):
        raise RowInvalid("no user message")
    seen: set[str] = set()
    for number, turn in enumerate(trajectory.turns):
        if len(turn.calls) != len(turn.results):
            raise RowInvalid(f"turn {number}: {len(turn.calls)} calls but {len(turn.results)} results")
        for call in turn.calls:
            if not call.name:
                raise RowInvalid(f"turn {number}: a call without a tool name")
            if call.id in seen:
                raise RowInvalid(f"turn {number}: call id {call.id!r} is used twice")
            seen.add(call.id)


def tool_name(schema: JsonObject) -> str:
    """The function's name in an OpenAI tool schema, or '' when it has none."""
    function = schema.get("function")
    name = function.get("name") if isinstance(function, dict) else schema.get("name")
    return name if isinstance(name, str) else ""


def parameters(schema: JsonObject) -> JsonObject:
    """The JSON schema of a tool's parameters."""
    function = schema.get("function")
    found = (function if isinstance(function, dict) else schema).get("parameters")
    return found if isinstance(found, dict) else {}
