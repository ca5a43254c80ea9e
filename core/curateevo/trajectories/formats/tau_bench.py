"""Historical runs of τ-bench: an array of `{task_id, reward, info, traj, trial}`. The files hold no tool schemas."""

from __future__ import annotations

from typing import Any

from curateevo.trajectories.formats.atif_steps import read_chat
from curateevo.trajectories.formats.observed import observed_tools
from curateevo.trajectories.model import RowInvalid, RunOutcome, TaskRef, Trajectory

SUCCESS_REWARD = 1.0


def parse_tau_bench(row: Any, source: str) -> Trajectory:
    """One run to a trajectory; its tools are what its calls show (see `observed_tools`). Raises RowInvalid."""
    if not isinstance(row, dict) or not isinstance(row.get("traj"), list) or "task_id" not in row:
        raise RowInvalid("expected an object with task_id and a list `traj`")
    reward = row.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise RowInvalid("`reward` must be a number")
    parts = read_chat(row["traj"])
    task_id = f"tau-bench/{row['task_id']}"
    return parts.trajectory(
        f"{task_id}/{row.get('trial', 0)}",
        source,
        task=TaskRef(id=task_id, prompt=parts.opening),
        tools=observed_tools(parts.turns),
        outcome=RunOutcome(success=reward >= SUCCESS_REWARD, reward=float(reward)),
        labels={"trial": row.get("trial", 0)},
        licence="MIT (Sierra)",
    )
