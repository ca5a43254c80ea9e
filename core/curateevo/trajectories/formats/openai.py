"""OpenAI chats with tools: `{"messages": [...], "tools": [...]}`, and where known `id`, `task`, `outcome` beside them.

`task` holds `id`, `prompt`, `env`, `state`, `tags`; `outcome` holds `success` and `reward`; `tools` may be JSON text,
as in TRL's rows. Plain chats are read by `plain_chat`, others by agentpile.
"""

from __future__ import annotations

import marshal
from functools import lru_cache
from typing import Any

from curateevo.trajectories.formats.atif_steps import read_chat
from curateevo.trajectories.formats.transcript import json_field
from curateevo.trajectories.model import JsonObject, RowInvalid, RunOutcome, TaskRef, Trajectory, tool_name

KNOWN = {"id", "source", "messages", "tools", "task", "outcome", "success", "reward", "licence", "license"}
NO_TOOLS = "`tools` must be a list of OpenAI tool schemas with names"


def parse_openai(row: Any, source: str) -> Trajectory:
    """One row to a trajectory. `source` names file and line. Raises RowInvalid."""
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
        raise RowInvalid("expected an object with a list `messages`")
    parts = read_chat(row["messages"])
    return parts.trajectory(
        str(row.get("id") or source),
        str(row.get("source") or source),
        task=parse_task(row.get("task"), parts.opening, str(row.get("id") or source)),
        tools=parse_tools(row.get("tools")),
        outcome=parse_outcome(row),
        labels={key: value for key, value in row.items() if key not in KNOWN},
        licence=parse_licence(row),
    )


def parse_task(raw: Any, prompt: str, fallback: str) -> TaskRef:
    """The task of a row; without one, the row is a task of its own with its opening, `prompt`, as the prompt."""
    if raw is None:
        return TaskRef(id=fallback, prompt=prompt)
    if not isinstance(raw, dict):
        raise RowInvalid("`task` must be an object")
    state = raw.get("state")
    tags = raw.get("tags") or ()
    if state is not None and not isinstance(state, str):
        raise RowInvalid("`task.state` must be JSON text")
    if not isinstance(tags, list | tuple):
        raise RowInvalid("`task.tags` must be a list")
    return TaskRef(
        id=str(raw.get("id") or fallback),
        prompt=str(raw.get("prompt") or prompt),
        env=raw.get("env"),
        state=state,
        tags=tuple(str(tag) for tag in tags),
    )


def parse_tools(raw: Any) -> tuple[JsonObject, ...]:
    """OpenAI tool schemas, or their JSON text, sorted by name. Raises RowInvalid."""
    raw = json_field({"tools": raw}, "tools")
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise RowInvalid(NO_TOOLS)
    try:
        dumped = marshal.dumps(raw)
    except ValueError as error:
        raise RowInvalid("`tools`: nested too deeply") from error
    return _sorted_tools(dumped)


@lru_cache(maxsize=1024)
def _sorted_tools(dumped: bytes) -> tuple[JsonObject, ...]:
    """Few of a corpus's tool lists differ. Shared, so not to be changed."""
    raw = marshal.loads(dumped)
    if not all(isinstance(t, dict) and tool_name(t) for t in raw):
        raise RowInvalid(NO_TOOLS)
    return tuple(sorted(raw, key=tool_name))


def parse_outcome(row: JsonObject) -> RunOutcome:
    raw = row.get("outcome")
    raw = raw if isinstance(raw, dict) else row
    success, reward = raw.get("success"), raw.get("reward")
    if success is not None and not isinstance(success, bool):
        raise RowInvalid("`success` must be true, false or null")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise RowInvalid("`reward` must be a number or null")
    return RunOutcome(success, None if reward is None else float(reward))


def parse_licence(row: JsonObject) -> str | None:
    """The licence that a row names, in either spelling."""
    found = row.get("licence") or row.get("license")
    return found if isinstance(found, str) else None
