"""Operators keep order, stay within their trajectories, are deterministic, and idempotent where they filter."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.policy import api
from curateevo.policy.operators.items import Context, Corpus, Item, Items, TurnFlag
from curateevo.policy.recipe import decode, encode
from curateevo.trajectories.features import features_of
from curateevo.trajectories.formats.openai import parse_openai
from curateevo.trajectories.model import TaskRef, Trajectory, Turn
from tests.core.policy import operator_table

FLAGS = st.lists(st.integers(0, 1023), min_size=1, max_size=6)
ROWS = st.lists(
    st.tuples(FLAGS, st.sampled_from("abc"), st.sampled_from([True, False, None]), st.integers(0, 3)),
    min_size=1,
    max_size=25,
)
FILTERS = {
    "keep_successes": api.keep_successes,
    "keep_valid": api.keep_valid,
    "keep_grounded": api.keep_grounded,
    "keep_recovered": api.keep_recovered,
    "keep_reliable": api.keep_reliable,
    "keep_short": lambda items: api.keep_short(items, max_turns=3),
    "drop_malformed_turns": api.drop_malformed_turns,
    "fold_repeats": api.fold_repeats,
    "drop_unused_calls": api.drop_unused_calls,
    "drop_error_turns": api.drop_error_turns,
    "keep_tail": lambda items: api.keep_tail(items, max_turns=2),
    "drop_exact_duplicates": api.drop_exact_duplicates,
    "drop_near_duplicates": api.drop_near_duplicates,
    "drop_same_calls": api.drop_same_calls,
    "drop_no_ops": api.drop_no_ops,
    "mask_failed_turns": api.mask_failed_turns,
    "keep_head": lambda items: api.keep_head(items, max_turns=2),
    "shorten_results": lambda items: api.shorten_results(items, max_chars=50),
    "keep_tools": lambda items: api.keep_tools(items, ["t1", "t2"]),
    "drop_tools": lambda items: api.drop_tools(items, ["t1"]),
    "keep_errors": lambda items: api.keep_errors(items, "NOT found"),
    "drop_errors": lambda items: api.drop_errors(items, "not found"),
    "keep_quiet": lambda items: api.keep_between(items, api.score_noise(items), high=0.5),
    "keep_top": lambda items: api.keep_top(items, api.score_outcome(items), count=3),
    "keep_top_turns": lambda items: api.keep_top(items, api.score_tokens(items), turns=7),
    "best_of": lambda items: api.best_of(items, api.score_outcome(items)),
    "drop_middle": lambda items: api.drop_middle(items, head=1, tail=1),
    "pick_steps": lambda items: api.pick_steps(items, share=0.5),
    "decontaminate": lambda items: api.decontaminate(items, {"task1": "another"}),
    "balance_tools": lambda items: api.balance_tools(items, per_tool=2),
}
UNSTABLE = {"keep_reliable", "pick_steps"}
"""Its rates, or shares, are of what it is given, so a second pass may cut again."""


def corpus_of(rows: list[Any]) -> Corpus:
    columns: dict[str, list[Any]] = {
        "turn_flags": [r[0] for r in rows],
        "turns": [len(r[0]) for r in rows],
        "family": [r[1] for r in rows],
        "signature": [r[1] for r in rows],
        "success": [r[2] for r in rows],
        "content_hash": [str(r[3]) for r in rows],
        "minhash": [[r[3]] * 4 for r in rows],
        "id": [str(n) for n in range(len(rows))],
        "env": ["w" if r[3] else None for r in rows],
        "task_id": [f"task{r[3]}" for r in rows],
        "reward": [None for _ in rows],
        "tools": [sorted({f"t{f % 3}" for f in r[0]}) for r in rows],
        "turn_tools": [[f"t{f % 3}" if f & 1 else "" for f in r[0]] for r in rows],
        "turn_calls": [[f % 5 if f & 1 else 0 for f in r[0]] for r in rows],
        "turn_errors": [["Error: not found" if f & 2 else "" for f in r[0]] for r in rows],
        "turn_tokens": [list(r[0]) for r in rows],
    }
    return Corpus(columns, lambda wanted: {n: written(n, rows[n]) for n in wanted})


def written(number: int, row: Any) -> Trajectory:
    """Text for a row: a turn for each flag, which says its number."""
    turns = tuple(Turn((), f"turn {n} says {flags}") for n, flags in enumerate(row[0]))
    return Trajectory(str(number), "x", TaskRef(f"task{row[3]}", "do it"), (), None, (f"do it {row[1]}",), turns)


@pytest.mark.parametrize("name", FILTERS)
@given(rows=ROWS)
@settings(max_examples=40)
def test_filters(name: str, rows: list[Any]) -> None:
    items = corpus_of(rows).items()
    kept = FILTERS[name](items)
    assert FILTERS[name](items) == kept, "not deterministic"
    order = [i.row for i in kept]
    assert order == sorted(order) and set(order) <= set(range(len(rows)))
    for item in kept:
        assert (
            item.turns
            and set(item.turns) <= set(range(len(rows[item.row][0])))
            and list(item.turns) == sorted(item.turns)
        )
        assert set(item.masked) < set(item.turns) and list(item.masked) == sorted(item.masked)
        assert item.lineage or item == Item(item.row, tuple(range(len(rows[item.row][0])))), "no provenance"
    recipe = decode({**encode(api.Resources(kept, (), ())), "logs": [], "metrics": {}}, items.corpus.column("turns"))
    assert recipe.sft == kept.items
    if name not in UNSTABLE:
        again = [(i.row, i.turns, i.masked, i.copies) for i in FILTERS[name](kept)]
        assert again == [(i.row, i.turns, i.masked, i.copies) for i in kept], "not idempotent"


@given(rows=ROWS, per_group=st.integers(1, 9))
@settings(max_examples=40)
def test_balancing_brings_every_group_to_its_size_and_caps_only_cut(rows: list[Any], per_group: int) -> None:
    items = corpus_of(rows).items()

    def sizes(found: Items) -> dict[Any, int]:
        return {k: sum(i.copies for i in g) for k, g in found.groups("family").items()}

    def context() -> Context:
        return Context(params={}, rng=random.Random(3), family_success={"a": 0.0, "b": 1.0})

    balanced = api.balance(items, context(), per_group=per_group)
    assert (
        set(sizes(balanced).values()) == {per_group} and api.balance(items, context(), per_group=per_group) == balanced
    )
    boosted = sizes(api.match_failures(items, context(), per_group=per_group, boost=2.0))
    assert boosted.get("a", 2 * per_group) == 2 * per_group and boosted.get("b", per_group) == per_group
    capped = sizes(api.cap(items, context(), per_group=per_group))
    assert capped == {k: min(per_group, n) for k, n in sizes(items).items()}


@given(rows=ROWS, count=st.integers(0, 30))
@settings(max_examples=40)
def test_what_operators_give_passes_the_check_of_references(rows: list[Any], count: int) -> None:
    corpus = corpus_of(rows)
    ctx = Context(params={}, rng=random.Random(1))
    items = api.fold_repeats(corpus.items())
    tasks = api.rl_tasks(items, ctx, count=count, aim=["a"])
    assert len(tasks) <= count
    recipe = decode({**encode(api.Resources(items, tasks, ())), "logs": [], "metrics": {}}, corpus.column("turns"))
    assert [(i.row, i.turns) for i in recipe.sft] == [(i.row, i.turns) for i in items]
    assert [(t.row, t.turn, t.reward, t.aimed) for t in recipe.rl] == [
        (t.row, t.turn, t.reward, t.aimed) for t in tasks
    ]


def talk(number: int, arguments: str, result: str, prompt: str) -> Any:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": result},
        {"role": "assistant", "content": "Done."},
    ]
    return parse_openai({"id": f"t{number}", "messages": messages, "success": True}, "x")


def real_corpus(*rows: tuple[str, str, str]) -> Corpus:
    made = [talk(n, *row) for n, row in enumerate(rows)]
    frame = features_of(made)
    return Corpus({c: frame[c].to_list() for c in frame.columns}, lambda wanted: {n: made[n] for n in wanted})


def test_facts_are_what_successful_results_add_to_an_argument_and_never_contradict() -> None:
    corpus = real_corpus(
        ('{"city": "Oslo"}', "ok Oslo code willow", "weather in Oslo"),
        ('{"city": "Oslo"}', "ok Oslo code willow", "is it raining in Oslo"),
        ('{"city": "Rome"}', "ok Rome gate 4", "weather in Rome"),
        ('{"city": "Rome"}', "ok Rome gate 5", "rain in Rome"),
        ('{"city": "Lima"}', "error Lima code amber", "weather in Lima"),
        ('{"city": "Cairo"}', "ok", "weather in Cairo"),
    )
    facts = api.memory_facts(corpus, limit=10)
    texts = corpus.trajectories(range(len(corpus)))
    assert [texts[f.row].turns[f.turn].results[f.result][f.start : f.end] for f in facts] == ["Oslo code willow"]
    assert api.memory_facts(corpus, limit=0) == ()


def test_a_value_is_grounded_in_the_request_or_in_a_fact() -> None:
    corpus = real_corpus(
        ('{"city": "Oslo"}', "ok Oslo code willow", "weather in Oslo"),
        ('{"city": "Oslo", "code": "willow"}', "ok", "ship it to Oslo"),
        ('{"city": "Oslo", "code": "amber"}', "error", "ship it to Oslo"),
        ('{"minutes": 5}', "ok", "a timer for 7 minutes"),
        ('{"minutes": 7}', "ok", "a timer for 7 minutes"),
    )
    flagged = [bool(flags[0] & TurnFlag.UNGROUNDED) for flags in corpus.column("turn_flags")]
    assert flagged == [False, True, True, True, False]
    assert [i.row for i in api.keep_grounded(corpus.items())] == [0, 4]
    facts = api.memory_facts(corpus, limit=10)
    assert [i.row for i in api.keep_grounded(corpus.items(), facts=facts)] == [0, 1, 4]


def test_the_best_kind_of_a_family_is_kept_however_bad_it_is() -> None:
    call, done = int(TurnFlag.CALL), int(TurnFlag.FINAL)
    rows = [([call, done], "a", False, n) for n in range(8)] + [([call, done], "a", True, 9), ([done], "a", False, 10)]
    kept = api.keep_reliable(corpus_of(rows).items(), min_success=0.5, prior=0.0)
    assert [i.row for i in kept] == list(range(9))


def test_the_table_of_operators_is_that_of_their_docstrings() -> None:
    page = operator_table.PAGE.read_text(encoding="utf-8")
    assert operator_table.page_with_table(page) == page, "run `make operators`"
    assert all(f"`{name}(" in page for name in api.__all__ if name[0].islower())
