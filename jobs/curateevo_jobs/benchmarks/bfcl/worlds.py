"""BFCL's environments. They keep what the agent did as data; the package's code acts on it in the enclosure."""

from __future__ import annotations

import json
import keyword
from dataclasses import dataclass, field, replace
from typing import Any

from curateevo_jobs.benchmarks.base import JsonObject, Score, Task, UserTurn
from curateevo_jobs.benchmarks.enclosure import Enclosure, Stopped, enclosure

INSIDE = "curateevo_jobs.benchmarks.bfcl.inside"
UNDEFINED = "undefined_function()"
"""Stands for a call that is none of the task's: the checker finds, as it would, that there is no such function."""

FAILED = "Error during execution"
"""How the package's environments begin to say so."""

Call = tuple[str, JsonObject]


def inside() -> Enclosure:
    return enclosure(INSIDE)


@dataclass(slots=True)
class SingleTurn:
    """One answer: its calls are compared with the possible ones, or whether it calls with whether it should."""

    state: JsonObject
    calls: list[Call] = field(default_factory=list)

    def call(self, name: str, arguments: JsonObject) -> str:
        self.calls.append((name, arguments))
        return "recorded"

    def closed(self) -> bool:
        return True

    def score(self, final_text: str) -> Score:
        checks = {"called": bool(self.calls)}
        if self.state["truth"] is None:
            right = bool(self.calls) == self.state["category"].endswith("_relevance")
            return Score(float(right), float(right), checks)
        job = {
            "do": "ast",
            "calls": [{name: arguments} for name, arguments in self.calls],
            **{key: self.state[key] for key in ("functions", "truth", "language", "category")},
        }
        return judged(job, checks)


@dataclass(slots=True)
class Turns:
    """A user of several turns, and environments whose state after every turn is compared with the reference's."""

    state: JsonObject
    turns: list[list[Call]] = field(default_factory=lambda: [[]])
    """Calls by user turn."""
    tools: list[JsonObject] = field(default_factory=list)
    stopped: str = ""
    """Why a call was stopped. The environment it was made in is gone, and with it all that could be scored."""

    def __post_init__(self) -> None:
        self.tools = list(self.state["tools"])

    def call(self, name: str, arguments: JsonObject) -> str:
        self.turns[-1].append((name, arguments))
        if not self.stopped:
            try:
                return act(self.state, [call for turn in self.turns for call in turn], self.tools)[0]
            except Stopped as error:
                self.stopped = str(error)
        return f"{FAILED}: {self.stopped}"

    def reply(self, text: str) -> UserTurn | None:
        users = self.state["users"]
        number = len(self.turns)
        if number > len(users):
            return None
        self.turns.append([])
        added = self.state["added"].get(str(number))
        if added is not None:
            self.tools = sorted([*self.tools, *added], key=lambda tool: str(tool["function"]["name"]))
        return UserTurn(tuple(users[number - 1]), tuple(self.tools) if added is not None else None)

    def score(self, final_text: str) -> Score:
        wanted = len(self.state["users"]) + 1
        checks = {"called": any(self.turns), "all_turns": len(self.turns) == wanted}
        if self.stopped:
            return Score(0.0, 0.0, {**checks, "stopped": True})
        known = names_of(self.tools)
        # To the checker it is all the same how the calls of a turn were spread over answers.
        turns = [[[as_text(call, known)] for call in turn] for turn in self.turns]
        job = {"do": "turns", "turns": turns, **{key: self.state[key] for key in ("truth", "entry", "category")}}
        try:
            right = int(inside().ask(job)["right"])
        except Stopped:
            return Score(0.0, 0.0, {**checks, "stopped": True})
        # An episode of GRPO ends with the first user turn: its reward is this turn's share.
        return Score(float(right == wanted), right / wanted, checks)


@dataclass(slots=True)
class Memory:
    """A conversation with an agent that keeps notes. A prerequisite leaves its notes to what follows; a question is
    scored by whether the final text has the answer."""

    state: JsonObject
    turn: int = 0
    notes: JsonObject | None = None

    def __post_init__(self) -> None:
        self.notes = self.state["memory"]

    def call(self, name: str, arguments: JsonObject) -> str:
        try:
            result, self.notes = act({**self.state, "memory": self.notes}, [(name, arguments)], self.state["tools"])
        except Stopped as error:
            return f"{FAILED}: {error}"
        return result

    def reply(self, text: str) -> UserTurn | None:
        users = self.state["users"]
        if self.turn >= len(users):
            return None
        self.turn += 1
        return UserTurn(tuple(users[self.turn - 1]))

    def carry(self, following: Task) -> Task:
        state = {**json.loads(following.state), "memory": self.notes}
        job = {"do": "greet", "messages": state["opening"], **{k: state[k] for k in ("entry", "category", "memory")}}
        opening = inside().ask(job)["messages"]
        return replace(following, state=json.dumps(state, ensure_ascii=False), messages=tuple(opening))

    def score(self, final_text: str) -> Score:
        if self.state["truth"] is None:
            return Score(0.0, 0.0, {})
        return judged({"do": "text", "text": final_text, "truth": self.state["truth"]}, {"answered": bool(final_text)})


def names_of(tools: list[JsonObject]) -> frozenset[str]:
    return frozenset(str(tool["function"]["name"]) for tool in tools)


def is_data(call: Call, known: frozenset[str]) -> bool:
    """Whether a call is one of the task's tools with arguments that have names: then nothing of it is ever code."""
    name, arguments = call
    return name in known and all(key.isidentifier() and not keyword.iskeyword(key) for key in arguments)


def as_text(call: Call, known: frozenset[str]) -> str:
    """A call as the package's checker evaluates it: a known name, argument names, and literals."""
    if not is_data(call, known):
        return UNDEFINED
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def act(state: JsonObject, calls: list[Call], tools: list[JsonObject]) -> tuple[str, JsonObject | None]:
    """Make the calls in a fresh environment: the last one's result, and an agent's notes. Raises Stopped."""
    known = names_of(tools)
    memory = state.get("memory")
    if not is_data(calls[-1], known):
        return f"{FAILED}: name '{calls[-1][0]}' is not defined", memory
    job = {
        "do": "act",
        "entry": state["entry"],
        "calls": [call for call in calls if is_data(call, known)],
        "memory": memory,
    }
    done = inside().ask(job)
    return str(done["result"]), done["memory"]


def judged(job: JsonObject, checks: dict[str, bool]) -> Score:
    """The score of a job that judges. An answer that ends its judge, or keeps it busy, is wrong."""
    try:
        valid = bool(inside().ask(job)["valid"])
    except Stopped:
        return Score(0.0, 0.0, {**checks, "stopped": True})
    return Score(float(valid), float(valid), checks)


def open_world(state: str) -> SingleTurn | Turns | Memory:
    """The environment of a task's state."""
    parsed: dict[str, Any] = json.loads(state)
    match parsed["kind"]:
        case "ast":
            return SingleTurn(parsed)
        case "turns":
            return Turns(parsed)
        case _:
            return Memory(parsed)
