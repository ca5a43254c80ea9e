"""ACEBench's environments. They keep what was done as data; the package's code acts on it in the enclosure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from curateevo_jobs.agents.episode import seed_of
from curateevo_jobs.benchmarks.acebench.milestones import Call, reached
from curateevo_jobs.benchmarks.base import JsonObject, Score, UserTurn
from curateevo_jobs.benchmarks.enclosure import Enclosure, Stopped, enclosure
from curateevo_jobs.benchmarks.simulator import Simulator

INSIDE = "curateevo_jobs.benchmarks.acebench.inside"
FINISH = "finish conversation"
"""By these words either side ends a conversation."""
NUDGE = "Please do not ask me any questions, use the known conditions to solve the problem"
"""What an agent without a user is told when it writes a text: the official runner's words, in both languages."""
MAX_MESSAGES = 40
"""The official limit (`max_dialog_turns`): of answers, results, and what users say."""
FAILED = "Error during execution"
OVER = f"{FAILED}: the conversation is over"


def inside() -> Enclosure:
    return enclosure(INSIDE)


@dataclass
class Steps:
    """An agent that is told all at once. It ends by saying so."""

    state: JsonObject
    calls: list[Call] = field(default_factory=list)
    messages: int = 0
    """So far, without the opening. A call and its result are two."""
    finished: bool = False
    stopped: bool = False
    """A call was stopped. The world it was made in is gone, and with it all that could be scored."""

    def call(self, name: str, arguments: JsonObject) -> str:
        if self.closed():
            return OVER
        self.messages += 2
        if name not in self.state["tools"]:
            return f"{FAILED}: name '{name}' is not defined"
        self.calls.append((name, arguments))
        try:
            return str(self._ask({})["result"])
        except Stopped as error:
            self.stopped = True
            return f"{FAILED}: {error}"

    def closed(self) -> bool:
        return self.finished or self.stopped or self.messages >= MAX_MESSAGES

    def reply(self, text: str) -> UserTurn | None:
        """What is said to a text. An agent that says nothing ends the conversation."""
        self.messages += 1
        self.finished = self.finished or FINISH in text or not text.strip()
        return None if self.closed() else self._hear(text)

    def score(self, final_text: str) -> Score:
        checks = {"finished": self.finished, "corrected_class_name": bool(self.state["corrected"])}
        try:
            right = not self.stopped and bool(self._ask({"truth": self.state["truth"]})["right"])
        except Stopped:
            self.stopped, right = True, False
        if self.stopped:
            return Score(0.0, 0.0, {**checks, "stopped": True})
        # As officially: where the end is right, so is the way.
        process = 1.0 if right else reached(self.calls, self.state["milestones"])
        return Score(float(right), process, {**checks, "end_state": right, "milestones": process == 1.0})

    def _hear(self, text: str) -> UserTurn | None:
        self.messages += 1
        return None if self.closed() else UserTurn(({"role": "user", "content": NUDGE},))

    def _ask(self, more: JsonObject) -> JsonObject:
        return inside().ask({**self.state["world"], "calls": self.calls, **more})


@dataclass
class Talk(Steps):
    """An agent and a user, whom a model plays by an instruction that the agent does not see."""

    said: list[JsonObject] = field(default_factory=list)
    """The conversation as the user sees it: the agent is the `user`."""

    def open(self) -> Sequence[JsonObject]:
        """What the user wants."""
        self.messages -= 1  # the opening does not count
        said = self._hear(self.state["greeting"])
        return said.messages if said else ()

    def _hear(self, text: str) -> UserTurn | None:
        self.said.append({"role": "user", "content": text})
        system = {"role": "system", "content": self.state["user"]}
        simulator = Simulator.model_validate(self.state["simulator"])
        answer = simulator.say([system, *self.said], [], seed_of(self.state["id"], len(self.said)))
        self.said.append({"role": "assistant", "content": answer.content})
        self.messages += 1
        self.finished = FINISH in answer.content
        return None if self.closed() else UserTurn(({"role": "user", "content": answer.content},))


def open_world(state: str) -> Steps:
    """The environment of a task's state."""
    parsed: dict[str, Any] = json.loads(state)
    # JSON has no tuples.
    parsed["milestones"] = [[[(n, a) for n, a in stone] for stone in way] for way in parsed["milestones"]]
    return Talk(parsed) if "simulator" in parsed else Steps(parsed)
