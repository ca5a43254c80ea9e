"""A corpus on disk: trajectories and features as Parquet, sealed task states apart, profile and splits as JSON.

Messages and tools are JSON text: structs that Arrow infers would put nulls of other tools' arguments into training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from curateevo.api.errors import ContractBroken
from curateevo.trajectories.model import Call as ToolCall
from curateevo.trajectories.model import JsonObject, RunOutcome, TaskRef, Trajectory, Turn

TRAJECTORIES = "trajectories.parquet"
FEATURES = "features.parquet"
SEALED_TASKS = "tasks.parquet"
PROFILE = "profile.json"
SPLITS = "splits.json"
SET_ASIDE = "set_aside.jsonl"
HELD_OUT = "held_out.jsonl"
DEV_PROMPTS = "dev_prompts.json"
ROW_GROUP = 4096


def write_trajectories(trajectories: Sequence[Trajectory], folder: Path) -> None:
    """Write `trajectories.parquet` and the sealed `tasks.parquet`."""
    rows = [_to_row(t) for t in trajectories]
    pl.DataFrame(rows, schema=ROW_SCHEMA).write_parquet(folder / TRAJECTORIES, row_group_size=ROW_GROUP)
    sealed = [{"id": t.id, "env": t.task.env, "state": t.task.state} for t in trajectories]
    pl.DataFrame(sealed, schema={"id": pl.String, "env": pl.String, "state": pl.String}).write_parquet(
        folder / SEALED_TASKS
    )


def read_trajectories(folder: Path, rows: Iterable[int] | None = None) -> dict[int, Trajectory]:
    """Trajectories by row number; only those in `rows` when given. Sealed states are not joined."""
    frame = pl.scan_parquet(folder / TRAJECTORIES).with_row_index("row")
    if rows is not None:
        frame = frame.filter(pl.col("row").is_in(sorted(set(rows))))
    return {record["row"]: _from_row(record) for record in frame.collect().iter_rows(named=True)}


def read_sealed_states(folder: Path) -> dict[str, tuple[str | None, str | None]]:
    """Trajectory id to (suite, environment state)."""
    frame = pl.read_parquet(folder / SEALED_TASKS)
    return {record["id"]: (record["env"], record["state"]) for record in frame.iter_rows(named=True)}


def read_features(folder: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(folder / FEATURES)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ContractBroken(
            f"{folder / FEATURES}: not a corpus: {error}", "make one with `curateevo ingest`"
        ) from error


ROW_SCHEMA = pl.Schema(
    {
        "id": pl.String(),
        "source": pl.String(),
        "task_id": pl.String(),
        "prompt": pl.String(),
        "env": pl.String(),
        "tags": pl.List(pl.String()),
        "success": pl.Boolean(),
        "reward": pl.Float64(),
        "system": pl.String(),
        "head": pl.String(),
        "turns": pl.String(),
        "tail": pl.String(),
        "tools": pl.String(),
        "labels": pl.String(),
        "format": pl.String(),
        "licence": pl.String(),
    }
)


def _to_row(t: Trajectory) -> JsonObject:
    turns = [
        {
            "users": turn.users,
            "content": turn.content,
            "reasoning": turn.reasoning,
            "calls": [[c.id, c.name, c.arguments] for c in turn.calls],
            "results": turn.results,
        }
        for turn in t.turns
    ]
    return {
        "id": t.id,
        "source": t.source,
        "task_id": t.task.id,
        "prompt": t.task.prompt,
        "env": t.task.env,
        "tags": list(t.task.tags),
        "success": t.outcome.success,
        "reward": t.outcome.reward,
        "system": t.system,
        "head": json.dumps(t.head, ensure_ascii=False),
        "turns": json.dumps(turns, ensure_ascii=False),
        "tail": json.dumps(t.tail, ensure_ascii=False),
        "tools": json.dumps(t.tools, ensure_ascii=False),
        "labels": json.dumps(t.labels, ensure_ascii=False, sort_keys=True),
        "format": t.format,
        "licence": t.licence,
    }


def _from_row(row: JsonObject) -> Trajectory:
    turns = tuple(
        Turn(
            users=tuple(raw["users"]),
            content=raw["content"],
            calls=tuple(ToolCall(*call) for call in raw["calls"]),
            results=tuple(raw["results"]),
            reasoning=raw["reasoning"],
        )
        for raw in json.loads(row["turns"])
    )
    return Trajectory(
        id=row["id"],
        source=row["source"],
        task=TaskRef(row["task_id"], row["prompt"], row["env"], None, tuple(row["tags"])),
        tools=tuple(json.loads(row["tools"])),
        system=row["system"],
        head=tuple(json.loads(row["head"])),
        turns=turns,
        tail=tuple(json.loads(row["tail"])),
        outcome=RunOutcome(row["success"], row["reward"]),
        labels=json.loads(row["labels"]),
        format=row["format"],
        licence=row["licence"],
    )
