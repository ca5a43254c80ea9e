"""toolworld as a benchmark suite: the dev pool of tasks, and the environment to act in."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from curateevo.api.errors import SpecInvalid
from curateevo_jobs.benchmarks.base import JsonObject, Task
from curateevo_jobs.benchmarks.toolworld.phrasing import Skill
from curateevo_jobs.benchmarks.toolworld.world import Scenario, World, draw_scenario, tool_schemas

DEFAULT_TASKS_PER_SKILL = 60
MOST_TASKS_PER_SKILL = 200
_KNOWN_PARAMS = frozenset({"perSkill", "seed", "skills"})


class ToolworldSuite:
    """The built-in suite. Params: `perSkill` (60), `seed` (0) and `skills` (all of them)."""

    name = "toolworld"

    def tasks(self, params: Mapping[str, Any]) -> Sequence[Task]:
        """All dev tasks, skill by skill, no two with one prompt. Raises SpecInvalid for bad params."""
        if unknown := sorted(set(params) - _KNOWN_PARAMS):
            raise SpecInvalid(f"toolworld knows no param {unknown[0]!r}", hint="known: perSkill, seed, skills")
        per_skill = _integer(params, "perSkill", DEFAULT_TASKS_PER_SKILL, 1, MOST_TASKS_PER_SKILL)
        seed = _integer(params, "seed", 0, 0, 2**31)
        schemas = tool_schemas()
        return [
            _task(scenario, schemas) for skill in _skills(params) for scenario in dev_scenarios(skill, per_skill, seed)
        ]

    def environment(self, state: str) -> World:
        """A fresh world from a task's state."""
        return World.from_state(state)

    def tools(self) -> tuple[JsonObject, ...]:
        """All tools, sorted by name."""
        return tool_schemas()


def dev_scenarios(skill: Skill, count: int, seed: int = 0) -> list[Scenario]:
    """The first `count` scenarios of a skill's dev pool; a longer pool begins with a shorter one."""
    rng = random.Random(f"toolworld dev {seed} {skill}")
    scenarios: dict[str, Scenario] = {}
    while len(scenarios) < count:
        scenario = draw_scenario(skill, rng, dev=True)
        scenarios.setdefault(scenario.prompt, scenario)
    return list(scenarios.values())


def _task(scenario: Scenario, schemas: tuple[JsonObject, ...]) -> Task:
    return Task(
        id=scenario.task_id,
        family=scenario.skill.value,
        messages=({"role": "user", "content": scenario.prompt},),
        tools=schemas,
        state=scenario.state(),
    )


def _integer(params: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = params.get(name, default)
    # The cluster's JSON may hand over 60 as 60.0.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise SpecInvalid(f"toolworld: {name} must be a whole number, not {value!r}")
    if not least <= value <= most:
        raise SpecInvalid(f"toolworld: {name} must be from {least} to {most}, not {value}")
    return int(value)


def _skills(params: Mapping[str, Any]) -> list[Skill]:
    """The skills asked for, in the suite's own order."""
    known = [skill.value for skill in Skill]
    wanted = params.get("skills") or known
    if not isinstance(wanted, list | tuple) or not all(skill in known for skill in wanted):
        raise SpecInvalid(
            f"toolworld: skills must be a list of its skills, not {wanted!r}",
            hint=f"skills: {', '.join(known)}",
        )
    return [skill for skill in Skill if skill in wanted]
