"""ATIF's steps, which is what agentpile makes of every format that it reads, to our turns."""

from __future__ import annotations

from typing import Any

import agentpile

from curateevo.trajectories.formats.conversation import Conversation
from curateevo.trajectories.formats.plain_chat import read_plain
from curateevo.trajectories.json_text import dumps
from curateevo.trajectories.model import (
    Call,
    JsonObject,
    RowInvalid,
    Turn,
    split_opening,
)

EXTENSION = "agentpile"
OURS = "curateevo"
"""Keys in `extra`: what agentpile, and what we, keep beside ATIF's fields."""
READER_ERRORS = (agentpile.AgentpileError, AttributeError, KeyError, TypeError, ValueError, IndexError)


def read_record(row: Any, reader: str) -> Any:
    """One row as an agentpile Run. Raises RowInvalid with the reader's words."""
    try:
        return next(iter(agentpile.load(row, reader=reader)))
    except StopIteration as error:
        raise RowInvalid("no trajectory in this row") from error
    except READER_ERRORS as error:
        raise RowInvalid(f"{reader}: {error or type(error).__name__}") from error


def read_chat(messages: list[Any]) -> Conversation:
    """The turns of OpenAI messages. Raises RowInvalid."""
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise RowInvalid("every message must be an object with a role")
    if (plain := read_plain(messages)) is not None:
        return plain
    return conversation(read_record({"messages": unique_call_ids(messages)}, "openai-messages").steps)


def conversation(steps: list[JsonObject]) -> Conversation:
    """ATIF steps to turns. Raises RowInvalid for orphan results, missing results and system messages in the middle.

    A log may end with a call that nothing answers (`submit`, `finish`): those results are empty.
    """
    system: list[str] = []
    users: list[str] = []
    turns: list[Turn] = []
    for number, step in enumerate(steps, start=1):
        text = _text(step.get("message"))
        match step.get("source"):
            case "system" if not turns and not users:
                system.append(text)
            case "system":
                raise RowInvalid(f"step {number}: a system message after the conversation began")
            case "user":
                if _extension(step).get("role") in ("tool", "function"):
                    raise RowInvalid(f"step {number}: a tool result before any call")
                users.append(text)
            case "agent":
                turns.append(_turn(step, tuple(users), text, number, is_last=number == len(steps)))
                users = []
            case other:
                raise RowInvalid(f"step {number}: unknown source {other!r}")
    head, rest = split_opening(turns)
    return Conversation("\n".join(system) if system else None, head, rest, tuple(users))


def _turn(step: JsonObject, users: tuple[str, ...], text: str, number: int, *, is_last: bool) -> Turn:
    extra = _extension(step).get("calls", {})
    calls = tuple(_call(raw, extra.get(raw.get("tool_call_id"), {})) for raw in step.get("tool_calls") or ())
    answers: dict[str, str] = {}
    for result in (step.get("observation") or {}).get("results", ()):
        call_id = result.get("source_call_id")
        if call_id is None:
            raise RowInvalid(f"step {number}: an orphan tool result: it answers no call")
        if call_id in answers:
            raise RowInvalid(f"step {number}: call {call_id!r} has two results")
        answers[call_id] = _text(result.get("content"))
    if is_last and not answers:
        answers = {c.id: "" for c in calls}
    missing = [c.id for c in calls if c.id not in answers]
    if missing:
        raise RowInvalid(f"step {number}: call {missing[0]!r} has no result")
    orphans = set(answers) - {c.id for c in calls}
    if orphans:
        raise RowInvalid(f"step {number}: an orphan tool result for {min(orphans)!r}")
    return Turn(users, text, calls, tuple(answers[c.id] for c in calls), step.get("reasoning_content"))


def _call(raw: JsonObject, extra: JsonObject) -> Call:
    if extra.get("arguments_state") == "unparsed":
        source = extra.get("arguments_raw")
        arguments = source if isinstance(source, str) else dumps(source)
    elif isinstance(ours := (raw.get("extra") or {}).get(OURS), dict) and isinstance(ours.get("arguments"), str):
        arguments = ours["arguments"]
    else:
        arguments = dumps(raw.get("arguments") or {})
    return Call(str(raw["tool_call_id"]), str(raw.get("function_name") or ""), arguments)


def _extension(step: JsonObject) -> JsonObject:
    found = (step.get("extra") or {}).get(EXTENSION)
    return found if isinstance(found, dict) else {}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(p.get("text", "")) if isinstance(p, dict) else str(p) for p in content)
    return "" if content is None else dumps(content)


def unique_call_ids(messages: list[JsonObject]) -> list[JsonObject]:
    """Messages in which no call id is used by two answers; real logs repeat them (49 of 200 airline runs do).

    A tool message belongs to the last answer that uses its id, as it did for the API that wrote the log.
    """
    ids = [call.get("id") for m in messages for call in _calls(m)]
    if len(ids) == len(set(map(str, ids))):
        return messages
    out, renamed = [], {}
    for number, message in enumerate(messages):
        if calls := _calls(message):
            fresh = [{**call, "id": f"{call.get('id')}#{number}"} for call in calls]
            renamed.update({old.get("id"): new["id"] for old, new in zip(calls, fresh, strict=True)})
            message = {**message, "tool_calls": fresh}
        elif message.get("tool_call_id") in renamed:
            message = {**message, "tool_call_id": renamed[message["tool_call_id"]]}
        out.append(message)
    return out


def _calls(message: JsonObject) -> list[JsonObject]:
    found = message.get("tool_calls")
    return [c for c in found if isinstance(c, dict)] if isinstance(found, list) else []
