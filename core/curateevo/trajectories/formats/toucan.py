"""Toucan-1.5M (arXiv 2510.01179): `{uuid, subset_name, question, messages, available_tools or tools, ...}`.

Its Parquet files hold messages and tools as JSON text. Calls have no ids: `function_call` within an assistant message
and role `function`, or (SFT) roles `tool_call` and `tool_response`; results are paired in order, by name where they
have one.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from curateevo.trajectories.formats.atif_steps import read_chat
from curateevo.trajectories.formats.openai import parse_tools
from curateevo.trajectories.formats.transcript import Transcript, json_field, named_call
from curateevo.trajectories.model import JsonObject, Message, RowInvalid, TaskRef, Trajectory

LICENCE = "Apache-2.0 (Agent-Ark/Toucan-1.5M)"
TOOL_PREAMBLE = "<|im_system|>tool_declare"
"""Kimi's template of the tools, kept as a system message in the Kimi-K2 part: the tools are in their own column."""


def parse_toucan(row: Any, source: str) -> Trajectory:
    """One row to a trajectory. Answers are judged by a model, which is no outcome: it is unknown. Raises RowInvalid."""
    messages = json_field(row, "messages") if isinstance(row, dict) else None
    if not isinstance(messages, list):
        raise RowInvalid("expected an object with `messages`, a list or its JSON text")
    parts = read_chat(_plain(messages))
    name = str(row.get("uuid") or source)
    judged = json_field(row, "response_quality_assessment")
    return parts.trajectory(
        name,
        source,
        task=TaskRef(id=name, prompt=str(row.get("question") or parts.opening)),
        tools=parse_tools(row.get("available_tools") or row.get("tools")),
        labels={
            "subset": row.get("subset_name"),
            "target_tools": row.get("target_tools"),
            "judged": judged.get("overall_score") if isinstance(judged, dict) else None,
        },
        licence=LICENCE,
    )


def _plain(messages: list[Any]) -> list[Message]:
    out = Transcript()
    for message in messages:
        if not isinstance(message, dict):
            raise RowInvalid("every message must be an object with a role")
        role, text = message.get("role"), _text(message.get("content"))
        match role:
            case "system" if text.startswith(TOOL_PREAMBLE):
                continue
            case "system" | "user":
                out.say(role, text)
            case "assistant":
                call = message.get("function_call")
                reasoning = message.get("reasoning_content")
                if call is None or text or reasoning:
                    out.say("assistant", text, reasoning if isinstance(reasoning, str) else None)
                if call is not None:
                    out.call(*named_call(call))
            case "tool_call":
                out.call(*named_call(_call_object(text)))
            case "function" | "tool_response":
                name = message.get("name")
                out.result(text, name if isinstance(name, str) else None)
            case _:
                raise RowInvalid(f"unknown role {role!r}")
    return out.messages


def _call_object(text: str) -> JsonObject:
    """A call written as JSON, or as a Python literal."""
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise RowInvalid(f"a tool_call is neither JSON nor a Python literal: {text[:80]}") from error
    if not isinstance(found, dict):
        raise RowInvalid(f"a tool_call must be an object, not {text[:80]}")
    return found


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "" if content is None else json.dumps(content, ensure_ascii=False)
