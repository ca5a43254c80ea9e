"""What each rule finds in an episode, alone and beside successes; and what it leaves alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curateevo.evolver.diagnosis import Mode, diagnose
from curateevo.evolver.diagnosis.episode import Origin, read_episode, reckoned, stands_in
from curateevo.evolver.diagnosis.said import changes_state, claimed_actions
from curateevo.trajectories.flags import words

PAGE = {
    "type": "function",
    "function": {
        "name": "page",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string"}, "topic": {"type": "string"}},
            "required": ["to", "topic"],
        },
    },
}
FIND, REFUND = ({"type": "function", "function": {"name": name}} for name in ("find", "refund_order"))
BOB = {"to": "Bob", "topic": "lamp"}
CODE = {"city": "Oslo", "code": "amber"}


def run(
    *moves: Any,
    success: float = 0.0,
    prompt: str = "Tell Bob about the lamp.",
    task: str = "t",
    repeat: int = 0,
    notes: str = "",
    tools: tuple[Any, ...] = (),
) -> dict[str, Any]:
    """An episode of these moves: (tool, arguments, result), or an answer's text."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"notes:\n{notes}\n\n{prompt}" if notes else prompt}]
    for number, move in enumerate(moves):
        if isinstance(move, str):
            messages.append({"role": "assistant", "content": move})
            continue
        name, arguments, result = move
        call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "name": name, "content": result})
    return {
        "task": task,
        "family": "f",
        "repeat": repeat,
        "success": success,
        "messages": messages,
        "tools": list(tools),
    }


def mode_of(failed: dict[str, Any], *others: dict[str, Any], checks: dict[str, bool] | None = None) -> tuple[Mode, str]:
    """Mode and quote of one failure beside other episodes."""
    [finding] = diagnose([failed, *others], {(failed["task"], failed["repeat"]): checks or {}}).findings
    return finding.mode, finding.evidence.quote


GOOD = [run(("page", BOB, "ok"), "Done.", success=1.0, task=f"good-{n}") for n in range(4)]
FOUND = [
    run(("find", {"customer": "Bob"}, "order 42"), ("refund_order", {"order": 42}, "ok"), "Done.", success=1.0, task=f"g{n}")
    for n in range(4)
]  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "checks", "mode", "quote"),
    [
        (run(("page", {"to": "Bob"}, "error arguments"), "Done.", tools=(PAGE,)), {}, Mode.SCHEMA_VIOLATION, '{"to": "Bob"}'),
        (run(("phone", BOB, "error"), "Done.", tools=(PAGE,)), {}, Mode.SCHEMA_VIOLATION, "phone"),
        (run(*[("look", {"at": n}, f"x{n}") for n in "ab"]), {"out_of_turns": True}, Mode.OVER_LONG, '{"at": "b"}'),
        (run("Bob " * 9), {"context_full": True}, Mode.OVER_LONG, ("Bob " * 9)[:240]),
        (run(("ship", CODE, "error code"), "Done.", prompt="to Oslo", notes="ok Oslo code amber"), {}, Mode.MEMORY_MISLED, "error code"),
        (run(("ship", CODE, "ok"), "Done.", prompt="to Oslo", notes="ok Oslo code amber"), {"tools": True, "calls": False}, Mode.MEMORY_MISLED, json.dumps(CODE)),
        (run(("ship", CODE, "error code"), "Done.", prompt="to Oslo", notes="ok Oslo code willow"), {}, Mode.MEMORY_IGNORED, "amber"),
        (run(("find", {"customer": "Bob"}, "order 42"), "Fine. I have refunded order 42.", tools=(FIND, REFUND)), {}, Mode.EXECUTION_GAP, "I have refunded order 42."),
        (run(("find", {"customer": "Bob"}, "order 42"), ("refund_order", {"order": 77}, "error number"), "Done."), {}, Mode.BINDING_DRIFT, "77"),
        (run(("send", BOB, "error offline"), ("page", {"to": "Bob", "topic": "pen"}, "ok"), "Done."), {"tools": True, "calls": False}, Mode.BINDING_DRIFT, "pen"),
        (run(("page", BOB, "ok"), "Done."), {"tools": True, "calls": True}, Mode.NOISY_LABEL, "Done."),
        (run("Done."), {"tools": False}, Mode.NO_CALL, "Done."),
        (run(("page", BOB, "ok"), "Done."), {}, Mode.UNKNOWN, "Done."),
    ],
)  # fmt: skip
def test_a_mode_is_found_in_the_episode_alone(
    failed: dict[str, Any], checks: dict[str, bool], mode: Mode, quote: str
) -> None:
    assert mode_of(failed, checks=checks) == (mode, quote)


@pytest.mark.parametrize(
    ("failed", "peers", "mode", "quote"),
    [
        (run(("page", BOB, "ok"), "Done."), GOOD, Mode.NOISY_LABEL, "Done."),
        (run(("buy", {"item": "lamp"}, "ok"), "Done."), GOOD, Mode.WRONG_TOOL, "buy"),
        (run(("page", BOB, "ok"), ("buy", {"item": "lamp"}, "ok"), "Done."), GOOD, Mode.NEEDLESS_CALL, "buy"),
        (run(("find", {"customer": "Bob"}, "order 42"), "Done."), FOUND, Mode.STOPPED_EARLY, "find"),
        (run(("find", {"customer": "Bob"}, "order 42"), ("look", {"at": "pens"}, "7"), ("refund_order", {"order": 42}, "ok"), "Done."), FOUND, Mode.NEEDLESS_CALL, "look"),
        (run("Done."), GOOD, Mode.NO_CALL, "Done."),
        (run(("page", {"to": "Bob", "topic": "hat"}, "ok"), "Done."), GOOD, Mode.INVENTED_ARGUMENT, "hat"),
        (run(("page", {"to": "lamp", "topic": "Bob"}, "ok"), "Done."), GOOD, Mode.WRONG_ARGUMENT, '{"to": "lamp", "topic": "Bob"}'),
    ],
)  # fmt: skip
def test_a_mode_is_found_beside_successes_of_the_family(
    failed: dict[str, Any], peers: list[dict[str, Any]], mode: Mode, quote: str
) -> None:
    assert mode_of(failed, *peers) == (mode, quote)


@pytest.mark.parametrize(
    ("moves", "mode", "quote"),
    [
        ([("look", {"at": "lamp"}, "x"), ("cancel_order", {"order": "A1"}, "ok")], Mode.NEEDLESS_CALL, "cancel_order"),
        ([("cancel_order", {"order": "lamp"}, "ok")], Mode.WRONG_TOOL, "cancel_order"),
        ([("get", {"at": "lamp"}, "x")], Mode.STOPPED_EARLY, "get"),
        ([("page", {"to": "Bob", "topic": "Bob"}, "ok")], Mode.WRONG_ARGUMENT, '{"to": "Bob", "topic": "Bob"}'),
    ],
)
def test_a_success_on_the_same_task_tells_which_action_is_wrong(moves: list[Any], mode: Mode, quote: str) -> None:
    page = [] if mode is Mode.NEEDLESS_CALL else [("page", BOB, "ok")]
    prompt = "Tell Bob about the lamp of order A1."
    good = run(*page, "Done.", success=1.0, repeat=1, prompt=prompt)
    assert mode_of(run(*moves, "Done.", prompt=prompt), good) == (mode, quote)


def test_what_successes_do_as_well_is_no_fault() -> None:
    ship = [run(("ship", CODE, "ok"), "Done.", prompt="to Oslo", success=1.0, task=f"s{n}") for n in range(4)]
    assert mode_of(run(("ship", CODE, "ok"), "Done.", prompt="to Oslo"), *ship)[0] is Mode.NOISY_LABEL
    assert mode_of(run(("ship", CODE, "error code"), "Done.", prompt="to Oslo"), *ship)[0] is Mode.INVENTED_ARGUMENT
    quiet = [run("Noted.", success=1.0, task=f"q{n}") for n in range(4)]
    assert mode_of(run("Noted."), *quiet)[0] is Mode.NOISY_LABEL


def test_few_or_mixed_successes_say_nothing() -> None:
    other = run(("buy", {"item": "lamp"}, "ok"), "Done.")
    assert mode_of(other, *GOOD[:2])[0] is Mode.UNKNOWN
    mixed = [run((tool, BOB, "ok"), "Done.", success=1.0, task=tool) for tool in ("page", "call", "tell", "write")]
    assert mode_of(other, *mixed)[0] is Mode.UNKNOWN


def test_a_call_that_was_mended_is_no_violation_and_a_retry_that_worked_no_repetition() -> None:
    mended = run(("page", {"to": "Bob"}, "error arguments"), ("page", BOB, "ok"), "Done.", tools=(PAGE,))
    retried = run(("page", BOB, "error busy"), ("page", BOB, "ok"), "Done.")
    polled = run(*[("look", {"at": "lamp"}, f"{n} left") for n in range(4)], "Done.")
    assert [mode_of(e)[0] for e in (mended, retried, polled)] == [Mode.UNKNOWN] * 3


@pytest.mark.parametrize(
    ("answer", "done", "claim"),
    [
        ("Your reservation has been successfully cancelled.", (), "Your reservation has been successfully cancelled."),
        ("Hello. I will book the flight now. Bye.", (), "I will book the flight now."),
        ("I've updated your baggage.", (), "I've updated your baggage."),
        ("I sent the certificate.", (), "I sent the certificate."),
        ("Your reservation has been cancelled.", ("cancel_reservation",), None),
        ("Shall I cancel the reservation?", (), None),
        ("To cancel a reservation, call us.", (), None),
        ("I have found the user.", (), None),
    ],
)
def test_an_answer_claims_what_no_call_did(answer: str, done: tuple[str, ...], claim: str | None) -> None:
    tools = ("cancel_reservation", "book_flight", "update_reservation_baggages", "send_certificate", "get_user")
    assert claimed_actions(answer, tools, done) == claim
    assert [changes_state(tool) for tool in tools] == [True, True, True, True, False]


def test_the_origin_of_every_argument_is_told() -> None:
    row = run(
        ("find", {"who": "Bob", "card": "card_1234"}, "order 42"),
        ("pay", {"order": 42, "twice": 84, "code": "amber", "pin": "rose"}, "ok"),
        prompt="Pay for Bob, 2 of them, card 9999.",
        notes="Oslo code amber",
    )
    found = {a.name: a.origin for m in read_episode(row, {}).made for a in m.arguments}
    assert found == {
        "who": Origin.TEXT,
        "card": Origin.NOWHERE,
        "order": Origin.TEXT,
        "twice": Origin.TEXT,
        "code": Origin.NOTES,
        "pin": Origin.NOWHERE,
    }


@given(st.text(), st.text())
def test_a_value_that_stands_in_a_text_is_found_there(before: str, value: str) -> None:
    assert stands_in(value, set(words(f"{before} {value}")))


@given(st.integers(1, 9999), st.integers(1, 9999))
def test_what_two_numbers_make_is_reckoned(a: int, b: int) -> None:
    seen = {str(a), str(b)}
    assert reckoned(str(a + b), seen)
    if min(a, b) > 1:
        assert reckoned(str(a * b), seen)
    assert not reckoned(str(a * b + a + b + 20_000), seen)
