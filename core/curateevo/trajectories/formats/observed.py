"""Tools of logs that hold no schemas, as far as their calls show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from curateevo.trajectories.model import JsonObject, Turn


def observed_tools(turns: Iterable[Turn]) -> tuple[JsonObject, ...]:
    """Tool schemas as far as the calls show them: names and argument names, nothing required."""
    seen: dict[str, dict[str, str]] = {}
    for turn in turns:
        for call in turn.calls:
            arguments = seen.setdefault(call.name, {})
            for name, value in (call.parsed() or {}).items():
                arguments[name] = _json_type(value)
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": name.replace("_", " "),
                "parameters": {
                    "type": "object",
                    "properties": {a: {"type": t} for a, t in sorted(args.items())},
                },
            },
        }
        for name, args in sorted(seen.items())
    )


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = ((int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "string")
