"""What runs in the enclosure: the package's environments and evaluators. A job is a JSON object with `do`.

Everything that is needed is imported, and every data base read, here and before confinement; afterwards no file can be
opened. A process does one job: the environments that are at hand may be spoilt.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

from curateevo_jobs.benchmarks.tau2 import offline  # noqa: F401  before the package

# isort: split
from loguru import logger
from pydantic import TypeAdapter
from tau2.data_model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from tau2.data_model.simulation import SimulationRun
from tau2.data_model.tasks import Task
from tau2.domains.telecom import tools as telecom
from tau2.environment.environment import Environment
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
from tau2.registry import registry

JsonObject = dict[str, Any]

DOMAINS = ("airline", "retail", "telecom", "mock")
AT_HAND = 2
"""Environments of each domain: a score needs one for what was done and one for what should have been."""
MESSAGE: TypeAdapter[Message] = TypeAdapter(AssistantMessage | UserMessage | ToolMessage)

logger.remove()

_numbers = count()
# One tool makes up an id by chance, so that the same calls would have other results when they are made again.
telecom.uuid = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(_numbers):032x}"[::-1]))

_ready: dict[str, list[Environment]] = {
    domain: [registry.get_env_constructor(domain)() for _ in range(AT_HAND)] for domain in DOMAINS
}


def _constructor(domain: str) -> Callable[..., Environment]:
    def construct(solo_mode: bool = False) -> Environment:
        environment = _ready[domain].pop()
        environment.set_solo_mode(solo_mode)
        return environment

    return construct


for _domain in DOMAINS:
    registry._domains[_domain] = _constructor(_domain)


def answer(job: JsonObject) -> JsonObject:
    """The answer to a job."""
    match job["do"]:
        case "act":
            return act(job["domain"], job["solo"], Task.model_validate(job["task"]), job["log"], job["call"])
        case "score":
            return score(job["domain"], job["solo"], Task.model_validate(job["task"]), job["log"], job["by"])
        case other:
            raise ValueError(f"no job {other!r}")


def act(domain: str, solo: bool, task: Task, log: list[JsonObject], call: JsonObject) -> JsonObject:
    """Make a call after all that is in the log: its result as a message of the package."""
    environment = registry.get_env_constructor(domain)(solo_mode=solo)
    start = task.initial_state
    environment.set_state(
        start.initialization_data if start else None, start.initialization_actions if start else None, _messages(log)
    )
    result: JsonObject = environment.get_response(ToolCall.model_validate(call)).model_dump(mode="json")
    return result


def score(domain: str, solo: bool, task: Task, log: list[JsonObject], by: str) -> JsonObject:
    """The reward of a conversation that was ended `by` the agent or the user, and what it consists of."""
    simulation = SimulationRun(
        id="",
        task_id=task.id,
        start_time="",
        end_time="",
        duration=0.0,
        termination_reason=by,
        messages=_messages(log),
    )
    found = evaluate_simulation(simulation, task, EvaluationType.ALL, solo, domain)
    parts = {kind.value: value for kind, value in (found.reward_breakdown or {}).items()}
    return {"reward": found.reward, "parts": parts}


def _messages(log: list[JsonObject]) -> list[Message]:
    return [MESSAGE.validate_python(message) for message in log]
