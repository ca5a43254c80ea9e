"""The suite protocol: tasks, an environment to act in, and a score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One evaluation task as a suite defines it."""

    id: str
    """Stable, and unique in its suite."""
    family: str
    """The group that results are reported by, e.g. a skill or a category."""
    messages: tuple[JsonObject, ...]
    """The opening OpenAI messages, as the model sees them."""
    tools: tuple[JsonObject, ...]
    """OpenAI tool schemas, sorted by name."""
    state: str
    """JSON text of the environment's parameters. Sealed: never shown to a model or to a policy."""


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome of one episode."""

    success: float
    """0 to 1: what P averages."""
    reward: float
    """0 to 1, may be shaped: what RL maximises."""
    checks: dict[str, bool]


class Environment(Protocol):
    """The world of one episode. It lives as long as the episode does."""

    def call(self, name: str, arguments: JsonObject) -> str:
        """Run one tool call and return the text of its result; a bad call is an error text, never an exception."""
        ...

    def score(self, final_text: str) -> Score:
        """Score what was done so far; `final_text` is the agent's last message without a call."""
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

    def tools(self) -> tuple[JsonObject, ...]:
        """All tool schemas of the suite, sorted by name."""
        ...
