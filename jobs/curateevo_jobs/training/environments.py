"""Suites as TRL environments: one class per set of tools, made from the suite's schemas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from curateevo.api.base import digest_of
from curateevo.api.errors import ContractBroken
from curateevo_jobs.benchmarks.base import Environment, Score, Suite
from curateevo_jobs.training.rows import RlRow

JsonObject = dict[str, Any]

RESERVED = frozenset({"reset", "get_reward"})
"""What TRL calls on an environment itself."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The environment class of the rows that share a suite and tools."""

    factory: type
    schemas: tuple[JsonObject, ...]


def stage_name(row: RlRow) -> str:
    """Rows with the same suite and the same tools share an environment class."""
    return f"{row.suite or 'match'}-{digest_of(list(row.tools))[7:19]}"


def build_stages(rows: Sequence[RlRow], suites: dict[str, Suite]) -> dict[str, Stage]:
    """The environment class of each name. Raises ContractBroken for tool names that TRL can't have."""
    stages: dict[str, Stage] = {}
    for row in rows:
        name = stage_name(row)
        if name not in stages:
            stages[name] = Stage(_build_class(row.tools, suites.get(row.suite)), row.tools)
    return stages


def _build_class(tools: Sequence[JsonObject], suite: Suite | None) -> type:
    """A class with one public method per tool; TRL takes public methods for the tools.

    Methods take any arguments: what is wrong with them is the environment's to say, as in evaluation.
    """
    members: dict[str, Any] = {"_suite": suite, "_world": None, "reset": _reset, "_score": _score}
    for tool in tools:
        name = str(tool["function"]["name"])
        if name in RESERVED or name.startswith("_"):
            raise ContractBroken(f"a tool can't be called {name!r} in GRPO")
        members[name] = _method(name, str(tool["function"].get("description", name)))
    return type("SuiteEnvironment", (), members)


def _reset(self: Any, state: str = "", **row: Any) -> None:
    """Open the world of one rollout. Rows without a suite are judged by their first call and need none."""
    self._world = self._suite.environment(state) if self._suite is not None else None


def _score(self: Any, final_text: str) -> Score:
    world: Environment = self._world
    return world.score(final_text)


def _method(name: str, description: str) -> Callable[..., str]:
    def method(self: Any, **arguments: Any) -> str:
        world: Environment = self._world
        return world.call(name, arguments)

    method.__name__ = name
    method.__qualname__ = f"SuiteEnvironment.{name}"
    method.__doc__ = description
    return method
