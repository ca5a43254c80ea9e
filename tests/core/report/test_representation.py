"""The picture of what is over- and under-represented, and the words for the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from curateevo.report.representation import EDGE, WIDTH, Ratio, groups_of, most_biased, ratio_picture
from tests.core.report.runs import representation


def test_only_what_is_sure_is_named_the_most_so_first() -> None:
    over, under = most_biased({"representation": representation(1.0)}, 4)
    assert over == ["task family refund × 1.40 (1.20 to 1.60)", "turns of the trajectory 1 to 2 × 1.20 (1.10 to 1.30)"]
    assert under[0] == "task family account × 0.00 (0.00 to 0.11)" and len(under) == 2
    assert most_biased({"representation": representation(1.0)}, 1) == (over[:1], under[:1])


def test_a_dimension_of_one_value_says_nothing() -> None:
    titles = [group.title for group in groups_of({"representation": representation(1.0)})]
    assert titles == ["task family", "turns of the trajectory"]


@pytest.mark.parametrize(
    ("low", "high", "ratio", "side"),
    [(1.1, 2.0, 1.5, "over"), (0.2, 0.9, 0.5, "under"), (0.9, 1.2, 1.1, "same"), (None, None, 3.0, "same")],
)
def test_the_colour_says_what_the_interval_says(low: Any, high: Any, ratio: float, side: str) -> None:
    drawn = ratio_picture(Ratio(0.1, ratio, low, high), None)
    assert f'class="dot sft {side}"' in drawn and ("bar" in drawn) == (low is not None)


def test_what_is_off_the_scale_is_an_arrow_within_the_picture() -> None:
    none, many = (ratio_picture(Ratio(0.1, ratio, None, None), None) for ratio in (0.0, 100.0))
    assert "circle" not in none and f"M{EDGE:.1f} " in none and f"L{EDGE - 6:.1f} " in none
    assert "circle" not in many and f"L{WIDTH - EDGE + 6:.1f} " in many


@pytest.mark.parametrize(
    "profile",
    [None, {}, {"representation": 3}, {"representation": {"dimensions": [7, {"name": 1, "values": "x"}]}},
     {"representation": {"dimensions": [{"name": "tool", "values": [{"corpus": "much"}, {"value": "f", "corpus": True}]}]}}],
)  # fmt: skip
def test_a_profile_that_others_spoiled_gives_no_picture(profile: object) -> None:
    assert groups_of(profile) == () and most_biased(profile, 4) == ([], [])
