"""JSON text: read as the standard library reads it, whoever reads it; texts that UTF-8 can't hold are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curateevo.trajectories.json_text import canonical, dumps, load_line, loads

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(values, st.booleans())
def test_what_json_writes_is_read_as_json_reads_it(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert repr(loads(text)) == repr(json.loads(text)) == repr(load_line(text.encode()))
    assert dumps(value) == json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize(
    "text", ["[1e400, -Infinity, NaN]", '{"a": 1, "a": 2}', "123456789012345678901", ' {"a": -0.0}\n']
)
def test_numbers_and_names_that_readers_differ_in(text: str) -> None:
    assert repr(loads(text)) == repr(json.loads(text)) == repr(load_line(text.encode()))


@pytest.mark.parametrize("text", ["[1,]", "{", "01", "nul", '{"a": 1} x', ""])
def test_what_is_no_json_is_told_in_the_words_of_the_standard_library(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as told:
        json.loads(text)
    with pytest.raises(json.JSONDecodeError) as found:
        loads(text)
    assert str(found.value) == str(told.value)


def test_half_of_a_surrogate_pair_is_refused_and_written_as_an_escape() -> None:
    with pytest.raises(ValueError, match=r"half of a surrogate pair, \\ud800"):
        loads(r'{"a": ["x \ud800"]}')
    assert loads(r'"\ud83d\ude00"') == "😀"
    assert dumps({"a": "\ud800 é"}) == r'{"a": "\ud800 \u00e9"}'


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.integers(), min_size=2))
def test_equal_values_have_one_canonical_text(value: dict[str, int]) -> None:
    assert canonical(value) == canonical(dict(reversed(value.items())))
