"""ATIF trajectories, v1.7 and v1.8, checked by the models of `atif`; and any record that agentpile makes."""

from __future__ import annotations

import json
from typing import Any

import atif
from pydantic import ValidationError

from curateevo.trajectories.formats.atif_steps import EXTENSION, OURS, conversation
from curateevo.trajectories.formats.observed import observed_tools
from curateevo.trajectories.formats.openai import parse_outcome, parse_task, parse_tools
from curateevo.trajectories.model import Call, JsonObject, RowInvalid, RunOutcome, TaskRef, Trajectory, Turn

VERSIONS = ("ATIF-v1.7", "ATIF-v1.8")


def parse_atif(row: Any, source: str) -> Trajectory:
    """One ATIF document to a trajectory. Raises RowInvalid."""
    if not isinstance(row, dict) or row.get("schema_version") not in VERSIONS:
        raise RowInvalid(f"expected an object with schema_version {' or '.join(VERSIONS)}")
    try:
        atif.Trajectory.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        raise RowInvalid(f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}") from error
    return record_to_trajectory(row, source)


def record_to_trajectory(record: JsonObject, source: str) -> Trajectory:
    """A document of ATIF's layout to a trajectory. Agent steps copied from an earlier document (`is_copied_context`)
    are left out, since they must train nothing; embedded subagents are not read. Raises RowInvalid."""
    parts = conversation([s for s in record["steps"] if not (s["source"] == "agent" and s.get("is_copied_context"))])
    agent, extra = _object(record.get("agent")), _object(record.get("extra"))
    name = str(record.get("trajectory_id") or record.get("session_id") or source)
    ours, theirs = _object(extra.get(OURS)), _object(extra.get(EXTENSION))
    if ours:
        task, outcome = parse_task(ours.get("task"), parts.opening, name), parse_outcome(ours)
    else:
        task = TaskRef(id=str(_object(theirs.get("task")).get("id") or name), prompt=parts.opening)
        outcome = _agentpile_outcome(_object(theirs.get("outcome")))
    return parts.trajectory(
        name,
        source,
        task=task,
        tools=parse_tools(agent.get("tool_definitions")) or observed_tools(parts.turns),
        outcome=outcome,
        labels=_object(ours.get("labels")) if ours else {"agent": agent.get("name"), "model": agent.get("model_name")},
        licence=ours.get("licence"),
    )


def _agentpile_outcome(raw: JsonObject) -> RunOutcome:
    """agentpile calls the reward `score`."""
    success, score = raw.get("success"), raw.get("score", raw.get("reward"))
    number = None if isinstance(score, bool) or not isinstance(score, int | float) else float(score)
    return RunOutcome(success if isinstance(success, bool) else None, number)


def render_atif(trajectory: Trajectory) -> JsonObject:
    """An ATIF v1.8 document, valid by its models. `parse_atif` gives the trajectory back, but for its source, its
    format, and the task's state, which stays sealed."""
    said: list[tuple[str, str | Turn]] = [] if trajectory.system is None else [("system", trajectory.system)]
    said += [("user", text) for text in trajectory.head]
    for turn in trajectory.turns:
        said += [("user", text) for text in turn.users]
        said.append(("agent", turn))
    said += [("user", text) for text in trajectory.tail]
    task, outcome = trajectory.task, trajectory.outcome
    ours = {
        "task": {"id": task.id, "prompt": task.prompt, "env": task.env, "tags": list(task.tags)},
        "outcome": {"success": outcome.success, "reward": outcome.reward},
        "licence": trajectory.licence,
        "labels": trajectory.labels,
    }
    document = atif.Trajectory(
        schema_version=VERSIONS[-1],
        trajectory_id=trajectory.id,
        agent=atif.Agent(name="unknown", version="unknown", tool_definitions=list(trajectory.tools) or None),
        steps=[_step(number, source, what) for number, (source, what) in enumerate(said, start=1)],
        extra={OURS: ours},
    )
    return {**document.to_json_dict(), "extra": {OURS: ours}}


def _step(number: int, source: str, what: str | Turn) -> Any:
    if isinstance(what, str):
        return atif.Step(step_id=number, source=source, message=what)
    results = [
        atif.ObservationResult(source_call_id=c.id, content=r) for c, r in zip(what.calls, what.results, strict=True)
    ]
    return atif.Step(
        step_id=number,
        source=source,
        message=what.content,
        reasoning_content=what.reasoning,
        tool_calls=[_call(c) for c in what.calls] or None,
        observation=atif.Observation(results=results) if results else None,
    )


def _call(call: Call) -> Any:
    """ATIF's arguments are an object: text that is written otherwise than we would is kept beside it."""
    arguments = call.parsed() or {}
    extra = (
        None if json.dumps(arguments, ensure_ascii=False) == call.arguments else {OURS: {"arguments": call.arguments}}
    )
    return atif.ToolCall(tool_call_id=call.id, function_name=call.name, arguments=arguments, extra=extra)


def _object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}
