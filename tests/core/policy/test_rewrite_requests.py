"""Requests to rewrite are references: they follow their turns, pass the border as they are, and forged ones are refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.api.errors import PolicyRejected
from curateevo.policy import api
from curateevo.policy.operators.items import Context, Corpus, Rewrite, RewriteKind
from curateevo.policy.recipe import decode, encode, encode_answers, parse_answers

TURNS = [3, 1, 4]
KINDS = st.sampled_from(list(RewriteKind))
REWRITES = st.builds(Rewrite, st.just(2), st.integers(0, 3), KINDS, st.sampled_from(["shorter", "polite"]))


def corpus() -> Corpus:
    columns: dict[str, list[Any]] = {"id": list("abc"), "turns": TURNS, "turn_flags": [[0] * n for n in TURNS]}
    return Corpus(columns, lambda rows: {})


def context(answers: dict[Rewrite, str] | None = None) -> Context:
    return Context({}, random.Random(0), rewritten=answers or {})


def test_the_first_pass_requests_and_changes_nothing_the_second_puts_answers_in_place() -> None:
    items, first = corpus().items(), context()
    last = {"turns": lambda item, turn, flags: turn == len(item.turns) - 1}
    assert api.request_rewrite(items, first, kind="answer", instruction=" be\n kind ", **last) == items
    assert list(first.requests) == [Rewrite(n, t - 1, RewriteKind.ANSWER, "be kind") for n, t in enumerate(TURNS)]
    answers = {Rewrite(1, 0, RewriteKind.ANSWER, "be kind"): "Gladly."}
    made = api.request_rewrite(items, context(answers), kind="answer", instruction="be kind", **last)
    assert [item.rewrites for item in made] == [(), tuple(answers), ()]
    both = api.request_rewrite(items, context(answers), kind="answer", instruction="be kind", keep=True)
    assert [(item.row, bool(item.rewrites)) for item in both] == [(0, False), (1, False), (1, True), (2, False)]


def test_a_later_rewrite_of_the_same_text_takes_the_place_of_the_earlier_one() -> None:
    answers = {Rewrite(1, 0, RewriteKind.ANSWER, words): words for words in ("once", "twice")}
    items = corpus().items()
    for words in ("once", "twice"):
        items = api.request_rewrite(items, context(answers), kind="answer", instruction=words)
    assert [r.instruction for item in items for r in item.rewrites] == ["twice"]


@pytest.mark.parametrize("instruction", ["", " \n", "x" * 501])
def test_an_instruction_has_words_and_is_short(instruction: str) -> None:
    with pytest.raises(ValueError, match="request_rewrite"):
        api.request_rewrite(corpus().items(), context(), kind="answer", instruction=instruction)


@given(
    st.lists(REWRITES, unique_by=lambda r: (r.turn, r.kind)), st.sets(st.integers(0, 3), min_size=1), st.lists(REWRITES)
)
@settings(max_examples=60)
def test_requests_pass_the_border_and_go_with_their_turns(
    rewrites: list[Rewrite], kept: set[int], requests: list[Rewrite]
) -> None:
    item = api.Item(2, tuple(sorted(kept)), rewrites=tuple(rewrites))
    resources = api.Resources(api.Items(corpus(), (item,)), (), ())
    found = decode(json.loads(json.dumps(encode(resources, dict.fromkeys(requests)))), TURNS)
    opening = {r for r in rewrites if r.kind is RewriteKind.PROMPT and r.turn == 0}
    assert set(found.sft[0].rewrites) == {r for r in rewrites if r.turn in kept} | opening
    assert found.requests == tuple(dict.fromkeys(requests))
    answers = {request: request.instruction for request in requests}
    assert parse_answers(json.loads(json.dumps(encode_answers(answers)))) == answers


FORGED: dict[str, dict[str, Any]] = {
    "a turn that is not kept": {"sft": [[2, [0], 1, 0, [], None, [[1, "answer", 0]]]]},
    "a turn that is not there": {"sft": [[2, [0], 1, 0, [], None, [[9, "answer", 0]]]]},
    "a text twice": {"sft": [[2, [0], 1, 0, [], None, [[0, "answer", 0], [0, "answer", 0]]]]},
    "a kind of its own": {"sft": [[2, [0], 1, 0, [], None, [[0, "calls", 0]]]]},
    "an instruction that is not there": {"sft": [[2, [0], 1, 0, [], None, [[0, "answer", 1]]]]},
    "rewrites that are an object": {"sft": [[2, [0], 1, 0, [], None, {"0": 1}]]},
    "a request of no row": {"requests": [[7, 0, "answer", 0]]},
    "a request that is a number": {"requests": [7]},
    "a long instruction": {"instructions": ["x" * 501]},
    "an instruction that is a number": {"instructions": [7]},
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_requests_are_refused(what: str) -> None:
    answer = {"sft": [], "rl": [], "memory": [], "lineages": [[]], "instructions": ["x"], **FORGED[what]}
    with pytest.raises(PolicyRejected, match="^resources"):
        decode(answer, TURNS)
