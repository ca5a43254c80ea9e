"""Cut results keep errors whole and what later turns use first, and never grow."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.policy.shorten import GAP, needed_words, shorten
from curateevo.trajectories.flags import reads_like_error, words
from curateevo.trajectories.model import Call, Turn

TEXT = st.text("ab1 ,;\n", max_size=120)


@given(result=TEXT, limit=st.integers(1, 60), needed=st.sets(st.sampled_from(["a", "b1", "1"])))
@settings(max_examples=200)
def test_what_is_kept_stands_in_the_result_in_order_and_within_the_limit(
    result: str, limit: int, needed: set[str]
) -> None:
    cut = shorten(result, limit, needed)
    if len(result) <= limit:
        assert cut == result
        return
    assert len(cut.replace(GAP.strip(), "").replace(" ", "")) <= limit
    position = 0
    for part in cut.split(GAP.strip()):
        if not part.strip():
            continue
        found = result.find(part.strip(), position)
        assert found >= 0, "text that the result does not hold"
        position = found + len(part.strip())


def test_what_later_turns_use_is_kept_before_what_comes_first() -> None:
    result = ", ".join(f'"field{n}": "value{n}"' for n in range(40))
    later = Turn((), "It is 31 euros, field7.", (Call("c", "f", '{"x": "value20"}'),), ("ok",))
    needed = needed_words([later])
    assert {"value20", "31", "field7"} <= needed and "euros" not in needed
    cut = shorten(result, 100, needed)
    assert "value20" in cut and "value7" in cut and "value0" in cut and "value39" not in cut
    assert " ... " in cut and set(words(cut)) <= set(words(result))


def test_errors_stay_whole() -> None:
    error = "Error: " + "not found, " * 40
    assert reads_like_error(error) and shorten(error, 50, set()) == error


def test_a_result_of_one_long_piece_is_cut_at_the_limit() -> None:
    assert shorten("x" * 500, 50, set()) == "x" * 50 + " ..."
