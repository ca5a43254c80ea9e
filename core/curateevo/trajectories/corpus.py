"""A corpus on disk: trajectories and features as Parquet, sealed task states apart, profile and splits as JSON.

Messages and tools are JSON text: structs that Arrow infers would put nulls of other tools' arguments into training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from curateevo.api.errors import ContractBroken
from curateevo.trajectories.json_text import compact, dumps, loads
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
SLICE = 1024


def write_trajectories(trajectories: Sequence[Trajectory], folder: Path) -> None:
    """Write `trajectories.parquet` and the sealed `tasks.parquet`."""
    write_rows(trajectories_frame(trajectories).lazy(), folder)


def write_rows(rows: pl.LazyFrame, folder: Path) -> None:
    """As `write_trajectories`, of rows as `trajectories_frame` makes them: more than fit into memory will do."""
    rows.select(ROW_SCHEMA.names()).sink_parquet(folder / TRAJECTORIES, row_group_size=ROW_GROUP)
    rows.select("id", "env", "state").sink_parquet(folder / SEALED_TASKS, row_group_size=ROW_GROUP)


def read_trajectories(folder: Path, rows: Iterable[int] | None = None) -> dict[int, Trajectory]:
    """Trajectories by row number; only those in `rows` when given. Sealed states are not joined."""
    return {record["row"]: parse_row(record) for record in read_rows(folder, rows).iter_rows(named=True)}


def read_rows(folder: Path, rows: Iterable[int] | None = None) -> pl.DataFrame:
    """Trajectories, all or some, as rows of `ROW_SCHEMA` behind their number, `row`; their texts are not parsed."""
    frame = pl.scan_parquet(folder / TRAJECTORIES).with_row_index("row")
    if rows is not None:
        frame = frame.filter(pl.col("row").is_in(sorted(set(rows))))
    return frame.collect(engine="streaming")


def iterate_trajectories(rows: pl.LazyFrame) -> Iterator[Trajectory]:
    """Trajectories of rows as `trajectories_frame` makes them, a few in memory at a time."""
    count = rows.select(pl.len()).collect().item()
    for start in range(0, count, SLICE):
        for record in rows.slice(start, SLICE).collect().iter_rows(named=True):
            yield parse_row(record)


def read_sealed_states(folder: Path) -> dict[str, tuple[str | None, str | None]]:
    """Trajectory id to (suite, environment state)."""
    frame = pl.read_parquet(folder / SEALED_TASKS)
    return {record["id"]: (record["env"], record["state"]) for record in frame.iter_rows(named=True)}


def read_features(folder: Path, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """The features, or some columns of them. Raises ContractBroken."""
    try:
        return pl.read_parquet(folder / FEATURES, columns=None if columns is None else list(columns))
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


def trajectories_frame(trajectories: Sequence[Trajectory]) -> pl.DataFrame:
    """Trajectories as rows of `ROW_SCHEMA`, and the sealed `state` of each beside them."""
    texts: dict[int, str] = {}

    def tools(t: Trajectory) -> str:
        """Many rows of a corpus share one tool list."""
        if id(t.tools) not in texts:
            texts[id(t.tools)] = dumps(t.tools)
        return texts[id(t.tools)]

    columns: dict[str, list[Any]] = {
        "id": [t.id for t in trajectories],
        "source": [t.source for t in trajectories],
        "task_id": [t.task.id for t in trajectories],
        "prompt": [t.task.prompt for t in trajectories],
        "env": [t.task.env for t in trajectories],
        "tags": [t.task.tags for t in trajectories],
        "success": [t.outcome.success for t in trajectories],
        "reward": [t.outcome.reward for t in trajectories],
        "system": [t.system for t in trajectories],
        "head": [compact(t.head) for t in trajectories],
        "turns": [compact([_turn_row(turn) for turn in t.turns]) for t in trajectories],
        "tail": [compact(t.tail) for t in trajectories],
        "tools": [tools(t) for t in trajectories],
        "labels": [json.dumps(t.labels, ensure_ascii=False, sort_keys=True) for t in trajectories],
        "format": [t.format for t in trajectories],
        "licence": [t.licence for t in trajectories],
        "state": [t.task.state for t in trajectories],
    }
    return frame_of(columns, {**ROW_SCHEMA, "state": pl.String()})


def frame_of(columns: Mapping[str, list[Any]], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Columns of values by row. Lists are made of all their values at once, in a tenth of the time of one by one."""
    made: dict[str, pl.Series] = {}
    alike: dict[bytes, list[pl.Series]] = {}
    for name, kind in schema.items():
        if isinstance(kind, pl.List) and columns[name]:
            lengths = np.fromiter(map(len, columns[name]), dtype=np.int64, count=len(columns[name]))
            flat = pl.Series(name, list(chain.from_iterable(columns[name])), dtype=kind.inner)
            alike.setdefault(lengths.tobytes(), []).append(flat)
        else:
            made[name] = pl.Series(name, columns[name], dtype=kind)
    for packed, some in alike.items():
        made |= {column.name: column for column in _lists(some, np.frombuffer(packed, dtype=np.int64))}
    return pl.DataFrame([made[name] for name in schema])


def _lists(flat: list[pl.Series], lengths: npt.NDArray[np.int64]) -> list[pl.Series]:
    """Columns of lists, of the values of all lists of a column and the length of each list."""
    if lengths[0] and (lengths == lengths[0]).all():
        return [column.reshape((len(lengths), int(lengths[0]))).arr.to_list() for column in flat]
    owners = np.repeat(np.arange(len(lengths)), lengths)
    lists = pl.DataFrame([pl.Series("row", owners), *flat]).group_by("row", maintain_order=True).all()
    every = pl.DataFrame({"row": np.arange(len(lengths))}).join(lists, on="row", how="left", maintain_order="left")
    return [every[column.name].fill_null(pl.Series([[]], dtype=pl.List(column.dtype))) for column in flat]


def _turn_row(turn: Turn) -> JsonObject:
    return {
        "users": turn.users,
        "content": turn.content,
        "reasoning": turn.reasoning,
        "calls": [[c.id, c.name, c.arguments] for c in turn.calls],
        "results": turn.results,
    }


@lru_cache(maxsize=1024)
def _tools(text: str) -> tuple[JsonObject, ...]:
    """Few of a corpus's tool lists differ. Shared, so not to be changed."""
    return tuple(loads(text))


def parse_row(row: JsonObject) -> Trajectory:
    """A row of `ROW_SCHEMA`, its sealed state aside."""
    turns = tuple(
        Turn(
            users=tuple(raw["users"]),
            content=raw["content"],
            calls=tuple(ToolCall(*call) for call in raw["calls"]),
            results=tuple(raw["results"]),
            reasoning=raw["reasoning"],
        )
        for raw in loads(row["turns"])
    )
    return Trajectory(
        id=row["id"],
        source=row["source"],
        task=TaskRef(row["task_id"], row["prompt"], row["env"], None, tuple(row["tags"])),
        tools=_tools(row["tools"]),
        system=row["system"],
        head=tuple(loads(row["head"])),
        turns=turns,
        tail=tuple(loads(row["tail"])),
        outcome=RunOutcome(row["success"], row["reward"]),
        labels=loads(row["labels"]),
        format=row["format"],
        licence=row["licence"],
    )
