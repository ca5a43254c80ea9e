"""ShareGPT with tools: `{"conversations": [{"from", "value"}], "tools", "system"}`, as LLaMA-Factory documents it.

Speakers are `system`, `human`, `gpt`, `function_call` (its value is JSON: a call, or a list of calls) and `observation`
(a result; for several calls a JSON list of as many results, or one observation each).
"""

from __future__ import annotations

import json
from typing import Any

from curateevo.trajectories.formats.atif_steps import read_chat
from curateevo.trajectories.formats.observed import observed_tools
from curateevo.trajectories.formats.openai import parse_licence, parse_outcome, parse_tools
from curateevo.trajectories.formats.transcript import Transcript, json_field, named_call
from curateevo.trajectories.model import JsonObject, Message, RowInvalid, Trajectory

SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
KNOWN = {"id", "conversations", "tools", "system", "outcome", "success", "reward", "licence", "license"}


def parse_sharegpt(row: Any, source: str) -> Trajectory:
    """One conversation to a trajectory; a row without `tools` gets what its calls show. Raises RowInvalid."""
    if not isinstance(row, dict) or not isinstance(row.get("conversations"), list):
        raise RowInvalid("expected an object with a list `conversations`")
    parts = read_chat(_messages(row))
    name = str(row.get("id") or source)
    tools = parse_tools(row.get("tools"))
    return parts.trajectory(
        name,
        source,
        tools=tools or observed_tools(parts.turns),
        outcome=parse_outcome(row),
        labels={key: value for key, value in row.items() if key not in KNOWN},
        licence=parse_licence(row),
    )


def _messages(row: JsonObject) -> list[Message]:
    out, waiting = Transcript(), 0
    if isinstance(row.get("system"), str) and row["system"]:
        out.say("system", row["system"])
    for said in row["conversations"]:
        if not isinstance(said, dict) or not isinstance(said.get("value"), str):
            raise RowInvalid("every conversation item must be an object with `from` and a text `value`")
        speaker, value = said.get("from"), said["value"]
        if speaker == "function_call":
            calls = json_field({"function_call": value}, "function_call")
            calls = calls if isinstance(calls, list) else [calls]
            for call in calls:
                out.call(*named_call(call))
            waiting += len(calls)
        elif speaker == "observation":
            results = _results(value, waiting)
            for result in results:
                out.result(result)
            waiting -= len(results)
        elif speaker in SPEAKERS:
            out.say(SPEAKERS[speaker], value)
        else:
            raise RowInvalid(f"unknown speaker {speaker!r} (known: {', '.join(SPEAKERS)}, function_call, observation)")
    return out.messages


def _results(value: str, waiting: int) -> list[str]:
    if waiting > 1:
        try:
            found = json.loads(value)
        except ValueError:
            return [value]
        if isinstance(found, list) and len(found) == waiting:
            return [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in found]
    return [value]
