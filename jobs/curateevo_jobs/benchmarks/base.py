"""The suite protocol: tasks, an environment to act in, and a score. docs/benchmarks.md shows how to write one.

An environment has `call` and `score`. What more it can do it says by having the method: `Opening` has a user who speaks
first, `Closing` ends an episode after a call, `Conversing` has a user who goes on talking, `Reading` scores by the
whole transcript, `Carrying` leaves something for the tasks after it. The episode loop asks by `isinstance`; nothing is
to be registered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One evaluation task as a suite defines it.

    Sealed, never shown to a model or to a policy, are `state` and `later_prompts`: answers, checks, what users will
    say. What a model may see from the start is in `messages` and `tools` alone.
    """

    id: str
    """Stable, and unique in its suite."""
    family: str
    """The group that results are reported by, e.g. a skill or a category."""
    messages: tuple[JsonObject, ...]
    """The opening OpenAI messages, as the model sees them."""
    tools: tuple[JsonObject, ...]
    """OpenAI tool schemas, sorted by name."""
    state: str
    """JSON text of the environment's parameters. Sealed."""
    later_prompts: tuple[str, ...] = ()
    """What the user will say after `messages`, where it is known: trajectories that hold it are leaks. Sealed."""
    group: str = ""
    """Tasks of one group fall into one split: variants of one scenario. Empty: the task is alone."""
    prerequisites: tuple[Task, ...] = ()
    """Played before this task, in this order, and not scored; once for all tasks with equal prerequisites. Their
    environments are `Carrying`: each makes the next task what it is."""


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome of one episode."""

    success: float
    """0 to 1: what P averages."""
    reward: float
    """0 to 1, may be shaped: what RL maximises."""
    checks: dict[str, bool]


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What the user says to an answer."""

    messages: tuple[JsonObject, ...]
    """OpenAI messages to go on with."""
    tools: tuple[JsonObject, ...] | None = None
    """The tools from now on, sorted by name; None: as before."""


class Environment(Protocol):
    """The world of one episode. It lives as long as the episode does.

    Any method may raise Transient where the environment, not the agent, is to blame and another try may help, e.g. a
    user simulator that does not answer: the episode is then not measured.
    """

    def call(self, name: str, arguments: JsonObject) -> str:
        """Run one tool call and return the text of its result; a bad call is an error text, never an exception."""
        ...

    def score(self, final_text: str) -> Score:
        """Score what was done so far; `final_text` is the agent's last message without a call."""
        ...


@runtime_checkable
class Opening(Protocol):
    """An environment whose user speaks first, in words that no task can hold: a simulator's."""

    def open(self) -> Sequence[JsonObject]:
        """OpenAI messages to go on with after the task's. Called once, before the model is asked."""
        ...


@runtime_checkable
class Closing(Protocol):
    """An environment that may be over after a call: nothing an agent could add counts."""

    def closed(self) -> bool:
        """Whether the episode ends here. Asked after all calls of one answer were run."""
        ...


@runtime_checkable
class Conversing(Protocol):
    """An environment with a user: a list of messages, or a simulator behind an endpoint."""

    def reply(self, text: str) -> UserTurn | None:
        """What the user says to an answer without a call, or with one that can't be read; None: nothing, the episode is
        over. It must come to an end by itself: turns are limited between two user turns only."""
        ...


@runtime_checkable
class Reading(Protocol):
    """An environment whose score depends on the transcript."""

    def read(self, messages: Sequence[JsonObject]) -> None:
        """All messages of the episode, as the model saw and wrote them. Called once, right before `score`."""
        ...


@runtime_checkable
class Carrying(Protocol):
    """The environment of a prerequisite."""

    def carry(self, following: Task) -> Task:
        """`following` as this episode leaves it: its state, its opening messages."""
        ...


class Suite(Protocol):
    """A benchmark."""

    name: str

    def tasks(self, params: Mapping[str, Any]) -> Sequence[Task]:
        """All dev tasks under `params`, in a fixed order. Raises SpecInvalid for parameters it does not know."""
        ...

    def environment(self, state: str) -> Environment:
        """A fresh environment from a task's sealed state."""
        ...
