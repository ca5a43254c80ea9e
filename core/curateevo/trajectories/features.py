"""Columnar features, computed once at ingest. Policies select on them and touch no text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import polars as pl
from rensa import RMinHash

from curateevo.trajectories.corpus import frame_of
from curateevo.trajectories.flags import (
    SchemaCheck,
    TurnRead,
    call_signature,
    read_turn,
    turn_flags,
    words,
)
from curateevo.trajectories.json_text import canonical
from curateevo.trajectories.model import Trajectory, Turn

MINHASH_PERMUTATIONS = 64
MINHASH_SEED = 17
CHARS_PER_TOKEN = 4
ERROR_CHARS = 160
"""Of an error, kept as a feature."""
NO_CALL = "no-call"
"""The family of trajectories that have neither a tag nor a call."""


FEATURES = pl.Schema(
    {
        "id": pl.String(),
        "source": pl.String(),
        "task_id": pl.String(),
        "family": pl.String(),
        "signature": pl.String(),
        "env": pl.String(),
        "success": pl.Boolean(),
        "reward": pl.Float64(),
        "turns": pl.Int32(),
        "calls": pl.Int32(),
        "tools": pl.List(pl.String()),
        "tokens": pl.Int64(),
        "turn_flags": pl.List(pl.UInt16()),
        "turn_tokens": pl.List(pl.Int32()),
        "turn_tools": pl.List(pl.String()),
        "turn_calls": pl.List(pl.Int64()),
        "turn_errors": pl.List(pl.String()),
        "content_hash": pl.String(),
        "minhash": pl.List(pl.UInt32()),
    }
)


def features_of(trajectories: Iterable[Trajectory]) -> pl.DataFrame:
    """One row per trajectory, in order. Columns are documented in docs/policies.md."""
    schemas = SchemaCheck()
    columns: dict[str, list[Any]] = {name: [] for name in FEATURES}
    for trajectory in trajectories:
        for name, value in _features(trajectory, schemas).items():
            columns[name].append(value)
    return frame_of(columns, FEATURES)


def _features(trajectory: Trajectory, schemas: SchemaCheck) -> dict[str, Any]:
    read = [read_turn(turn) for turn in trajectory.turns]
    signature = call_signature(trajectory.turns)
    chars = [_chars(turn) for turn in trajectory.turns]
    names = [[c.name for c in turn.calls] for turn in trajectory.turns]
    return {
        "id": trajectory.id,
        "source": trajectory.source.split(":")[0],
        "task_id": trajectory.task.id,
        "family": trajectory.task.tags[0] if trajectory.task.tags else signature or NO_CALL,
        "signature": signature,
        "env": trajectory.task.env,
        "success": trajectory.outcome.success,
        "reward": trajectory.outcome.reward,
        "turns": len(trajectory.turns),
        "calls": sum(map(len, names)),
        "tools": sorted({name for made in names for name in made}),
        "tokens": (sum(chars) + sum(map(len, trajectory.head))) // CHARS_PER_TOKEN,
        "turn_flags": turn_flags(trajectory, read, schemas),
        "turn_tokens": [n // CHARS_PER_TOKEN for n in chars],
        "turn_tools": [">".join(made) for made in names],
        "turn_calls": [found.hash for found in read],
        "turn_errors": [_beginning(found.error) for found in read],
        "content_hash": _content_hash(trajectory),
        "minhash": _minhash(trajectory, read),
    }


def _beginning(error: str | None) -> str:
    return "" if error is None else " ".join(error[:ERROR_CHARS].split())


def _chars(turn: Turn) -> int:
    return len(turn.content) + sum(map(len, turn.results)) + sum(map(len, turn.users))


def _content_hash(trajectory: Trajectory) -> str:
    plain = [
        [t.users, t.content.strip(), [(c.name, c.arguments) for c in t.calls], t.results] for t in trajectory.turns
    ]
    return hashlib.sha256(canonical([trajectory.head, plain])).hexdigest()[:16]


def _minhash(trajectory: Trajectory, read: list[TurnRead]) -> list[int]:
    """MinHash of the normalised call sequence and the words around it."""
    tokens = [f"w:{w}" for text in trajectory.head for w in words(text)]
    for turn, found in zip(trajectory.turns, read, strict=True):
        called = zip(turn.calls, found.values, strict=True)
        tokens += [f"c:{c.name}:{v}" for c, made in called for v, _ in made] or [f"a:{w}" for w in words(turn.content)]
        tokens += [f"n:{c.name}" for c in turn.calls]
    sketch = RMinHash(MINHASH_PERMUTATIONS, MINHASH_SEED)
    sketch.update(tokens or [""])
    return list(sketch.digest())
