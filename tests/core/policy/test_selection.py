"""Scores and decisions, segments, picked steps, contrasts and upsampling on small corpora whose right answer is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.policy import api
from curateevo.policy.operators.items import Context, Corpus, Items, TurnFlag
from curateevo.trajectories.features import features_of
from curateevo.trajectories.flags import call_hash
from curateevo.trajectories.model import Call, Trajectory, Turn
from tests.core.policy.test_notes import BAD, GOOD, MENDED, RETRIED, Step, corpus_of, run
from tests.core.policy.test_operators import ROWS
from tests.core.policy.test_operators import corpus_of as corpus_of_rows

CALL, ASKED = int(TurnFlag.CALL), int(TurnFlag.ASKED)


def context(**more: Any) -> Context:
    return Context(params={}, rng=random.Random(5), **more)


def rows(items: Items) -> list[int]:
    return [item.row for item in items]


def four() -> Items:
    """Tasks 0 (both ways) and 1 (failures alone), two attempts each."""
    made = [run(0, GOOD), run(1, BAD, success=False), run(2, BAD, success=False), run(3, RETRIED, success=False)]
    return corpus_of(made).items()


def test_scores_are_one_number_per_item_in_their_units() -> None:
    items = four()
    assert api.score_outcome(items) == (1.0, 0.0, 0.0, 0.0)
    assert api.score_turns(items) == (3.0, 2.0, 2.0, 3.0)
    assert api.score_feature(items, "calls") == (2.0, 1.0, 1.0, 2.0)
    assert api.score_feature(items, "reward", missing=-1.0) == (-1.0,) * 4
    with pytest.raises(KeyError, match="no feature 'gradient'; there are id, "):
        api.score_feature(items, "gradient")
    assert api.score_rarity(items) == (0.75, 0.0, 0.0, 0.0), "one of four looks up"
    assert api.score_learnability(items, context()) == (0.25, 0.25, 0.0, 0.0)
    assert api.score_learnability(items, context(family_success={"ship": 0.9}), by="family") == pytest.approx(
        [0.09] * 4
    )
    assert api.score_difficulty(items, context()) == (0.75,) * 4
    clusters = ({"mode": "loop", "families": {"ship": 3, "buy": 1}}, {"mode": "invented", "families": {"buy": 4}})
    assert api.score_failures(items, context(failures=clusters)) == (0.375,) * 4
    assert api.score_failures(items, context(failures=clusters), modes=["loop"]) == (0.75,) * 4
    assert api.score_failures(items, context()) == (0.0,) * 4


def scored(alignment: list[list[float | None]], consistency: list[list[float | None]]) -> Items:
    """`four` with GRACE's columns."""
    columns = {name: four().corpus.column(name) for name in ("turns", "turn_flags")}
    columns |= {"turn_alignment": alignment, "turn_consistency": consistency}
    return Corpus({"id": ["w", "x", "y", "z"], **columns}, lambda rows: {}).items()


def test_grace_is_the_mean_of_alignment_and_of_consistency_at_the_turns_trained_on() -> None:
    items = scored(
        [[1.0, 0.5, 0.0], [0.2, 0.4], [None, None], [0.1, 0.2, 0.3]],
        [[None, 0.5, 1.0], [None, -0.3], [None, None], [None, 0.0, 0.0]],
    )
    assert api.score_grace(items) == pytest.approx([0.625, 0.0, -1.0, 0.1])
    assert api.score_grace(items, consistency=0.0) == pytest.approx([0.5, 0.3, -1.0, 0.2])
    assert api.score_grace(items, consistency=1.0) == pytest.approx([0.75, -0.3, -1.0, 0.0])
    first = api.keep_head(items, max_turns=1)
    assert api.score_grace(first) == pytest.approx([0.5, 0.1, -1.0, 0.05]), "a first turn is consistent with nothing"
    with pytest.raises(ValueError, match="consistency 2 must be within"):
        api.score_grace(items, consistency=2)


def test_a_corpus_without_grace_says_how_to_get_it() -> None:
    with pytest.raises(ValueError, match="set spec.corpus.grace to true, or run `curateevo ingest --grace MODEL`"):
        api.score_grace(four())


def test_a_rank_compares_an_item_with_its_group_alone() -> None:
    items = four()
    assert api.score_rank(items, [5.0, 5.0, 7.0, 6.0], by="turns") == (0.25, 0.25, 0.75, 0.75)
    assert api.score_rank(items, [5.0, 5.0, 5.0, 5.0], by="turns") == (0.75, 0.75, 0.25, 0.25), "earlier before later"
    assert api.score_rank(items, [5.0, 1.0, 7.0, 6.0], by="id") == (0.5,) * 4


def test_decisions_take_scores() -> None:
    items = four()
    scores = [0.1, 0.9, 0.5, 0.5]
    assert rows(api.keep_between(items, scores, low=0.5, high=0.8)) == [2, 3]
    assert rows(api.keep_top(items, scores, count=2)) == [1, 2]
    assert rows(api.keep_top(items, scores, turns=5)) == [1, 2]
    assert rows(api.keep_top(items, [0.1, 0.9, 0.5, 0.6], turns=4)) == [1, 2], "item 3 does not fit"
    assert rows(api.best_of(items, scores)) == [1, 2], "by task, ties to fewer turns"
    with pytest.raises(ValueError, match="3 scores for 4 items"):
        api.keep_top(items, scores[:3], count=1)
    with pytest.raises(ValueError, match="not a number"):
        api.keep_between(items, [math.nan] * 4)


@given(made=ROWS, budget=st.integers(0, 60))
@settings(max_examples=40)
def test_a_budget_of_turns_is_never_passed_and_no_item_that_fits_is_left_out(made: list[Any], budget: int) -> None:
    items = corpus_of_rows(made).items()
    kept = api.keep_top(items, api.score_outcome(items), turns=budget)
    used = sum(len(i.turns) for i in kept)
    assert used <= budget
    left = [i for i in items if i.row not in set(rows(kept))]
    assert all(used + len(i.turns) > budget for i in left)


@given(made=ROWS, max_turns=st.integers(1, 4), context_turns=st.integers(0, 3))
@settings(max_examples=60)
def test_segments_train_on_every_turn_once(made: list[Any], max_turns: int, context_turns: int) -> None:
    items = corpus_of_rows(made).items()
    cut = api.segment(items, max_turns=max_turns, context=context_turns)
    for item in items:
        parts = [i for i in cut if i.row == item.row]
        assert [t for part in parts for t in part.trained] == list(item.turns)
        for part in parts:
            assert len(part.trained) <= max_turns and len(part.masked) <= context_turns
            assert all(t < part.trained[0] for t in part.masked)
            flags = corpus_of_rows(made).column("turn_flags")[item.row]
            assert not any(flags[t] & ASKED for t in part.trained[1:]), "a segment holds two requests"


def test_failures_are_masked_and_what_stays_is_marked() -> None:
    items = corpus_of([run(0, MENDED), run(1, BAD)]).items()
    masked = api.mask_failed_turns(items)
    assert [(i.turns, i.masked, i.trained) for i in masked] == [((0, 1, 2, 3), (0,), (1, 2, 3)), ((0, 1), (0,), (1,))]
    assert [i.masked for i in api.keep_tail(masked, max_turns=2)] == [(), (0,)]
    assert rows(api.keep_head(masked, max_turns=1)) == [], "nothing to train on is left"


@given(made=ROWS, share=st.sampled_from([0.01, 0.3, 0.5, 1.0]))
@settings(max_examples=40)
def test_picked_steps_are_the_share_asked_for(made: list[Any], share: float) -> None:
    items = corpus_of_rows(made).items()
    for before, after in zip(items, api.pick_steps(items, share=share), strict=True):
        assert len(after.trained) == math.ceil(share * len(before.turns))
        assert after.turns[-1] == after.trained[-1], "a masked turn after the last one is of no use"


def test_picked_steps_are_important_first_and_then_diverse() -> None:
    def turn(said: str, seen: str) -> Turn:
        return Turn((), said, (Call("c" + said, said, "{}"),), (seen,))

    turns = (
        turn("alpha", "parcel for Ana"),
        turn("alpha", "parcel for Ana"),
        turn("beta", "nothing of it"),
        turn("gamma", "ok"),
    )
    made = run(0, GOOD)
    source = Trajectory(made.id, "x", made.task, (), None, ("ship the parcel for Ana",), turns)
    items = corpus_of([source]).items()
    assert [i.trained for i in api.pick_steps(items, share=0.25)] == [(0,)], "the state is the goal"
    assert [i.trained for i in api.pick_steps(items, share=0.5)] == [(0, 2)], "turn 1 does the same in a like state"
    assert [i.masked for i in api.pick_steps(items, share=0.5)] == [(1,)]
    assert [i.trained for i in api.pick_steps(items, share=0.5, diversity=0.0)] == [(0, 1)]


def test_contrasts_are_where_a_failure_did_something_else_in_the_same_place() -> None:
    other: list[Step] = [GOOD[0], ("ship", {"to": "Eve"}, "ok")]
    items = corpus_of([run(0, GOOD), run(1, other, success=False), run(2, GOOD), run(3, GOOD)]).items()
    points = api.rl_contrasts(items, context(), count=9)
    assert [(p.row, p.turn, p.reward) for p in points] == [(0, 1, "action_match")], "the first call was the same"
    assert api.rl_contrasts(items, context(), count=0) == ()
    assert api.rl_contrasts(items.keep(lambda i: i.row > 1, "x"), context(), count=9) == ()
    across = api.rl_contrasts(items, context(), count=9, by="family")
    assert [(p.row, p.turn) for p in across] == [(0, 1), (2, 1), (3, 1)], "other tasks in the same place"


@given(made=ROWS, count=st.integers(0, 9))
@settings(max_examples=40)
def test_contrasts_are_of_tasks_with_mixed_outcomes(made: list[Any], count: int) -> None:
    items = corpus_of_rows(made).items()
    tasks = api.rl_contrasts(items, context(), count=count)
    assert len(tasks) <= count and tasks == api.rl_contrasts(items, context(), count=count)
    outcomes: dict[int, set[Any]] = {}
    for row in made:
        outcomes.setdefault(row[3], set()).add(row[2])
    assert all(outcomes[made[t.row][3]] >= {True, False} and t.lineage == ("rl_contrasts",) for t in tasks)


@given(made=ROWS, per_tool=st.integers(1, 6), most=st.integers(1, 5))
@settings(max_examples=40)
def test_tools_are_balanced_upwards_alone(made: list[Any], per_tool: int, most: int) -> None:
    items = corpus_of_rows(made).items()
    balanced = api.balance_tools(items, per_tool=per_tool, max_copies=most)
    assert rows(balanced) == rows(items) and all(1 <= i.copies <= most for i in balanced)
    for tool in {t for tools in items.feature("tools") for t in tools}:
        called = [i for i in balanced if tool in items.corpus.column("tools")[i.row]]
        total = sum(i.copies for i in called)
        assert total >= per_tool or all(i.copies == most for i in called)


@given(made=ROWS, bins=st.integers(1, 4), per_group=st.integers(1, 5))
@settings(max_examples=40)
def test_scores_are_balanced_over_bins(made: list[Any], bins: int, per_group: int) -> None:
    items = corpus_of_rows(made).items()
    balanced = api.balance_scores(items, context(), api.score_turns(items), per_group=per_group, bins=bins)
    total = sum(i.copies for i in balanced)
    assert total % per_group == 0 and 1 <= total // per_group <= bins
    assert balanced == api.balance_scores(items, context(), api.score_turns(items), per_group=per_group, bins=bins)


def test_families_that_fail_are_repeated() -> None:
    items = four()
    failing = context(failures=({"mode": "loop", "families": {"ship": 1, "buy": 1}},))
    assert [i.copies for i in api.upsample_failures(items, failing, boost=4.0)] == [3] * 4
    assert api.upsample_failures(items, context()) == items


def test_calls_are_equal_whatever_is_said_and_in_whatever_case() -> None:
    loud = [("look_up", {"name": "ANA"}, "ok"), ("ship", {"code": "willow", "to": "ana"}, "fine")]
    items = corpus_of([run(0, GOOD), run(1, loud), run(2, GOOD)]).items()
    assert rows(api.drop_same_calls(items)) == [0, 2], "two tasks"
    assert rows(api.drop_same_calls(items, by="family")) == [0]
    assert call_hash(Turn((), "x")) == 0


def test_what_each_turn_is_and_fails_with_is_a_feature() -> None:
    again: list[Step] = [("look_up", {}, "ok"), ("ship", {"to": "x"}, "error: no  such\nplace"), ("look_up", {}, "ok")]
    frame = features_of([run(0, again)])
    flags, errors, tools = (frame[c][0].to_list() for c in ("turn_flags", "turn_errors", "turn_tools"))
    assert [bool(f & TurnFlag.NO_OP) for f in flags] == [False, False, True, False]
    assert errors == ["", "error: no such place", "", ""] and tools == ["look_up", "ship", "look_up", ""]
    assert not any(f & TurnFlag.ASKED for f in flags)


def test_tools_and_errors_select_by_what_is_kept() -> None:
    items = corpus_of([run(0, GOOD), run(1, BAD), run(2, MENDED)]).items()
    assert rows(api.keep_tools(items, ["look_up"])) == [0, 2]
    assert rows(api.drop_tools(items, ["look_up"])) == [1]
    assert rows(api.keep_errors(items, "CODE missing")) == [1, 2]
    assert rows(api.drop_errors(items, r"order \d+")) == [0]
    assert rows(api.keep_errors(api.drop_error_turns(items), "code")) == [], "the failed turns are gone"


def test_named_benchmarks_are_left_out() -> None:
    items = four()
    assert rows(api.decontaminate(items, {"task1": "x"})) == [0, 1]
    assert rows(api.decontaminate(items, {"other": "Please ship parcel 3!"})) == [0, 1, 2]
    assert (
        api.decontaminate(items, {"other": "something else"}).items == items.keep(lambda i: True, "decontaminate").items
    )


SKETCHES = st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=12)


@given(sketches=SKETCHES, threshold=st.sampled_from([0.2, 0.6, 0.8, 1.0]))
@settings(max_examples=60)
def test_near_duplicates_are_those_of_the_pairwise_definition(sketches: list[list[int]], threshold: float) -> None:
    columns: dict[str, list[Any]] = {
        "id": sketches,
        "turns": [1] * len(sketches),
        "minhash": sketches,
        "signature": [""] * len(sketches),
    }
    kept: list[int] = []
    for row, sketch in enumerate(sketches):
        if not any(api.similarity(sketch, sketches[other]) >= threshold for other in kept):
            kept.append(row)
    assert rows(api.drop_near_duplicates(Corpus(columns, lambda wanted: {}).items(), threshold=threshold)) == kept


def test_parts_of_one_trajectory_are_no_near_duplicates_of_each_other() -> None:
    columns: dict[str, list[Any]] = {"id": [0, 1], "turns": [2, 2], "minhash": [[1, 2], [1, 2]], "signature": ["", ""]}
    items = Corpus(columns, lambda wanted: {}).items()
    first, second = items.items
    parts = [replace(first, turns=(0,)), replace(first, turns=(1,)), replace(second, turns=(0,))]
    kept = api.drop_near_duplicates(replace(items, items=tuple(parts)))
    assert [(item.row, item.turns) for item in kept] == [(0, (0,)), (0, (1,))]
