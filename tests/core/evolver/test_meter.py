"""The meter: what goes through it is counted, whatever the agent and the endpoint do, and the key stays with it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curateevo.api.errors import Denied, SpecInvalid
from curateevo.api.spec import LlmBudget, LlmEndpoint, SecretKeyRef, TokenPrice
from curateevo.evolver.llm import Limits
from curateevo.evolver.meter import Meter
from curateevo.evolver.spending import Ledger, NoRoom
from tests.core.evolver.llmserver import (
    COMPLETION_TOKENS,
    PROMPT_TOKENS,
    ChatServer,
    Handler,
    Reply,
    chat_server,
    completion,
    fails,
    hangs,
    says,
    sends,
)

KEY = "sk-very-secret-0123456789"
PRICE = TokenPrice(input=1.0, output=10.0)
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


@contextmanager
def metered(*replies: Reply, **options: Any) -> Iterator[tuple[Meter, openai.OpenAI, ChatServer]]:
    """A meter before a server, and a client that knows the meter alone."""
    budget, price = options.pop("budget", LlmBudget()), options.pop("price", PRICE)
    with chat_server(*replies) as server:
        endpoint = LlmEndpoint(base_url=server.url, model="the-model", price=price)
        meter = Meter(endpoint, Ledger(budget, price), api_key=KEY, **options)
        with meter.serving() as url, openai.OpenAI(base_url=url, api_key=meter.token, max_retries=0) as client:
            yield meter, client, server


def ask(client: openai.OpenAI, messages: list[dict[str, Any]] = HELLO, **fields: Any) -> Any:
    return client.chat.completions.create(model="any", messages=messages, **fields)  # type: ignore[call-overload]


def ask_in_vain(client: openai.OpenAI, tokens: int = 500) -> None:
    with contextlib.suppress(openai.APIError):
        ask(client, max_tokens=tokens)


def streams(*events: dict[str, Any], cut: bool = False) -> Reply:
    """A stream of events; `cut`: it ends without its end."""

    def reply(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        if cut:
            handler.send_header("content-length", "100000")
        handler.end_headers()
        for event in events:
            handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        if not cut:
            handler.wfile.write(b"data: [DONE]\n\n")
        handler.close_connection = True

    return reply


def chunk(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m",
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}  # fmt: skip


def test_a_call_is_forwarded_with_the_key_and_the_model_and_counted() -> None:
    with metered(says("hi")) as (meter, client, server):
        assert ask(client).choices[0].message.content == "hi"
    assert server.keys == [f"Bearer {KEY}"] and server.requests[0]["model"] == "the-model"
    assert (meter.ledger.tokens, meter.ledger.calls) == (PROMPT_TOKENS + COMPLETION_TOKENS, 1)
    assert meter.ledger.usd == pytest.approx((PROMPT_TOKENS + 10 * COMPLETION_TOKENS) / 1e6)
    assert [(e["role"], e["content"]) for e in meter.transcript] == [("user", "hello"), ("assistant", "hi")]


def test_the_conversation_is_archived_once_though_agents_send_it_whole_each_time() -> None:
    more = [*HELLO, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "and now"}]
    with metered(says("hi"), says("now"), says("new")) as (meter, client, _):
        ask(client)
        ask(client, more)
        ask(client, [{"role": "user", "content": "another talk"}])
    contents = [e["content"] for e in meter.transcript]
    assert contents == ["hello", "hi", "hi", "and now", "now", "another talk", "new"]


def test_a_stream_is_passed_on_and_counted() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    last = {**chunk(""), "choices": [], "usage": usage}
    with metered(streams(chunk("a"), chunk(f"b {KEY}"), last)) as (meter, client, server):
        parts = [e.choices[0].delta.content for e in ask(client, stream=True) if e.choices]
    assert parts == ["a", "b [key]"]
    assert server.requests[0]["stream_options"] == {"include_usage": True}
    assert (meter.ledger.tokens, meter.ledger.calls, meter.transcript[-1]["content"]) == (10, 1, "ab [key]")


def test_half_a_stream_is_an_error_that_is_counted_with_its_prompt_and_what_came() -> None:
    reply = streams(chunk("x" * 300), cut=True)
    with metered(reply) as (meter, client, _), pytest.raises(openai.APIError, match="stream was cut"):
        list(ask(client, stream=True))
    assert meter.ledger.calls == 1 and 100 < meter.ledger.tokens < 300
    assert meter.transcript[-1]["estimated"] is True


def test_calls_of_the_responses_api_are_counted_too() -> None:
    body = json.dumps({"id": "r", "output": [{"type": "message"}], "usage": {"input_tokens": 5, "output_tokens": 6}})
    with metered(sends(body.encode())) as (meter, client, server):
        client.post("/responses", body={"model": "x", "input": "hello"}, cast_to=dict)
    assert meter.ledger.tokens == 11
    assert server.requests[0]["max_output_tokens"] == Limits().answer_tokens


def test_a_call_without_room_in_the_budget_is_not_made_and_says_so_to_the_agent() -> None:
    with metered(says("hi"), budget=LlmBudget(calls=1)) as (meter, client, server):
        ask(client)
        with pytest.raises(openai.PermissionDeniedError, match="budget is spent.*calls"):
            ask(client)
    assert len(server.requests) == 1 and meter.spent.is_set()
    assert "proposer.budget.calls" in meter.no_room


def test_calls_at_the_same_time_share_one_budget() -> None:
    """What is under way is counted at its most: of many calls at once only those are made that fit together."""
    budget = LlmBudget(tokens=2 * (1500 + 100))
    with metered(hangs, budget=budget, limits=Limits(call_seconds=1.0)) as (meter, client, server):
        threads = [threading.Thread(target=ask_in_vain, args=(client, 1500)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(server.requests) == 2
    assert meter.ledger.tokens <= budget.tokens


def test_what_is_under_way_at_the_end_stays_counted_at_its_most() -> None:
    with metered(hangs) as (meter, client, server):
        thread = threading.Thread(target=ask_in_vain, args=(client,))
        thread.start()
        while not server.requests:
            thread.join(timeout=0.01)
        reserved = meter.ledger.tokens
    assert reserved > 500
    server.released.set()
    thread.join()
    assert meter.ledger.tokens == reserved and meter.ledger.calls == 1


def test_an_attempt_after_a_kill_begins_with_what_was_spent() -> None:
    recorded: list[dict[str, Any]] = []
    with metered(says("hi"), hangs, record=recorded.append) as (first, client, server):
        ask(client)
        thread = threading.Thread(target=ask_in_vain, args=(client,))
        thread.start()
        while len(server.requests) < 2:
            thread.join(timeout=0.01)
    thread.join()
    with metered(says("hi"), recorded=recorded) as (second, client, _):
        assert (second.ledger.tokens, second.ledger.calls) == (first.ledger.tokens, 2)


@pytest.mark.parametrize(
    ("reply", "denied"),
    [(fails(401, f"bad key {KEY}"), True), (fails(402), True), (fails(429, "insufficient_quota"), True), (fails(429, retry_after="7"), False), (fails(503), False)],
)  # fmt: skip
def test_errors_reach_the_agent_without_the_key_and_cost_nothing(reply: Reply, denied: bool) -> None:
    with metered(reply) as (meter, client, _), pytest.raises(openai.APIStatusError) as caught:
        ask(client)
    assert KEY not in str(caught.value) and KEY not in meter.denied
    assert bool(meter.denied) is denied and (meter.answered, meter.ledger.tokens, meter.ledger.calls) == (0, 0, 0)
    if "retry-after" in caught.value.response.headers:
        assert caught.value.response.headers["retry-after"] == "7"


def test_half_an_answer_is_an_error_that_is_counted() -> None:
    half = sends(completion("hi")[:50], missing=100)
    with metered(half) as (meter, client, _), pytest.raises(openai.InternalServerError):
        ask(client)
    assert meter.ledger.calls == 1 and meter.failed.startswith("no whole answer")


def test_only_the_agents_token_opens_it_and_only_for_what_is_counted() -> None:
    with metered(says("hi")) as (meter, client, server):
        with pytest.raises(openai.AuthenticationError):
            ask(client.with_options(api_key=KEY))
        for path in ("/embeddings", "/files"):
            with pytest.raises(openai.APIStatusError):
                client.post(path, body={}, cast_to=dict)
        with pytest.raises(openai.BadRequestError):
            ask(client, n=2)
        for body in (b"[]", b"{", b"\xff"):
            url = urlsplit(str(client.base_url))
            connection = http.client.HTTPConnection(url.hostname or "", url.port)
            connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {meter.token}"})
            assert connection.getresponse().status == 400
            connection.close()
        assert [m.id for m in client.models.list()] == ["the-model"]
    assert not server.requests and meter.ledger.calls == 0


@pytest.mark.parametrize(
    ("endpoint", "key", "error"),
    [
        (LlmEndpoint(base_url="localhost:8000", model="m"), "", SpecInvalid),
        (LlmEndpoint(base_url="http://x:99999999/v1", model="m"), "", SpecInvalid),
        (LlmEndpoint(base_url="http://x/v1", model="m", api_key_secret_ref=SecretKeyRef(name="llm")), " ", Denied),
    ],
)
def test_what_is_wrong_before_any_call_is_said_before_it(
    endpoint: LlmEndpoint, key: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Meter(endpoint, Ledger(LlmBudget(), None), api_key=key)


@given(
    budget=st.builds(
        LlmBudget,
        tokens=st.integers(0, 20_000),
        usd=st.floats(0, 0.2),
        calls=st.integers(0, 8),
    ),
    price=st.none() | st.builds(TokenPrice, input=st.floats(0, 50), output=st.floats(0, 50)),
    calls=st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 5000), st.floats(0, 1)), max_size=12),
)
@example(
    budget=LlmBudget(tokens=2, usd=0.125, calls=1), price=TokenPrice(input=0.0, output=3e-313), calls=[(1, 1, 0.0)]
)
def test_a_ledger_is_never_overdrawn_by_calls_that_keep_to_their_limits(
    budget: LlmBudget, price: TokenPrice | None, calls: list[tuple[int, int, float]]
) -> None:
    ledger = Ledger(budget, price)
    for prompt, wanted, used in calls:
        try:
            allowed = ledger.room(prompt, wanted, min(wanted, 100))
        except NoRoom:
            continue
        assert 0 < allowed <= wanted
        ledger.charge(prompt, allowed)
        ledger.charge(0, int(allowed * used) - allowed, 0)
        assert ledger.tokens <= budget.tokens and ledger.calls <= budget.calls
        assert ledger.usd <= budget.usd + 1e-9
