"""ATIF v1.7 trajectories, read by agentpile."""

from __future__ import annotations

from typing import Any

from curateevo.trajectories.formats.atif_steps import conversation, read_record
from curateevo.trajectories.formats.openai import parse_outcome, parse_tools
from curateevo.trajectories.model import JsonObject, RowInvalid, TaskRef, Trajectory


def parse_atif(row: Any, source: str) -> Trajectory:
    """One ATIF record to a trajectory. Raises RowInvalid."""
    if not isinstance(row, dict) or not str(row.get("schema_version", "")).startswith("ATIF-"):
        raise RowInvalid("expected an object with schema_version ATIF-v1.7")
    record = read_record(row, "atif")
    parts = conversation(record.steps)
    agent, extra = _object(row.get("agent")), _object(row.get("extra"))
    extension = _object(extra.get("agentpile"))
    task = _object(extension.get("task"))
    name = str(row.get("trajectory_id") or row.get("session_id") or source)
    return Trajectory(
        id=name,
        source=source,
        task=TaskRef(id=str(task.get("id") or name), prompt="\n".join(parts.head)),
        tools=parse_tools(agent.get("tool_definitions")),
        system=parts.system,
        head=parts.head,
        turns=parts.turns,
        tail=parts.tail,
        outcome=parse_outcome({"outcome": extension.get("outcome") or {}}),
        labels={"agent": agent.get("name")},
    )


def _object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}
