"""A server that plays users by a script, as an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Say = Callable[[list[dict[str, Any]]], "str | dict[str, Any] | int"]
"""What is said to the messages of a request: a text, a call as {name: arguments}, or an HTTP status."""


HELLO = "Hello, I need help."


def hello_and_stop(messages: list[dict[str, Any]]) -> str:
    """One wish, and the end after the agent's first answer to it."""
    said = any(m["content"] == HELLO for m in messages)
    return "###STOP###" if said else HELLO


@contextmanager
def simulated_user(say: Say = hello_and_stop) -> Iterator[dict[str, Any]]:
    """A suite's param `user`, while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = say(body["messages"])
            status = answer if isinstance(answer, int) else 200
            message: dict[str, Any] = {"role": "assistant", "content": answer if isinstance(answer, str) else None}
            if isinstance(answer, dict):
                [(name, arguments)] = answer.items()
                function = {"name": name, "arguments": json.dumps(arguments)}
                message["tool_calls"] = [{"id": "1", "type": "function", "function": function}]
            reply = {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {"endpoint": f"http://127.0.0.1:{server.server_address[1]}/v1", "model": "user"}
    finally:
        server.shutdown()
        server.server_close()
