"""τ²'s environments. They keep the conversation as data; the package's code acts on it in the enclosure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from curateevo_jobs.agents.chat import Answer, parse_call
from curateevo_jobs.agents.episode import render_call, seed_of
from curateevo_jobs.benchmarks.base import JsonObject, Score, UserTurn
from curateevo_jobs.benchmarks.enclosure import Enclosure, Stopped, enclosure
from curateevo_jobs.benchmarks.simulator import Simulator

INSIDE = "curateevo_jobs.benchmarks.tau2.inside"
DONE = "done"
"""The tool by which an agent without a user ends."""
STOP_SIGNS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
MAX_MESSAGES, MAX_ERRORS = 200, 10
"""The package's limits (`max_steps`, `max_errors`), counted in messages. A conversation that comes to one fails."""
FAILED = "Error: the call was stopped"
OVER = "Error: the conversation is over"

Ended = Literal["", "agent_stop", "user_stop", "max_steps", "too_many_errors", "stopped"]


def inside() -> Enclosure:
    return enclosure(INSIDE)


@dataclass
class Solo:
    """An agent with a ticket and the tools of both sides, and nobody to talk to. A text is no end: `done` is."""

    alone: ClassVar[bool] = True

    state: JsonObject
    log: list[JsonObject] = field(default_factory=list)
    """The conversation, as messages of the package."""
    ended: Ended = ""
    errors: int = 0
    told: list[str] = field(default_factory=list)
    """The agent's texts beside calls, which count as told to the user."""

    def __post_init__(self) -> None:
        self.log = list(self.state["history"])

    def call(self, name: str, arguments: JsonObject) -> str:
        if self.ended:
            return OVER
        if self.alone and name == DONE:
            self.ended = "agent_stop"
            return "done"
        return self._act("assistant", name, arguments)

    def closed(self) -> bool:
        return bool(self.ended)

    def read(self, messages: Sequence[JsonObject]) -> None:
        self.told = [str(m["content"]) for m in messages if m.get("tool_calls") and m["content"]]

    def score(self, final_text: str) -> Score:
        if self.ended not in ("agent_stop", "user_stop"):
            return Score(0.0, 0.0, {"ended": False, **({self.ended: True} if self.ended else {})})
        told = [{"role": "assistant", "content": text} for text in self.told]
        try:
            found = inside().ask({**self._job("score"), "log": [*self.log, *told], "by": self.ended})
        except Stopped:
            return Score(0.0, 0.0, {"ended": True, "stopped": True})
        checks = {name.lower(): value == 1.0 for name, value in found["parts"].items()}
        return Score(found["reward"], found["reward"], {"ended": True, **checks})

    def _act(self, who: Literal["assistant", "user"], name: str, arguments: JsonObject) -> str:
        """Make a call for one side and write it down."""
        call = {"id": f"{len(self.log)}", "name": name, "arguments": arguments, "requestor": who}
        try:
            result = inside().ask({**self._job("act"), "log": self.log, "call": call})
        except Stopped as error:
            self.ended = "stopped"
            return f"{FAILED}: {error}"
        self.log += [{"role": who, "content": None, "tool_calls": [call]}, result]
        self.errors += bool(result["error"])
        if self.errors >= MAX_ERRORS:
            self.ended = "too_many_errors"
        elif len(self.log) >= MAX_MESSAGES:
            self.ended = "max_steps"
        return str(result["content"])

    def _job(self, do: str) -> JsonObject:
        return {"do": do, "solo": self.alone, "domain": self.state["domain"], "task": self.state["task"]}


@dataclass
class Talk(Solo):
    """An agent and a user, whom a model plays. The user may have tools too, whose calls the agent does not see."""

    alone: ClassVar[bool] = False

    def open(self) -> Sequence[JsonObject]:
        """What the user says first."""
        if self.log[-1]["role"] == "user":
            return ()
        said = self._hear()
        return said.messages if said else ()

    def reply(self, text: str) -> UserTurn | None:
        """What the user says. An agent that says nothing ends the conversation."""
        if not text.strip():
            self.ended = self.ended or "agent_stop"
        if self.ended:
            return None
        self.log.append({"role": "assistant", "content": text})
        return self._hear()

    def _hear(self) -> UserTurn | None:
        while not self.ended:
            answer = self._ask()
            for call in answer.calls:
                self._act("user", call.name, call.arguments or {})
            if not answer.calls:
                self.log.append({"role": "user", "content": answer.content})
                if any(sign in answer.content for sign in STOP_SIGNS):
                    self.ended = "user_stop"
                elif len(self.log) >= MAX_MESSAGES:
                    self.ended = "max_steps"
                else:
                    return UserTurn(({"role": "user", "content": answer.content},))
        return None

    def _ask(self) -> Answer:
        simulator = Simulator.model_validate(self.state["simulator"])
        system = {"role": "system", "content": self.state["user"]}
        seed = seed_of(self.state["domain"], self.state["task"]["id"], len(self.log))
        return simulator.say([system, *as_user_sees(self.log)], self.state["user_tools"], seed)


def as_user_sees(log: Sequence[JsonObject]) -> list[JsonObject]:
    """The conversation with the roles turned round: the agent's texts, the user's texts and calls."""
    seen: list[JsonObject] = []
    for message in log:
        match message["role"]:
            case "tool" if message["requestor"] == "user":
                seen.append({"role": "tool", "tool_call_id": message["id"], "content": message["content"]})
            case "user":
                seen.append(openai_message({**message, "role": "assistant"}))
            case "assistant" if not message.get("tool_calls"):
                seen.append({"role": "user", "content": message["content"]})
    return seen


def as_agent_sees(log: Sequence[JsonObject]) -> list[JsonObject]:
    """The conversation without the user's calls."""
    seen: list[JsonObject] = []
    for message in log:
        if message["role"] == "tool" and message["requestor"] == "assistant":
            seen.append({"role": "tool", "tool_call_id": message["id"], "content": message["content"]})
        elif message["role"] == "assistant" or (message["role"] == "user" and not message.get("tool_calls")):
            seen.append(openai_message(message))
    return seen


def openai_message(message: JsonObject) -> JsonObject:
    """A text, or calls, of the package as a message of OpenAI's API."""
    plain: JsonObject = {"role": message["role"], "content": message["content"] or ""}
    calls = [
        render_call(c["id"], parse_call(c["name"], json.dumps(c["arguments"], ensure_ascii=False)))
        for c in message.get("tool_calls") or ()
    ]
    return {**plain, "tool_calls": calls} if calls else plain


def open_world(state: str) -> Solo:
    """The environment of a task's state."""
    parsed: dict[str, Any] = json.loads(state)
    return Solo(parsed) if parsed["simulator"] is None else Talk(parsed)
