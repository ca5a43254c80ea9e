"""Retrieval of notes, and where they are put."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curateevo_jobs.agents.memory import MemoryItem, Retriever, parse_item, query_of, with_notes

FACTS = [MemoryItem("Oslo code willow"), MemoryItem("Paris code karma"), MemoryItem("Ana pin amber")]


def test_the_note_that_shares_the_rare_word_is_found() -> None:
    assert Retriever(FACTS, 3).notes("Ship the lamp to Oslo.") == ["Oslo code willow"]


def test_best_first_and_at_most_k() -> None:
    retriever = Retriever(FACTS, 2)
    assert retriever.notes("the code of Paris, the pin of Ana") == ["Ana pin amber", "Paris code karma"]


def test_equal_scores_keep_the_order_of_the_items() -> None:
    items = [MemoryItem("red apple"), MemoryItem("red pear"), MemoryItem("red plum")]
    assert Retriever(items, 3).notes("red") == ["red apple", "red pear", "red plum"]


@pytest.mark.parametrize("query", ["", "the of and", "zebra", "!?"])
def test_what_nothing_matches_has_no_notes(query: str) -> None:
    assert Retriever(FACTS, 3).notes(query) == []


def test_an_empty_memory_has_no_notes() -> None:
    assert Retriever([], 3).notes("Oslo") == []
    assert Retriever([MemoryItem("the")], 3).notes("the") == []


def test_titles_are_searched_and_contents_shown_on_one_line() -> None:
    item = parse_item({"title": "when a refund fails", "content": "Call\n  again.", "scope": "", "evidence": ["t"]})
    assert Retriever([item], 1).notes("refund please") == ["Call again."]


def test_the_query_is_the_first_user_message() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "user", "content": "later"},
    ]
    assert query_of(messages) == "Hello"
    assert query_of([]) == ""


USER = {"role": "user", "content": "Ship it."}
SYSTEM = {"role": "system", "content": "be kind"}


def test_notes_come_first_as_a_system_message() -> None:
    assert with_notes([USER], ["a", "b"], "system") == [{"role": "system", "content": "notes:\na\nb"}, USER]


def test_notes_are_appended_to_a_system_message_that_stands_there() -> None:
    messages = with_notes([SYSTEM, USER], ["a"], "system")
    assert messages == [{"role": "system", "content": "be kind\n\nnotes:\na"}, USER]


def test_notes_stand_before_the_users_text() -> None:
    assert with_notes([SYSTEM, USER], ["a"], "user")[1]["content"] == "notes:\na\n\nShip it."


def test_the_messages_given_are_not_changed() -> None:
    messages = [dict(SYSTEM), dict(USER)]
    with_notes(messages, ["a"], "system")
    with_notes(messages, ["a"], "user")
    assert messages == [SYSTEM, USER]
    assert with_notes(messages, [], "system") == messages


@given(st.lists(st.text(), max_size=8), st.text(), st.integers(1, 4))
def test_any_text_can_be_stored_and_asked_for(contents: list[str], query: str, k: int) -> None:
    notes = Retriever([MemoryItem(c) for c in contents], k).notes(query)
    assert len(notes) <= k
    assert notes == Retriever([MemoryItem(c) for c in contents], k).notes(query)
    assert all("\n" not in note for note in notes)
