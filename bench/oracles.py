"""`python -m bench.oracles`: what oracles score on every task of BFCL, by category, as a Markdown table.

gold gives the package's own answers; nothing answers at once with an empty text; random calls one tool of the task, by
chance and with the least that the schema takes. All go the way of a model's answers. Questions to a memory are asked
without the conversations before: nothing depends on them here.
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
from curateevo_jobs.benchmarks.base import Task
from curateevo_jobs.benchmarks.bfcl.categories import GROUPS
from curateevo_jobs.benchmarks.bfcl.gold import UNANSWERABLE, gold_answers
from curateevo_jobs.benchmarks.bfcl.suite import BfclSuite

RULES = Rules(Generation(0.0, 1), max_turns=20)
SUITE = BfclSuite()


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
    return {"integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}.get(schema["type"], "")


AGENTS: dict[str, Callable[[Task], Sequence[Answer]]] = {"gold": gold_answers, "nothing": nothing, "random": at_random}


def passed(task: Task, answers: Sequence[Answer]) -> bool:
    messages = [dict(message) for message in task.messages]
    episode = Episode(0, messages, task.tools, SUITE.environment(task.state))
    play_one(Scripted(in_turn(*answers)), episode, RULES)
    return episode.score().success == 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("categories", nargs="*", default=list(GROUPS))
    categories = parser.parse_args().categories
    tasks = SUITE.tasks({"categories": categories})
    print("| category | tasks | " + " | ".join(AGENTS) + " | seconds |\n|---|" + "---|" * (len(AGENTS) + 2))
    unexpected = []
    for category in dict.fromkeys(task.family for task in tasks):
        mine = [task for task in tasks if task.family == category]
        began = time.monotonic()
        found = {name: [passed(task, agent(task)) for task in mine] for name, agent in AGENTS.items()}
        unexpected += [t.id for t, right in zip(mine, found["gold"], strict=True) if right == (t.id in UNANSWERABLE)]
        counts = " | ".join(str(sum(values)) for values in found.values())
        print(f"| {category} | {len(mine)} | {counts} | {time.monotonic() - began:.0f} |", flush=True)
    print(f"gold answers that should pass and do not, or the reverse: {unexpected or 'none'}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    raise SystemExit(main())
