"""The package's own actions, as an agent would make them: the oracle that the suite is tested by."""

from __future__ import annotations

import json

from curateevo_jobs.agents.chat import Answer, parse_call
from curateevo_jobs.benchmarks.base import JsonObject, Task
from curateevo_jobs.benchmarks.tau2.worlds import DONE

UNANSWERABLE = {
    "tau2/mock-solo/update_task_with_initialization_data": "something must be told, and there is nobody to tell it to",
    "tau2/mock/update_task_with_history_and_env_assertions": "the reference has no actions that meet its assertions",
}
"""Tasks that the reference's actions do not solve, and why."""


def gold_answers(task: Task) -> list[Answer]:
    """What to answer, in order, to be right: every action, whichever side is to make it; then what must be told. With a
    user, who ends the conversation after it; without, `done`. Not for domains whose users have tools."""
    state = json.loads(task.state)
    criteria = state["task"]["evaluation_criteria"] or {}
    answers = [_call(action["name"], action["arguments"]) for action in criteria.get("actions") or ()]
    if state["simulator"] is None:
        return [*answers, _call(DONE, {})]
    return [*answers, Answer(content=" ".join(["Done.", *(criteria.get("communicate_info") or ())]))]


def _call(name: str, arguments: JsonObject) -> Answer:
    return Answer(calls=(parse_call(name, json.dumps(arguments)),))
