"""What is known of a turn without a model: look-ups that nothing uses."""

from __future__ import annotations

from typing import Any

import pytest

from curateevo.trajectories.features import features_of
from curateevo.trajectories.flags import TurnFlag, looks_up
from curateevo.trajectories.formats.openai import parse_openai


def unused(*steps: tuple[str, str, str], answer: str = "Done.", request: str = "refund Ana 7310") -> list[bool]:
    """Of each step (tool, its argument, its result), whether it is marked; then the answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": request}]
    for number, (tool, argument, result) in enumerate(steps):
        function = {"name": tool, "arguments": f'{{"a": "{argument}"}}'}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    messages.append({"role": "assistant", "content": answer})
    [flags] = features_of([parse_openai({"messages": messages}, "x")])["turn_flags"].to_list()
    return [bool(f & TurnFlag.UNUSED) for f in flags]


FIND, REFUND = ("find_order", "Ana", "order 42"), ("refund_order", "42", "ok")
WEATHER = ("get_weather", "Oslo", "ok 12C")


def test_a_detour_is_a_look_up_that_nothing_uses() -> None:
    assert unused(FIND, WEATHER, REFUND) == [False, True, False, False]
    assert unused(FIND, REFUND, WEATHER) == [False, False, False, False], "the last call stays"
    assert unused(("get_weather", "Oslo", "error: no such city"), FIND, REFUND) == [False] * 4, "errors are reacted to"


def test_what_an_answer_tells_is_used() -> None:
    assert unused(FIND, WEATHER, REFUND, answer="Refunded. It is 12C in Oslo.") == [False] * 4
    assert unused(("get_user", "Ana", "id 7310"), REFUND, answer="Ana (7310) has it.") == [True, False, False], (
        "the user had said so"
    )


def test_what_may_change_something_is_no_detour() -> None:
    assert unused(("cancel_order", "41", '{"status": "cancelled"}'), FIND, REFUND) == [False] * 4
    assert unused(("think", "hard", ""), FIND, REFUND) == [True, False, False, False]


@pytest.mark.parametrize("name", ["get_weather", "getWeather", "files.read", "crm__search_users", "list", "is_open"])
def test_names_of_look_ups(name: str) -> None:
    assert looks_up(name)


@pytest.mark.parametrize("name", ["issue_refund", "listen", "send_message", "check_out", "getter.update", "f", ""])
def test_names_of_others(name: str) -> None:
    assert not looks_up(name)
