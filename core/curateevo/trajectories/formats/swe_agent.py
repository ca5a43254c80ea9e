"""SWE-agent's .traj files: `{"history": [...], "trajectory": [...], "info": {...}}`; what the model saw is the history.

With a function-calling parser the history holds tool calls, and each observation names its call. With a text parser
(actions as code blocks) it holds none: actions and observations are then plain messages. Tool schemas are not inside.
"""

from __future__ import annotations

from typing import Any

from curateevo.trajectories.formats.atif_steps import read_chat
from curateevo.trajectories.formats.observed import observed_tools
from curateevo.trajectories.model import JsonObject, Message, RowInvalid, TaskRef, Trajectory

KEPT = ("role", "content", "tool_calls", "reasoning_content")


def parse_swe_agent(row: Any, source: str) -> Trajectory:
    """One run; the file's name is its task. It doesn't say whether the tests pass: the outcome is unknown.
    Demonstrations of other tasks (`is_demo`) are left out. Raises RowInvalid."""
    if not isinstance(row, dict) or not isinstance(row.get("history"), list):
        raise RowInvalid("expected an object with a list `history`")
    parts = read_chat([_message(m) for m in row["history"] if not (isinstance(m, dict) and m.get("is_demo"))])
    raw = row.get("info")
    info: JsonObject = raw if isinstance(raw, dict) else {}
    name = source.partition(".traj:")[0]
    return parts.trajectory(
        f"swe-agent/{name}",
        source,
        task=TaskRef(id=name, prompt=parts.opening),
        tools=observed_tools(parts.turns),
        labels={"exit_status": info.get("exit_status"), "swe_agent_version": info.get("swe_agent_version")},
    )


def _message(raw: Any) -> Message:
    if not isinstance(raw, dict) or not isinstance(raw.get("role"), str):
        raise RowInvalid("every history item must be an object with a role")
    out = {key: raw[key] for key in KEPT if raw.get(key) is not None}
    if raw["role"] == "tool":
        ids = raw.get("tool_call_ids")
        if not isinstance(ids, list) or len(ids) != 1:
            raise RowInvalid("an observation must name its call in `tool_call_ids`")
        out["tool_call_id"] = ids[0]
    return out
