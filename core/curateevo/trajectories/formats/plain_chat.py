"""Chats in which nothing is out of the ordinary, in a third of the time that agentpile takes for any log.

What is read here is what agentpile would read: a test holds both to that.
"""

from __future__ import annotations

from typing import Any

from curateevo.trajectories import json_text
from curateevo.trajectories.formats.conversation import Conversation
from curateevo.trajectories.model import Call, JsonObject, Turn, split_opening


def read_plain(messages: list[JsonObject]) -> Conversation | None:
    """Messages of texts, with calls that have ids of their own and results, of each call one, right behind them. None
    for any others, right or wrong."""
    system: list[str] = []
    users: list[str] = []
    turns: list[Turn] = []
    ids: set[str] = set()
    position, count = 0, len(messages)
    while position < count:
        message = messages[position]
        position += 1
        role, text = message.get("role"), message.get("content")
        if role == "assistant":
            calls = _calls(message, ids)
            reasoning = message.get("reasoning_content")
            if calls is None or not (text is None or isinstance(text, str)) or not isinstance(reasoning, str | None):
                return None
            results = _results(messages, position, calls)
            if results is None:
                return None
            position += len(calls)
            turns.append(Turn(tuple(users), text or "", calls, results, reasoning))
            users = []
        elif not isinstance(text, str):
            return None
        elif role == "user":
            users.append(text)
        elif role == "system" and not turns and not users:
            system.append(text)
        else:
            return None
    if not turns:
        return None
    head, rest = split_opening(turns)
    return Conversation("\n".join(system) if system else None, head, rest, tuple(users))


def _calls(message: JsonObject, ids: set[str]) -> tuple[Call, ...] | None:
    """The calls of an answer; `ids` are taken already."""
    if "function_call" in message:
        return None
    raw = message.get("tool_calls")
    if not raw:
        return ()
    if not isinstance(raw, list):
        return None
    found = []
    for call in raw:
        name, function = (call.get("id"), call.get("function")) if isinstance(call, dict) else (None, None)
        if not isinstance(name, str) or not name or name in ids or not isinstance(function, dict):
            return None
        ids.add(name)
        tool, arguments = function.get("name"), _arguments(function.get("arguments"))
        if not isinstance(tool, str) or arguments is None:
            return None
        found.append(Call(name, tool, arguments))
    return tuple(found)


def _arguments(raw: Any) -> str | None:
    """Arguments as JSON text, None when they are no object."""
    if isinstance(raw, str):
        try:
            raw = json_text.loads(raw)
        except (ValueError, RecursionError):
            return None
    return json_text.dumps(raw) if isinstance(raw, dict) else None


def _results(messages: list[JsonObject], start: int, calls: tuple[Call, ...]) -> tuple[str, ...] | None:
    """What the messages from `start` on answer to the calls, in the order of these."""
    found: dict[str, str] = {}
    for message in messages[start : start + len(calls)]:
        name, text = message.get("tool_call_id"), message.get("content")
        if message.get("role") != "tool" or not isinstance(name, str) or not isinstance(text, str):
            return None
        found[name] = text
    if len(found) != len(calls) or any(call.id not in found for call in calls):
        return None
    return tuple(found[call.id] for call in calls)
