"""Chats whose calls have no ids: results answer calls in order, by name where a result has one."""

from __future__ import annotations

import json
from typing import Any

from curateevo.trajectories.json_text import loads
from curateevo.trajectories.model import JsonObject, Message, RowInvalid


class Transcript:
    """Builds OpenAI messages from speech, calls and results as they come. Calls are named `call-0`, `call-1`, ..."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open: list[tuple[str, str]] = []
        self._calls = 0

    def say(self, role: str, text: str, reasoning: str | None = None) -> None:
        """A message of `role`: system, user or assistant."""
        message: Message = {"role": role, "content": text}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        self.messages.append(message)

    def call(self, name: str, arguments: str) -> None:
        """A call, `arguments` being JSON text; calls in a row belong to one assistant message."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.say("assistant", "")
        call_id = f"call-{self._calls}"
        self._calls += 1
        self._open.append((call_id, name))
        made = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages[-1].setdefault("tool_calls", []).append(made)

    def result(self, text: str, name: str | None = None) -> None:
        """The result of the first open call (of that name). Raises RowInvalid when no call is open."""
        found = next((c for c in self._open if name is None or c[1] == name), None)
        if found is None:
            raise RowInvalid(f"an orphan tool result{f' of {name!r}' if name else ''}: it answers no call")
        self._open.remove(found)
        self.messages.append({"role": "tool", "tool_call_id": found[0], "name": found[1], "content": text})


def named_call(raw: Any) -> tuple[str, str]:
    """Name and arguments, as JSON text, of `{"name": ..., "arguments": {...} or text}`. Raises RowInvalid."""
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise RowInvalid(f"a call must be an object with `name` and `arguments`, not {json.dumps(raw)[:80]}")
    return raw["name"], arguments_text(raw.get("arguments"))


def arguments_text(raw: Any) -> str:
    """Arguments as JSON text; text stays as it is."""
    return raw if isinstance(raw, str) else json.dumps(raw or {}, ensure_ascii=False)


def json_field(row: JsonObject, key: str) -> Any:
    """A field that may be JSON text, as in Parquet. Raises RowInvalid when the text is no JSON."""
    value = row.get(key)
    if not isinstance(value, str):
        return value
    try:
        return loads(value) if value.strip() else None
    except ValueError as error:
        raise RowInvalid(f"`{key}` is not JSON: {error}") from error
