"""A meter between a coding agent and its model: an OpenAI-compatible server on loopback that forwards and counts.

It holds the key, which the agent never sees: the agent is given a token of its own that is good for this server alone.
Every call is reserved at its most before it is made, and settled with what it cost; what is still under way at the end
stays counted at its most. So any agent's cost is known, whatever it says of itself.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import secrets
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from curateevo.api.spec import LlmEndpoint
from curateevo.evolver.llm import CHARS_PER_TOKEN, DENIED_STATUS, QUOTA, Limits, checked_key, parse_address
from curateevo.evolver.spending import Ledger, NoRoom
from curateevo.trajectories.model import JsonObject

MAX_REQUEST_BYTES = 32 << 20
KEPT_STREAM_CHARS = 1 << 20
POLL_SECONDS = 0.05
SETTLE_SECONDS = 1.0
"""At the end, for calls whose answer the agent has and whose counts are still to be settled."""
OWN_REFUSAL = "curateevo_meter"


@dataclass(frozen=True, slots=True)
class Form:
    """What one kind of call names its parts."""

    limits: tuple[str, ...]
    """Fields that limit the answer's tokens; the first one is set where a request has none."""
    prompt: str
    completion: str
    messages: str


FORMS = {
    "/chat/completions": Form(
        ("max_completion_tokens", "max_tokens"), "prompt_tokens", "completion_tokens", "messages"
    ),
    "/responses": Form(("max_output_tokens",), "input_tokens", "output_tokens", "input"),
}
"""What is forwarded. Whatever else may cost something is not."""


@dataclass(slots=True)
class Call:
    """One call: what was reserved for it, and what came of it."""

    number: int
    form: Form
    prompt_tokens: int
    answer_tokens: int
    said: list[JsonObject]
    """Messages that no earlier call has sent."""
    text: str = ""
    usage: tuple[int, int] | None = None
    failure: str = ""

    def read_usage(self, found: object) -> None:
        """Take the counts of an answer, or of an event of a stream."""
        if not isinstance(found, dict):
            return
        inner = found.get("response")
        usage = found.get("usage") or (inner.get("usage") if isinstance(inner, dict) else None)
        if isinstance(usage, dict):
            prompt, completion = usage.get(self.form.prompt), usage.get(self.form.completion)
            if type(prompt) is int and type(completion) is int and prompt >= 0 <= completion:
                self.usage = (prompt, completion)


class Meter:
    """Serves while `serving` lasts. `recorded` are entries that `record` was given in an attempt that was killed."""

    def __init__(
        self,
        endpoint: LlmEndpoint,
        ledger: Ledger,
        *,
        api_key: str = "",
        limits: Limits | None = None,
        recorded: Iterable[JsonObject] = (),
        record: Callable[[JsonObject], None] = lambda entry: None,
    ) -> None:
        self.token = secrets.token_urlsafe(24)
        self.ledger = ledger
        self.transcript: list[JsonObject] = []
        self.denied = ""
        """What the endpoint said when it refused the key or the quota."""
        self.no_room = ""
        """Which budget ended the calls."""
        self.answered, self.failed = 0, ""
        """Calls that were answered, and how the last one failed that was not."""
        self.spent = threading.Event()
        self.model = endpoint.model
        self._url = parse_address(endpoint)
        self._key = checked_key(api_key, needed=endpoint.api_key_secret_ref is not None)
        self._limits = limits or Limits()
        self._record = record
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._under_way = 0
        self._sent: list[Any] = []
        self._closed = False
        self._attempt = secrets.token_hex(4)
        self._number = 0
        last = {(entry["attempt"], entry["call"]): entry for entry in recorded}
        for entry in last.values():  # settled, or as it was reserved
            ledger.charge(entry["prompt_tokens"], entry["completion_tokens"], entry["calls"])

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The base URL of the meter while the context lasts. What is under way after it stays reserved."""
        server = _Server(("127.0.0.1", 0), _Handler)
        server.meter = self
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL_SECONDS}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            with self._settled:
                self._settled.wait_for(lambda: self._under_way == 0, timeout=SETTLE_SECONDS)
                self._closed = True
            server.shutdown()
            server.server_close()
            thread.join()

    def reserve(self, path: str, body: JsonObject) -> Call:
        """Count a call at its most, and change `body` to what may be sent. Raises NoRoom."""
        form = FORMS[path]
        prompt = math.ceil(len(json.dumps(body, ensure_ascii=False)) / CHARS_PER_TOKEN)
        field = next((name for name in form.limits if isinstance(body.get(name), int)), form.limits[0])
        wanted = max(1, body.get(field) or self._limits.answer_tokens)
        with self._lock:
            if self._closed:
                raise NoRoom("the agent's time is over")
            try:
                allowed = self.ledger.room(prompt, wanted, min(wanted, self._limits.least_answer_tokens))
            except NoRoom as error:
                self.no_room = str(error)
                self.spent.set()
                raise
            self._number += 1
            call = Call(self._number, form, prompt, allowed, self._fresh(body.get(form.messages)))
            self.ledger.charge(prompt, allowed)
            self._under_way += 1
            self._note(call, prompt, allowed, 1)
        body["model"] = self.model
        body[field] = allowed
        if body.get("stream") and path == "/chat/completions":
            body["stream_options"] = {"include_usage": True}
        return call

    def settle(self, call: Call) -> None:
        """Give back what was reserved and not used; archive the call."""
        with self._lock:
            self._under_way -= 1
            self._settled.notify_all()
            if self._closed:
                return
            estimated = call.usage is None
            if call.usage is not None:
                prompt, completion, calls = *call.usage, 1
            elif call.failure.startswith("HTTP"):
                prompt, completion, calls = 0, 0, 0
            else:
                prompt, completion, calls = call.prompt_tokens, math.ceil(len(call.text) / CHARS_PER_TOKEN), 1
            self.ledger.charge(prompt - call.prompt_tokens, completion - call.answer_tokens, calls - 1)
            self._note(call, prompt, completion, calls)
            if call.failure:
                self.failed = call.failure
            else:
                self.answered += 1
            self.transcript += call.said
            self.transcript.append(
                {
                    "role": "endpoint" if call.failure else "assistant",
                    "content": call.failure or call.text,
                    "calls": calls,
                    "prompt_tokens": prompt,
                    "completion_tokens": completion,
                    "estimated": estimated,
                }
            )

    def forward(self, path: str, body: JsonObject) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a call on. Raises OSError or HTTPException."""
        host, port = self._url.hostname or "", self._url.port
        seconds = self._limits.call_seconds
        connection = (
            http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
            if self._url.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=seconds)
        )
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._key or 'none'}"}
        data = json.dumps(body).encode()
        connection.request("POST", self._url.path.rstrip("/") + path, data, headers)
        return connection, connection.getresponse()

    def refuse(self, status: int, text: str) -> None:
        """Remember an answer after which another try changes nothing."""
        if status in DENIED_STATUS or (status == 429 and any(sign in text for sign in QUOTA)):
            self.denied = f"{self._url.hostname} refuses the call: HTTP {status}: {' '.join(text.split())[:300]}"

    def clean(self, raw: bytes) -> bytes:
        """Without the key, should the server echo it."""
        return raw.replace(self._key.encode(), b"[key]") if self._key else raw

    def _fresh(self, messages: object) -> list[JsonObject]:
        """The messages that the calls before have not sent: agents send the whole conversation each time."""
        found = messages if isinstance(messages, list) else [{"role": "user", "content": messages}]
        same = 0
        while same < min(len(found), len(self._sent)) and found[same] == self._sent[same]:
            same += 1
        fresh = found[same:] if same == len(self._sent) else found
        self._sent = found
        return [m for m in fresh if isinstance(m, dict)]

    def _note(self, call: Call, prompt: int, completion: int, calls: int) -> None:
        self._record(
            {
                "attempt": self._attempt,
                "call": call.number,
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "calls": calls,
            }
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    meter: Meter

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An agent that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        if self._is_allowed() and self._path() == "/models":
            model = {"id": self.server.meter.model, "object": "model", "created": 0, "owned_by": "curateevo"}
            self._send(200, json.dumps({"object": "list", "data": [model]}).encode())
        else:
            self._fail(404, f"this meter has no {self.path}")

    def do_POST(self) -> None:
        meter, path = self.server.meter, self._path()
        if not self._is_allowed():
            return self._fail(401, "this is not the token that the agent was given")
        if path not in FORMS:
            return self._fail(404, f"only {', '.join(FORMS)} are metered, not {self.path}")
        body = self._body()
        if body is None or body.get("n", 1) != 1:
            return self._fail(400, "a call must be a JSON object of at most 32 MiB that asks for one answer")
        try:
            call = meter.reserve(path, body)
        except NoRoom as error:
            return self._fail(403, f"the budget is spent: {error}. Stop now: what policy.py holds is your proposal")
        try:
            self._relay(meter, call, path, body)
        finally:
            meter.settle(call)
        return None

    def _relay(self, meter: Meter, call: Call, path: str, body: JsonObject) -> None:
        """Forward one call, and its answer back."""
        try:
            connection, response = meter.forward(path, body)
            with contextlib.closing(connection):
                if response.status >= 400:
                    raw = meter.clean(response.read())
                    call.failure = f"HTTP {response.status}"
                    meter.refuse(response.status, raw.decode("utf-8", "replace"))
                    self._send(response.status, raw, response.headers.get("retry-after", ""))
                elif "text/event-stream" in response.headers.get("content-type", ""):
                    self._stream(meter, call, response)
                else:
                    raw = meter.clean(response.read())
                    with contextlib.suppress(ValueError):
                        found = json.loads(raw)
                        call.read_usage(found)
                        call.text = _text_of(found)
                    self._send(response.status, raw)
        except (OSError, http.client.HTTPException) as error:
            call.failure = call.failure or f"no whole answer: {type(error).__name__}"
            self._fail(502, f"the model's server gave {call.failure}")

    def _stream(self, meter: Meter, call: Call, response: http.client.HTTPResponse) -> None:
        self.send_response(response.status)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        whole = False
        for line in response:
            self.wfile.write(meter.clean(line))
            self.wfile.flush()
            data = line.removeprefix(b"data:").strip()
            whole = whole or data == b"[DONE]"
            if line.startswith(b"data:"):
                with contextlib.suppress(ValueError):
                    event = json.loads(meter.clean(data))
                    call.read_usage(event)
                    call.text = (call.text + _delta_of(event))[:KEPT_STREAM_CHARS]
        if not whole and call.usage is None:
            call.failure = "no whole answer: the stream was cut"
            self.wfile.write(b"data: " + json.dumps({"error": {"message": call.failure}}).encode() + b"\n\n")

    def _is_allowed(self) -> bool:
        given = self.headers.get("authorization", "").removeprefix("Bearer ")
        return secrets.compare_digest(given.encode(), self.server.meter.token.encode())

    def _path(self) -> str:
        return self.path.partition("?")[0].removeprefix("/v1")

    def _body(self) -> JsonObject | None:
        with contextlib.suppress(ValueError, RecursionError):
            length = int(self.headers.get("content-length", ""))
            if 0 <= length <= MAX_REQUEST_BYTES:
                found = json.loads(self.rfile.read(length))
                return found if isinstance(found, dict) else None
        return None

    def _fail(self, status: int, message: str) -> None:
        error = {"message": message, "type": OWN_REFUSAL, "code": "insufficient_quota" if status == 403 else None}
        with contextlib.suppress(OSError):
            self._send(status, json.dumps({"error": error}).encode())

    def _send(self, status: int, raw: bytes, retry_after: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        if retry_after:
            self.send_header("retry-after", retry_after)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Calls are archived, not logged."""


def _text_of(answer: Any) -> str:
    """What an answer says and which tools it calls, as JSON where it is more than text."""
    if not isinstance(answer, dict):
        return ""
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
        said = message.get("content") if isinstance(message, dict) else None
        if isinstance(message, dict) and message.get("tool_calls"):
            return json.dumps({"content": said, "tool_calls": message["tool_calls"]}, ensure_ascii=False)
        return said if isinstance(said, str) else ""
    return json.dumps(answer["output"], ensure_ascii=False) if "output" in answer else ""


def _delta_of(event: Any) -> str:
    """What an event of a stream adds to the answer."""
    if not isinstance(event, dict):
        return ""
    if isinstance(event.get("delta"), str):
        return str(event["delta"])
    choices = event.get("choices")
    delta = choices[0].get("delta") if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    if not isinstance(delta, dict):
        return ""
    calls = "".join(
        str((c.get("function") or {}).get("arguments") or "")
        for c in delta.get("tool_calls") or ()
        if isinstance(c, dict)
    )
    return str(delta.get("content") or "") + calls
