"""A chat completions server on loopback that answers as it is told, and misbehaves as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Handler"], None]
PROMPT_TOKENS, COMPLETION_TOKENS = 900, 100


class Handler(BaseHTTPRequestHandler):
    """Answers the n-th request with the n-th reply, the last one again and again."""

    body: dict[str, Any]
    """The request that is answered: the last one of the server may be another thread's."""

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server: Any = self.server
        server.requests.append(self.body)
        server.keys.append(self.headers["authorization"])
        server.replies[min(len(server.requests), len(server.replies)) - 1](self)

    def send(self, status: int, body: bytes, missing: int = 0, **headers: str) -> None:
        """`missing` bytes are promised and not sent."""
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body) + missing))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        if missing:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


class ChatServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    replies: list[Reply]
    requests: list[dict[str, Any]]
    keys: list[str]
    released: threading.Event

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


@contextmanager
def chat_server(*replies: Reply) -> Iterator[ChatServer]:
    server = ChatServer(("127.0.0.1", 0), Handler)
    server.replies, server.requests, server.keys = list(replies), [], []
    server.released = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def completion(text: str | None, finish: str = "stop", usage: bool = True, **message: Any) -> bytes:
    body: dict[str, Any] = {
        "id": "x", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}],
    }  # fmt: skip
    if usage:
        body["usage"] = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS, "total_tokens": 1000}
    return json.dumps(body).encode()


def says(text: str | None, finish: str = "stop", usage: bool = True, **message: Any) -> Reply:
    return lambda handler: handler.send(200, completion(text, finish, usage, **message))


def fails(status: int, message: str = "no", **headers: str) -> Reply:
    return lambda handler: handler.send(status, json.dumps({"error": {"message": message}}).encode(), **headers)


def sends(body: bytes, missing: int = 0) -> Reply:
    return lambda handler: handler.send(200, body, missing)


def hangs(handler: Handler) -> None:
    """No answer until the test is over."""
    server: Any = handler.server
    server.released.wait(30)
