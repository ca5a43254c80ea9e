"""Historical runs of τ-bench: an array of `{task_id, reward, info, traj, trial}`. The files hold no tool schemas."""

from __future__ import annotations

from typing import Any

from curateevo.trajectories.formats.atif_steps import conversation, read_record, unique_call_ids
from curateevo.trajectories.model import JsonObject, RowInvalid, RunOutcome, TaskRef, Trajectory, Turn

SUCCESS_REWARD = 1.0


def parse_tau_bench(row: Any, source: str) -> Trajectory:
    """One run to a trajectory; its tools are what its calls show (see `observed_tools`). Raises RowInvalid."""
    if not isinstance(row, dict) or not isinstance(row.get("traj"), list) or "task_id" not in row:
        raise RowInvalid("expected an object with task_id and a list `traj`")
    reward = row.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise RowInvalid("`reward` must be a number")
    parts = conversation(read_record({"messages": unique_call_ids(row["traj"])}, "openai-messages").steps)
    task_id = f"tau-bench/{row['task_id']}"
    return Trajectory(
        id=f"{task_id}/{row.get('trial', 0)}",
        source=source,
        task=TaskRef(id=task_id, prompt="\n".join(parts.head)),
        tools=observed_tools(parts.turns),
        system=parts.system,
        head=parts.head,
        turns=parts.turns,
        tail=parts.tail,
        outcome=RunOutcome(success=reward >= SUCCESS_REWARD, reward=float(reward)),
        labels={"licence": "MIT (Sierra)", "trial": row.get("trial", 0)},
    )


def observed_tools(turns: tuple[Turn, ...]) -> tuple[JsonObject, ...]:
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
