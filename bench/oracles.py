"""`python -m bench.oracles [SUITE [FAMILY ...]]`: what oracles score on every task of a suite, as a Markdown table.

gold gives the package's own answers; nothing answers at once with an empty text; random calls one tool of the task, by
chance and with the least that the schema takes. All go the way of a model's answers. Questions to a memory are asked
without the conversations before: nothing depends on them here. Users who are simulated say one thing, then goodbye.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from curateevo_jobs.agents.chat import Answer, Generation, parse_call
from curateevo_jobs.agents.episode import Episode, Rules, play_one
from curateevo_jobs.agents.scripted import Scripted, in_turn
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.acebench import gold as acebench
from curateevo_jobs.benchmarks.acebench.suite import FAMILIES as ACEBENCH_FAMILIES
from curateevo_jobs.benchmarks.base import Suite, Task
from curateevo_jobs.benchmarks.bfcl import gold as bfcl
from curateevo_jobs.benchmarks.bfcl.categories import GROUPS
from curateevo_jobs.benchmarks.tau2 import gold as tau2
from tests.conftest import ACEBENCH
from tests.jobs.simulated_user import simulated_user

RULES = Rules(Generation(0.0, 1), max_turns=100)
FAMILIES = {
    "bfcl": list(GROUPS),
    "tau2": ["airline", "retail", "telecom-solo", "mock", "mock-solo"],
    "acebench": list(ACEBENCH_FAMILIES),
}
UNANSWERABLE = bfcl.UNANSWERABLE | tau2.UNANSWERABLE | acebench.UNANSWERABLE

Agent = Callable[[Task], Sequence[Answer]]


def nothing(task: Task) -> list[Answer]:
    return []


def at_random(task: Task) -> list[Answer]:
    if not task.tools:
        return []
    function = random.Random(task.id).choice(task.tools)["function"]
    schema = function["parameters"]
    arguments = {
        key: least(schema["properties"][key]) for key in schema.get("required", ()) if key in schema["properties"]
    }
    return [Answer(calls=(parse_call(function["name"], json.dumps(arguments)),))]


def least(schema: dict[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    return {"integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}.get(schema.get("type"), "")


AGENTS: dict[str, dict[str, Agent]] = {
    name: {"gold": module.gold_answers, "nothing": nothing, "random": at_random}
    for name, module in (("bfcl", bfcl), ("tau2", tau2), ("acebench", acebench))
}


def passed(suite: Suite, task: Task, answers: Sequence[Answer]) -> bool:
    messages = [dict(message) for message in task.messages]
    episode = Episode(0, messages, task.tools, suite.environment(task.state))
    play_one(Scripted(in_turn(*[Answer()] * said(task), *answers)), episode, RULES)
    return episode.score().success == 1.0


def said(task: Task) -> int:
    """Answers that a task begins with."""
    return sum(message["role"] == "assistant" for message in task.messages)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", nargs="?", default="bfcl", choices=list(FAMILIES))
    parser.add_argument("families", nargs="*")
    asked = parser.parse_args()
    suite, agents = registry.suite(asked.suite), AGENTS[asked.suite]
    families = asked.families or FAMILIES[asked.suite]
    unexpected = []
    with simulated_user() as user:
        params = {
            "bfcl": {"categories": families},
            "tau2": {"domains": families, "user": user},
            "acebench": {"families": families, "user": user, "folder": str(ACEBENCH)},
        }[asked.suite]
        tasks = suite.tasks(params)
        print("| family | tasks | " + " | ".join(agents) + " | seconds |\n|---|" + "---|" * (len(agents) + 2))
        for family in dict.fromkeys(task.family for task in tasks):
            mine = [task for task in tasks if task.family == family]
            began = time.monotonic()
            found = {name: [passed(suite, task, agent(task)) for task in mine] for name, agent in agents.items()}
            unexpected += [
                t.id for t, right in zip(mine, found["gold"], strict=True) if right == (t.id in UNANSWERABLE)
            ]
            counts = " | ".join(str(sum(values)) for values in found.values())
            print(f"| {family} | {len(mine)} | {counts} | {time.monotonic() - began:.0f} |", flush=True)
    print(f"gold answers that should pass and do not, or the reverse: {unexpected or 'none'}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    raise SystemExit(main())
