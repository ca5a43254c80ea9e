"""What Data-Juicer and datatrove are told of a chat, and how both cut it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


def record(line: str) -> dict[str, Any]:
    """Messages as text, as the operators of both take it: nested tools would be merged by Arrow."""
    row = json.loads(line)
    said = [str(m.get("content") or "") + json.dumps(m.get("tool_calls") or "") for m in row["messages"]]
    return {"text": "\n".join(said), "raw": line, "success": bool(row["success"])}


def last_turns(line: str, turns: int) -> str:
    row = json.loads(line)
    answers = [n for n, m in enumerate(row["messages"]) if m["role"] == "assistant"]
    if len(answers) > turns:
        first = answers[0]
        row["messages"] = row["messages"][:first] + row["messages"][answers[-turns] :]
    return json.dumps(row)


def count(line: str, profile: Counter[str]) -> None:
    """Add a chat's turns and calls to a profile."""
    messages = json.loads(line)["messages"]
    profile["turns"] += sum(m["role"] == "assistant" for m in messages)
    profile.update(c["function"]["name"] for m in messages for c in m.get("tool_calls") or ())
