"""The endpoint agent against a server that misbehaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from curateevo_jobs.agents.chat import Answer, Conversation, Generation
from curateevo_jobs.agents.endpoint import Backoff, Endpoint
from tests.conftest import free_port

TOOLS = [{"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}]
CONVERSATION = Conversation(
    [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "tool", "tool_call_id": "c", "name": "look", "content": "ok"},
    ],
    TOOLS,
)
Reply = Callable[["Handler"], None]
Serve = Callable[..., tuple[Answer, list[float], list[dict[str, Any]]]]


class Handler(BaseHTTPRequestHandler):
    """Answers the n-th request with the n-th reply, the last one again and again."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server: Any = self.server
        server.requests.append(body)
        server.replies[min(len(server.requests), len(server.replies)) - 1](self)

    def send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def status(code: int, message: str = "no") -> Reply:
    return lambda handler: handler.send(code, {"error": {"message": message}})


def completion(message: dict[str, Any]) -> Reply:
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 7, "total_tokens": 8},
    }
    return lambda handler: handler.send(200, body)


def hang(handler: Handler) -> None:
    server: Any = handler.server
    server.released.wait(30)


OK = completion({"content": "fine"})


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server with these replies: asks it once and gives (answer, waits, requests)."""
    servers: list[Any] = []

    def run(*replies: Reply, timeout_seconds: float = 10.0) -> tuple[Answer, list[float], list[dict[str, Any]]]:
        server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.replies, server.requests, server.released = replies, [], threading.Event()
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        waits: list[float] = []
        endpoint = Endpoint(
            f"http://127.0.0.1:{server.server_port}/v1",
            "m",
            timeout_seconds=timeout_seconds,
            backoff=Backoff(tries=3, first_seconds=1.0, longest_seconds=1.5),
            sleep=waits.append,
        )
        [answer] = endpoint.answer([CONVERSATION], Generation(0.5, 9), [42])
        endpoint.close()
        return answer, waits, server.requests

    yield run
    for server in servers:
        server.released.set()
        server.shutdown()
        server.server_close()


def test_an_answer_and_what_was_asked(serve: Serve) -> None:
    answer, waits, [request] = serve(OK)
    assert (answer.content, answer.tokens, waits) == ("fine", 7, [])
    assert (request["seed"], request["temperature"], request["max_tokens"]) == (42, 0.5, 9)
    assert request["tools"] == TOOLS
    assert "name" not in request["messages"][2]


def test_a_server_that_is_gone_is_waited_for() -> None:
    server: Any = None
    port = free_port()
    came: list[int] = []

    def come_back() -> None:
        nonlocal server
        if server is None:
            server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
            server.replies, server.requests, server.released = (OK,), [], threading.Event()
            threading.Thread(target=server.serve_forever, daemon=True).start()
        came.append(port)

    endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", "m", sleep=lambda seconds: None, await_back=come_back)
    [answer] = endpoint.answer([CONVERSATION], Generation(0.5, 9), [42])
    endpoint.close()
    server.shutdown()
    server.server_close()
    assert (answer.content, came) == ("fine", [port])


def test_calls_are_read_and_bad_arguments_kept_as_text(serve: Serve) -> None:
    functions = [{"name": "look", "arguments": '{"at": 1}'}, {"name": "look", "arguments": "{"}]
    calls = [{"id": str(n), "type": "function", "function": f} for n, f in enumerate(functions)]
    answer, _, _ = serve(completion({"content": None, "tool_calls": calls}))
    assert [c.arguments for c in answer.calls] == [{"at": 1}, None]
    assert answer.calls[1].raw == "{"


def test_a_call_that_the_server_could_not_parse_is_malformed(serve: Serve) -> None:
    answer, _, _ = serve(completion({"content": "<tool_call>{"}))
    assert answer.malformed


def test_a_throttled_request_is_tried_again(serve: Serve) -> None:
    answer, waits, _ = serve(status(429), OK)
    assert (answer.content, waits) == ("fine", [1.0])


@pytest.mark.parametrize("reply", [status(500), status(503), status(429)])
def test_after_the_last_try_it_is_a_passing_error_and_no_answer(serve: Serve, reply: Reply) -> None:
    answer, waits, requests = serve(reply)
    assert answer.error is not None
    assert answer.error.transient
    assert waits == [1.0, 1.5]
    assert len(requests) == 3


def test_a_server_that_hangs_is_a_passing_error(serve: Serve) -> None:
    answer, waits, _ = serve(hang, timeout_seconds=0.2)
    assert answer.error is not None
    assert answer.error.transient
    assert len(waits) == 2


def test_a_refused_request_is_not_tried_again(serve: Serve) -> None:
    answer, waits, _ = serve(status(401))
    assert answer.error is not None
    assert not answer.error.transient
    assert waits == []


TOO_LONG = status(400, "This model's maximum context length is 512 tokens.")


def test_where_less_room_is_left_than_asked_for_what_is_left_is_taken(serve: Serve) -> None:
    answer, waits, requests = serve(TOO_LONG, OK)
    assert (answer.content, waits) == ("fine", [])
    assert ["max_tokens" in request for request in requests] == [True, False]


def test_a_prompt_that_does_not_fit_is_a_result(serve: Serve) -> None:
    answer, _, _ = serve(TOO_LONG)
    assert answer.context_full
    assert answer.error is None


def test_a_completion_without_choices_is_an_error(serve: Serve) -> None:
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": []}
    answer, _, _ = serve(lambda handler: handler.send(200, body))
    assert answer.error is not None
    assert not answer.error.transient


def test_nobody_listening_is_a_passing_error() -> None:
    endpoint = Endpoint("http://127.0.0.1:9/v1", "m", backoff=Backoff(tries=1))
    [answer] = endpoint.answer([CONVERSATION], Generation(0.0, 1), [0])
    assert answer.error is not None
    assert answer.error.transient
