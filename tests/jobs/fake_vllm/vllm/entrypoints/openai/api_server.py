"""A stand-in for vLLM's server, for whoever has this folder on PYTHONPATH: the same arguments, the same protocol.

What it answers depends on the conversation and on the model's files alone. FAKE_VLLM_DIES_AFTER: it ends with the n-th
question.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

QUESTIONS = count(1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/health":
            self.send(200, {})
        elif self.path == "/v1/models":
            self.send(200, {"object": "list", "data": [{"id": OPTIONS.served_model_name, "object": "model"}]})
        else:
            self.send(404, {})

    def do_POST(self) -> None:
        if self.path == "/curateevo/end":
            Path(os.environ["CURATEEVO_END_MARK"]).touch()
            self.send(202, {})
            return
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if next(QUESTIONS) > int(os.environ.get("FAKE_VLLM_DIES_AFTER", "1000000")):
            print("ValueError: no memory for a single sequence", flush=True)
            os._exit(1)
        if asked["model"] != OPTIONS.served_model_name:
            self.send(404, {"error": {"message": "no such model"}})
            return
        choice = {"index": 0, "finish_reason": "stop", "message": answer(asked)}
        usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
        self.send(200, {"id": "x", "object": "chat.completion", "created": 0, "model": asked["model"],
                        "choices": [choice], "usage": usage})  # fmt: skip

    def send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """A call of some tool, or an end: by a hash of the conversation."""
    text = json.dumps([asked["messages"], asked["seed"], MODEL], sort_keys=True)
    chance = int(hashlib.sha256(text.encode()).hexdigest(), 16)
    tools = asked.get("tools") or []
    if not tools or chance % 3 == 0:
        return {"role": "assistant", "content": f"Done {chance % 97}."}
    function = tools[chance % len(tools)]["function"]
    arguments = dict.fromkeys(function["parameters"].get("properties", {}), "paris")
    call = {"name": function["name"], "arguments": json.dumps(arguments, sort_keys=True)}
    return {"role": "assistant", "content": None,
            "tool_calls": [{"id": f"c{chance % 97}", "type": "function", "function": call}]}  # fmt: skip


parser = argparse.ArgumentParser()
for name in ("--model", "--served-model-name", "--host", "--chat-template"):
    parser.add_argument(name)
parser.add_argument("--port", type=int)
OPTIONS, OTHERS = parser.parse_known_args()
MODEL = hashlib.sha256(
    b"".join(p.read_bytes() for p in sorted(Path(OPTIONS.model).iterdir()) if p.is_file())
).hexdigest()
ThreadingHTTPServer((OPTIONS.host, OPTIONS.port), Handler).serve_forever()
