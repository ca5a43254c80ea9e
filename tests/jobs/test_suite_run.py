"""A served model on a suite: what is counted, what is tried again, and that a kill costs nothing that was done."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.errors import ContractBroken, Denied
from curateevo_jobs.agents.chat import Answer, AnswerError, Conversation, parse_call
from curateevo_jobs.agents.scripted import Scripted
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.bfcl.gold import gold_answers
from curateevo_jobs.suite_run import SuiteRun, read_rows, run_suite

PARAMS = {"categories": ["simple_python", "irrelevance", "multi_turn_base"], "perCategory": 4}
SUITE = registry.suite("bfcl")
TASKS = SUITE.tasks(PARAMS)
BY_PROMPT = {task.messages[-1]["content"]: task for task in TASKS}


class Silent:
    def report(self, phase: str, done: int, total: int, **metrics: float) -> None:
        pass


def gold(conversation: Conversation) -> Answer:
    """The reference's next answer, found by the first user message."""
    task = next(BY_PROMPT[m["content"]] for m in conversation.messages if m["content"] in BY_PROMPT)
    said = sum(m["role"] == "assistant" for m in conversation.messages)
    return gold_answers(task)[said]


def request(folder: Path, **more: Any) -> SuiteRun:
    fields = {
        "suite": {"name": "bfcl", "params": PARAMS},
        "endpoint": "http://x/v1",
        "model": "m",
        "output": str(folder),
    }
    return SuiteRun.model_validate({**fields, **more})


def run(folder: Path, agent: Scripted, **more: Any) -> dict[str, Any]:
    return run_suite(request(folder, **more), SUITE, agent, Silent())


def test_scores_are_shown_by_family_with_what_doing_nothing_scores(tmp_path: Path) -> None:
    scores = run(tmp_path, Scripted(gold, 4))
    assert scores["families"]["irrelevance"] == {
        "success": 1.0, "standard_error": 0.0, "measured": 4, "tasks": 4, "nothing": 1.0, "reward": 1.0,
    }  # fmt: skip
    assert scores["families"]["multi_turn_base"]["success"] == 1.0
    assert scores["families"]["multi_turn_base"]["nothing"] == 0.0
    assert (scores["all"]["success"], scores["all"]["nothing"]) == (1.0, pytest.approx(1 / 3))
    assert (scores["errors"], scores["missing"]) == ({}, 0)
    assert json.loads((tmp_path / "scores.json").read_text()) == scores
    rows = [json.loads(line) for line in (tmp_path / "trajectories.jsonl").read_text().splitlines()]
    assert {row["task"] for row in rows} == {task.id for task in TASKS}


def test_what_could_not_be_measured_is_counted_by_class_and_tried_again(tmp_path: Path) -> None:
    def ailing(conversation: Conversation) -> Answer:
        task = next(BY_PROMPT[m["content"]] for m in conversation.messages if m["content"] in BY_PROMPT)
        if task.family == "simple_python":
            return Answer(error=AnswerError("HTTP 500", transient=True))
        if task.family == "irrelevance":
            return Answer(error=AnswerError("APITimeoutError", transient=True))
        return gold(conversation)

    scores = run(tmp_path, Scripted(ailing, 4))
    assert scores["errors"] == {"HTTP 500": 4, "APITimeoutError": 4}
    assert scores["families"]["simple_python"]["success"] is None
    assert (scores["all"]["measured"], scores["missing"]) == (4, 8)
    healthy = Scripted(gold, 4)
    scores = run(tmp_path, healthy)
    assert healthy.asked == 8, "single answers of the two families that were missing"
    assert (scores["errors"], scores["missing"], scores["all"]["success"]) == ({}, 0, 1.0)


def test_a_done_run_asks_nothing(tmp_path: Path) -> None:
    first = run(tmp_path, Scripted(gold, 4))
    again = Scripted(gold, 4)
    assert run(tmp_path, again, concurrency=2) == first
    assert again.asked == 0


def test_repeats_are_runs_of_their_own_where_answers_are_drawn(tmp_path: Path) -> None:
    scores = run(tmp_path, Scripted(gold, 4), repeats=3, sampling={"temperature": 0.7})
    assert (scores["episodes"], scores["all"]["measured"]) == (36, 12)


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    run(tmp_path, Scripted(gold, 4))
    with pytest.raises(ContractBroken, match="another model, seed"):
        run(tmp_path, Scripted(gold, 4), model="n", seed=1)


def test_questions_to_a_memory_come_after_the_conversations_that_fill_it(tmp_path: Path) -> None:
    def reply(conversation: Conversation) -> Answer:
        seen = "".join(str(m["content"]) for m in conversation.messages if m["role"] == "system")
        if "For your final answer" in seen:
            return Answer(content="Michael" if "the user is Michael" in seen else "I do not know")
        if conversation.messages[-1]["role"] == "tool":
            return Answer(content="Noted.")
        return Answer(calls=(parse_call("core_memory_add", '{"key": "user", "value": "the user is Michael"}'),))

    params = {"categories": ["memory_kv"]}
    first = [t for t in SUITE.tasks(params) if t.id.endswith(("_0-customer-0", "_1-customer-1"))]

    class Few:
        name = "bfcl"
        environment = staticmethod(SUITE.environment)

        def tasks(self, params: Any) -> list[Any]:
            return first

    scores = run_suite(request(tmp_path), Few(), Scripted(reply, 4), Silent())
    assert {row["task"]: row["success"] for row in read_rows(tmp_path / "results.jsonl")} == {
        first[0].id: 1.0,
        first[1].id: 0.0,
    }
    assert scores["all"]["nothing"] == 0.0


def test_a_server_that_refuses_the_key_ends_the_run_at_once(tmp_path: Path) -> None:
    model = Scripted(lambda _: Answer(error=AnswerError("HTTP 401", transient=False)), 1)
    with pytest.raises(Denied, match="CURATEEVO_API_KEY"):
        run(tmp_path, model)
    assert model.asked == 1


def test_a_line_that_was_cut_off_costs_its_own_task_and_no_other(tmp_path: Path) -> None:
    run(tmp_path, Scripted(gold, 4))
    results = tmp_path / "results.jsonl"
    results.write_text(results.read_text()[:-20])
    again = Scripted(gold, 4)
    assert run(tmp_path, again)["missing"] == 0
    assert again.asked >= 1
    assert len(read_rows(results)) == len(TASKS)


class Server(BaseHTTPRequestHandler):
    """Answers as the reference, after a while; counts the conversations that begin."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server: Any = self.server
        time.sleep(server.delay)
        answer = gold(Conversation(body["messages"], body.get("tools", [])))
        if not any(m["role"] == "assistant" for m in body["messages"]):
            server.begun.append(body["messages"][-1]["content"])
        calls = [
            {"id": f"c{n}", "type": "function", "function": {"name": c.name, "arguments": c.raw}}
            for n, c in enumerate(answer.calls)
        ]
        message = {"role": "assistant", "content": answer.content, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        whole = {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        data = json.dumps(whole).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    httpd: Any = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    httpd.daemon_threads = True
    httpd.begun, httpd.delay = [], 0.1
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()


def command(server: Any, folder: Path) -> list[str]:
    where = f"http://127.0.0.1:{server.server_address[1]}/v1"
    options = {
        "--suite": "bfcl",
        "--endpoint": where,
        "--model": "m",
        "--params": json.dumps(PARAMS),
        "-o": str(folder),
    }
    flat = [part for pair in options.items() for part in pair]
    return [sys.executable, "-m", "curateevo.cli", "evaluate", *flat, "--concurrency", "1"]


def test_a_run_that_is_killed_goes_on_where_it_was(server: Any, tmp_path: Path) -> None:
    first = subprocess.Popen(command(server, tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(read_rows(tmp_path / "results.jsonl")) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = {row["task"] for row in read_rows(tmp_path / "results.jsonl")}
    assert 3 <= len(done) < len(TASKS)
    server.begun.clear()
    server.delay = 0.0
    second = subprocess.run(command(server, tmp_path), capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert {BY_PROMPT[prompt].id for prompt in server.begun} <= {task.id for task in TASKS} - done
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert (scores["all"]["success"], scores["missing"]) == (1.0, 0)
    for line in ("simple_python", "multi_turn_base", "doing nothing", "reward"):
        assert line in second.stdout


def test_what_cannot_be_run_is_said_with_its_remedy_and_an_exit_code(server: Any, tmp_path: Path) -> None:
    wrong = [part.replace("simple_python", "memory_vector") for part in command(server, tmp_path)]
    done = subprocess.run(wrong, capture_output=True, text=True, check=False)
    assert done.returncode == 65
    assert "model hub" in done.stderr
