"""What is over- and under-represented: shares, ratios and intervals on corpora that are known."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curateevo.trajectories.representation import LEAST_TASKS, MOST_VALUES, REST, Kept, representation_of


def features(rows: list[tuple[str, str, list[str], int, bool | None]]) -> pl.DataFrame:
    """Rows of task, family, tools, turns and success."""
    names = ("task_id", "family", "tools", "turns", "success")
    columns: dict[str, list[Any]] = {name: [row[n] for row in rows] for n, name in enumerate(names)}
    return pl.DataFrame({**columns, "source": ["s"] * len(rows)}, schema_overrides={"success": pl.Boolean})


def kept(frame: pl.DataFrame, rows: list[int], copies: int = 1) -> list[Kept]:
    tools = frame["tools"].to_list()
    return [Kept(row, frozenset(tools[row]), copies) for row in rows]


def values(found: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    (dimension,) = (d for d in found["dimensions"] if d["name"] == name)
    return {value["value"]: value for value in dimension["values"]}


HALVES = features([(f"t{n}", "ab"[n % 2], ["f"] if n % 2 else ["g", "h"], 1 + n, n % 2 == 0) for n in range(40)])


def test_shares_and_ratios_are_those_of_the_rows() -> None:
    found = representation_of(HALVES, kept(HALVES, [*range(0, 40, 2), 1, 3, 5, 7, 9]), kept(HALVES, [0, 1]))
    families = values(found, "family")
    assert families["a"]["corpus"] == 0.5 and families["a"]["sft"]["share"] == 0.8
    assert families["a"]["sft"]["ratio"] == 1.6 and families["b"]["sft"]["ratio"] == 0.4
    assert families["a"]["rl"]["ratio"] == 1.0
    assert families["a"]["sft"]["low"] > 1 and families["b"]["sft"]["high"] < 1
    assert families["a"]["rl"]["low"] < 1 < families["a"]["rl"]["high"]
    assert values(found, "tool")["g"]["corpus"] == 0.5 and values(found, "tool")["h"]["sft"]["share"] == 0.8
    assert list(values(found, "turns")) == ["1 to 2", "3 to 5", "6 to 10", "11 to 20", "over 20"]
    assert values(found, "turns")["over 20"]["corpus"] == 0.5


def test_copies_count() -> None:
    found = representation_of(HALVES, [*kept(HALVES, [0], copies=3), *kept(HALVES, [1])], [])
    assert values(found, "family")["a"]["sft"]["share"] == 0.75
    assert "rl" not in values(found, "family")["a"]


def test_what_is_not_kept_at_all_has_wilsons_upper_end() -> None:
    found = values(representation_of(HALVES, kept(HALVES, list(range(0, 40, 2))), []), "outcome")["failure"]["sft"]
    assert (found["share"], found["ratio"], found["low"]) == (0.0, 0.0, 0.0)
    assert found["high"] == pytest.approx(0.1611 / 0.5, abs=1e-3)  # Wilson 1927: 0 of 20 tasks


def test_too_few_tasks_give_no_interval() -> None:
    frame = features([(f"t{n % LEAST_TASKS}", "b", [], 1, None) for n in range(30)] + [("x", "a", [], 1, None)] * 9)
    families = values(representation_of(frame, kept(frame, [0, 35]), []), "family")
    assert families["a"]["tasks"] == 1 and families["a"]["sft"]["low"] is None
    assert families["b"]["tasks"] == LEAST_TASKS and families["b"]["sft"]["low"] is not None


def test_rare_families_are_taken_together_and_rare_tools_left_out() -> None:
    frame = features([(f"t{n}", f"f{n:02}", [f"g{n:02}"], 1, None) for n in range(20)])
    found = representation_of(frame, kept(frame, [0, 19]), [])
    families = values(found, "family")
    assert len(families) == MOST_VALUES and families[REST]["corpus"] == 0.45 and families[REST]["sft"]["share"] == 0.5
    assert len(values(found, "tool")) == MOST_VALUES


rows = st.tuples(
    st.sampled_from("abcdefg"), st.sampled_from("xyz"), st.lists(st.sampled_from("fgh"), unique=True),
    st.integers(1, 30), st.sampled_from([True, False, None]),
)  # fmt: skip


@given(st.lists(rows, min_size=1, max_size=30), st.data())
def test_everything_kept_is_represented_as_in_the_corpus_and_shares_add_up(
    made: list[Any], data: st.DataObject
) -> None:
    frame = features(made)
    copies = data.draw(st.integers(1, 3))
    some = data.draw(st.lists(st.integers(0, len(made) - 1), min_size=1))
    found = representation_of(frame, kept(frame, list(range(len(made))), copies), kept(frame, some))
    for dimension in found["dimensions"]:
        for value in dimension["values"]:
            assert value["sft"]["ratio"] == 1.0
            assert value["sft"]["low"] in (None, 1.0) and value["sft"]["high"] in (None, 1.0)
            assert value["rl"]["low"] is None or value["rl"]["low"] <= value["rl"]["high"]
        if dimension["name"] != "tool":
            assert sum(v["corpus"] for v in dimension["values"]) == pytest.approx(1, abs=1e-3)
            assert sum(v["rl"]["share"] for v in dimension["values"]) == pytest.approx(1, abs=1e-3)
    assert representation_of(frame, kept(frame, list(range(len(made))), copies), kept(frame, some)) == found
