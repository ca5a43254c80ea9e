"""Numbers, charts and derived figures, each by example."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curateevo.report.charts import Mark, Point, change_bar, history_chart, marker, ticks
from curateevo.report.sections import MAX_DIFF_LINES, code_of
from curateevo.report.view import wilson
from curateevo.report.wording import clean, clip, count, duration, number, share, short, signed, size, when


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (number(0.1234), "0.123"),
        (number(-0.5), "−0.500"),
        (number(-0.0001), "0.000"),
        (number(math.nan), "–"),
        (signed(0.25), "+0.250"),
        (signed(0.0), "0.000"),
        (signed(-0.25), "−0.250"),
        (count(1234567), "1,234,567"),
        (share(0.5319), "53.2 %"),
        (duration(0), "0 s"),
        (duration(59.94), "59.9 s"),
        (duration(61), "1 min 1 s"),
        (duration(3599.9), "1 h 0 min"),
        (duration(90_000), "1 d 1 h"),
        (duration(math.inf), "–"),
        (size(234_754_048), "224 MiB"),
        (size(1 << 33), "8.0 GiB"),
        (when(1_790_000_000), "2026-09-21 14:13 UTC"),
        (when(1e300), "–"),
        (clip("abcdef", 3), "abc… (3 more characters)"),
        (short("abcdef", 3), "ab…"),
        (clean("a\u202eb\ud800é\tλ"), "a‹U+202E›b‹U+D800›é\tλ"),
    ],
)
def test_wording(text: str, wanted: str) -> None:
    assert text == wanted


@given(st.text(st.characters(exclude_categories=())))
def test_clean_text_can_always_be_encoded_and_holds_nothing_invisible(text: str) -> None:
    shown = clean(text)
    assert shown.encode("utf-8").decode("utf-8") == shown
    assert all(c.isprintable() or c.isspace() for c in shown)


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_wilson_holds_the_share_and_stays_between_0_and_1(p: float, n: int) -> None:
    low, high = wilson(p, n)
    assert 0 <= low <= p + 1e-12 and p - 1e-12 <= high <= 1


def test_wilson_is_as_published() -> None:
    assert wilson(0.1, 50) == pytest.approx((0.0435, 0.2136), abs=1e-4)
    assert wilson(0.5, 0) == (0.0, 1.0)


@given(st.floats(-1, 1), st.floats(0.01, 2), st.sampled_from([3, 4]))
def test_ticks_are_enough_and_inside(low: float, span: float, wanted: int) -> None:
    found = ticks(low, low + span, wanted)
    assert wanted - 1 <= len(found) <= 3 * wanted
    assert all(low - 1e-6 <= t <= low + span + 1e-6 for t in found)


def test_each_mark_has_a_shape_of_its_own() -> None:
    shapes = {str(marker(m, 8, 8)).split(">", 1)[1] for m in Mark}
    assert len(shapes) == len(Mark)


def test_a_chart_of_nothing_measured_is_empty() -> None:
    assert history_chart([Point(0, Mark.FAILED, None, None, None, None, None)], [("f", 0.1)]) == ""


def test_a_chart_stands_numbers_that_are_none() -> None:
    points = [
        Point(0, Mark.COMMITTED, 0.5, 0.4, 0.6, math.nan, math.inf),
        Point(1, Mark.RUNNING, math.nan, None, None, None, None),
    ]
    drawn = history_chart(points, [("<b>", 0.5), ("other", 0.5)])
    assert "nan" not in drawn and "inf" not in drawn and "<b>" not in drawn


def test_a_bar_of_a_change_needs_neither_side() -> None:
    assert "circle" not in change_bar(None, math.nan)


def test_code_is_cut_by_lines_and_by_characters() -> None:
    long = code_of("x\n" * 1000, 10**6, diff=True)
    assert (len(long.lines), long.left_out) == (MAX_DIFF_LINES, 1000 - MAX_DIFF_LINES)
    dear = code_of("<<<<<\n" * 10, 200, diff=False)
    assert len(dear.lines) == 3 and dear.left_out == 7
