"""GRACE's columns: worked examples, and what holds for any signals."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from curateevo.trajectories.columns import Columns
from curateevo.trajectories.grace import ALIGNMENT, CONSISTENCY, Signals, grace_columns

EAST, NORTH, WEST = (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)
NONE = (np.nan, np.nan)
HALF = 0.7071


def scores(
    runs: list[tuple[str, bool | None, list[tuple[float, float]]]],
) -> tuple[list[list[float | None]], list[list[float | None]]]:
    """Alignments and consistencies, as a policy sees them, of runs: family, label, a signal per turn."""
    features = pl.DataFrame(
        {"family": [f for f, _, _ in runs], "success": [s for _, s, _ in runs], "turns": [len(t) for _, _, t in runs]},
        schema_overrides={"success": pl.Boolean, "turns": pl.Int32},
    )
    signals = np.array([turn for _, _, turns in runs for turn in turns], dtype=np.float32)
    columns = Columns(features.hstack(grace_columns(features, signals)))
    return tuple(
        [[x if x is None else round(x, 4) for x in row] for row in columns[n]] for n in (ALIGNMENT, CONSISTENCY)
    )  # type: ignore[return-value]


def test_turns_are_held_against_the_other_successes_of_the_family() -> None:
    aligned, _ = scores(
        [
            ("a", True, [EAST]),
            ("a", True, [NORTH]),
            ("a", False, [EAST, WEST, NORTH]),
            ("b", True, [WEST]),
        ]
    )
    assert aligned[0] == [0.0] and aligned[1] == [0.0], "each is held against the other one"
    assert aligned[2] == [HALF, -HALF, HALF]
    assert aligned[3] == [-HALF], "alone in its family: against the successes of all others, east and north"


def test_a_turn_is_consistent_with_the_mean_of_those_before_it() -> None:
    _, consistent = scores([("a", True, [EAST, EAST, NORTH, WEST])])
    assert consistent == [[None, 1.0, 0.0, round(-2 / 5**0.5, 4)]]


def test_without_a_label_all_stand_for_successes_and_without_a_success_nothing_does() -> None:
    aligned, _ = scores([("a", None, [EAST]), ("a", None, [EAST]), ("a", False, [WEST])])
    assert aligned == [[1.0], [1.0], [-1.0]]
    aligned, consistent = scores([("a", False, [EAST, EAST]), ("a", False, [WEST])])
    assert aligned == [[None, None], [None]] and consistent == [[None, 1.0], [None]]
    assert scores([("a", True, [EAST])])[0] == [[None]], "a lone success has nothing to be held against"


def test_a_trajectory_without_signals_has_nulls_and_leads_nowhere() -> None:
    aligned, consistent = scores([("a", True, [NONE, NONE]), ("a", True, [EAST]), ("a", False, [WEST])])
    assert aligned == [[None, None], [None], [-1.0]] and consistent == [[None, None], [None], [None]]


@settings(max_examples=60)
@given(st.data())
def test_scores_are_cosines_one_per_turn_whatever_the_signals(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    signals: Signals = data.draw(arrays.arrays(np.float32, (sum(lengths), 3), elements=st.floats(-1, 1, width=32)))
    features = pl.DataFrame(
        {
            "family": data.draw(st.lists(st.sampled_from("ab"), min_size=len(lengths), max_size=len(lengths))),
            "success": data.draw(st.lists(st.none() | st.booleans(), min_size=len(lengths), max_size=len(lengths))),
            "turns": lengths,
        },
        schema_overrides={"success": pl.Boolean},
    )
    norms = np.linalg.norm(signals, axis=1, keepdims=True)
    made = grace_columns(features, np.divide(signals, norms, out=np.zeros_like(signals), where=norms > 0))
    for name in (ALIGNMENT, CONSISTENCY):
        assert made[name].list.len().to_list() == lengths
        assert all(-1 <= x <= 1 for row in made[name].to_list() for x in row if x is not None)
    assert all(row[0] is None and None not in row[1:] for row in made[CONSISTENCY].to_list())


@pytest.mark.parametrize("label", [True, False, None])
def test_the_order_of_trajectories_is_that_of_the_features(label: bool | None) -> None:
    runs = [("a", True, [EAST]), ("a", label, [NORTH, EAST]), ("a", True, [EAST, EAST])]
    assert scores(runs)[0] == scores(runs[::-1])[0][::-1]
