"""Dev tasks in three by task, and dev tasks found in training material."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.api.spec import Splits
from curateevo.trajectories.leakage import LeakIndex
from curateevo.trajectories.splits import split_tasks

tasks = st.lists(
    st.tuples(st.integers(0, 10_000).map(str), st.sampled_from("abc")), max_size=80, unique_by=lambda t: t[0]
)


@given(tasks, st.integers(0, 5))
@settings(max_examples=80)
def test_splits_are_disjoint_cover_everything_and_do_not_depend_on_order(
    found: list[tuple[str, str]], seed: int
) -> None:
    splits = Splits(diag=0.4, sel=0.4, test=0.2, seed=seed)
    out = split_tasks(found, splits)
    everything = [task for ids in out.values() for task in ids]
    assert sorted(everything) == sorted({task for task, _ in found}) and len(everything) == len(set(everything))
    assert split_tasks(list(reversed(found)), splits) == out


def test_fractions_hold_within_each_family_and_the_seed_matters() -> None:
    found = [(f"{family}{n}", family) for family in "ab" for n in range(100)]
    out = split_tasks(found, Splits(diag=0.2, sel=0.5, test=0.3))
    assert {name: len(ids) for name, ids in out.items()} == {"diag": 40, "sel": 100, "test": 60}
    assert sum(i.startswith("a") for i in out["test"]) == 30
    assert split_tasks(found, Splits(diag=0.2, sel=0.5, test=0.3, seed=1)) != out


def test_leaks_are_found_by_id_by_prompt_and_by_thirteen_words() -> None:
    long = "please book the cheapest flight from new york to seattle on may twentieth for two people with bags"
    index = LeakIndex({"dev/1": "Set a timer for 7 minutes.", "dev/2": long})
    assert str(index.find("dev/1", [])) == "it is dev task dev/1"
    assert "equals" in str(index.find("other", ["set a  TIMER for 7 minutes"]))
    found = index.find(None, [f"hello there {long} thanks"])
    assert found is not None and found.quote == " ".join(long.split()[:13])
    assert str(found) == "it shares 13 words in a row with dev task dev/2"
    assert index.find("other", ["Set a timer for 8 minutes.", " ".join(long.split()[:12])]) is None
