"""The profile of a corpus or of what a policy kept: counts that a person and a proposer read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl

from curateevo.trajectories.flags import TurnFlag

QUANTILES = (0.1, 0.5, 0.9, 0.99, 1.0)


def profile_of(features: pl.DataFrame) -> dict[str, Any]:
    """Counts, shares and quantiles of a features frame."""
    count = features.height
    if not count:
        return {"trajectories": 0, "turns": 0}
    flags = Counter[str]()
    for bits, seen in features["turn_flags"].explode().drop_nulls().value_counts().iter_rows():
        flags.update({flag.name: seen for flag in TurnFlag if flag.name and bits & flag})
    turns = int(features["turns"].sum())
    return {
        "trajectories": count,
        "turns": turns,
        "calls": int(features["calls"].sum()),
        "tokens": int(features["tokens"].sum()),
        "success": {
            "true": int((features["success"] == True).sum()),  # noqa: E712
            "false": int((features["success"] == False).sum()),  # noqa: E712
            "unknown": int(features["success"].is_null().sum()),
        },
        "turns_per_trajectory": _quantiles(features["turns"]),
        "tokens_per_trajectory": _quantiles(features["tokens"]),
        "turn_flags": {name: round(n / turns, 4) for name, n in sorted(flags.items())},
        "exact_duplicates": count - features["content_hash"].n_unique(),
        "families": _top(features["family"]),
        "tools": _top(features["tools"].explode().drop_nulls()),
        "sources": _top(features["source"], 10),
    }


def _quantiles(column: pl.Series) -> dict[str, float]:
    return {f"p{round(q * 100)}": float(column.quantile(q, "nearest") or 0) for q in QUANTILES}


def _top(column: pl.Series, limit: int = 40) -> dict[str, int]:
    """The most frequent values; of equals those that come first in the column."""
    counts = column.to_frame("value").with_row_index("row").group_by("value").agg(pl.len(), pl.col("row").min())
    most = counts.sort(["len", "row"], descending=[True, False]).head(limit)
    return dict(zip(most["value"].to_list(), most["len"].to_list(), strict=True))
