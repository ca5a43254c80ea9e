"""The data's milestones, mended by hand into calls that solve the task: the oracle that the suite is tested by."""

from __future__ import annotations

import json
from collections.abc import Sequence

from curateevo_jobs.agents.chat import Answer, parse_call
from curateevo_jobs.benchmarks.acebench.milestones import Call
from curateevo_jobs.benchmarks.acebench.worlds import FINISH
from curateevo_jobs.benchmarks.base import Task

UNANSWERABLE = {
    f"acebench/multi_step-{language}/agent_multi_step_{number}": (
        "the reference has a new reminder in an old one's place and number, to which no call leads; the official code "
        "does not see it, since the class is misspelt"
    )
    for language in ("en", "zh")
    for number in (0, 1)
}
"""Tasks that no answer solves, and why."""

LOGIN: Call = ("login_device", {})
ORDER = "add_food_delivery_order"


def gold_answers(task: Task) -> list[Answer]:
    """What to answer, in order, to be right: one call at a time, then the end; a user need not say anything."""
    state = json.loads(task.state)
    calls = [(name, arguments) for milestone in state["milestones"][0] for name, arguments in milestone]
    logged_in = state["world"]["config"].get("BaseApi", {}).get("logged_in", True)
    made = mended(task.id.rpartition("/")[2], calls, logged_in)
    return [*(Answer(calls=(parse_call(n, json.dumps(a)),)) for n, a in made), Answer(content=FINISH)]


def mended(name: str, calls: Sequence[Call], logged_in: bool) -> list[Call]:
    """The calls with what the milestones lack, and without what they have wrong."""
    made = list(calls)
    if not logged_in and LOGIN not in made:
        made = [LOGIN, *made]
    if name in ("agent_multi_step_12", "agent_multi_step_13"):  # an order of somebody who never logged in
        who = {"username": "Helen", "password": "password321"}
        made.insert([n for n, _ in made].index(ORDER), ("login_food_platform", who))
    if name in ("agent_multi_step_14", "agent_multi_step_15", "agent_multi_step_16", "agent_multi_step_17"):
        # The task asks for the latest message to be deleted, and so does the reference of all but 16.
        latest = {
            "get_earliest_message_id": ("get_latest_message_id", {}),
            "delete_message": ("delete_message", {"message_id": 4}),
        }
        made = [latest.get(n, (n, a)) for n, a in made]
    return made
