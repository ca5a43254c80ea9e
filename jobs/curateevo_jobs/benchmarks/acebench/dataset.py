"""ACEBench's agent tasks, from a folder in the layout of the official `data_all`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from curateevo.api.errors import ContractBroken
from curateevo_jobs.benchmarks.acebench.instructions import STEPS, TALK
from curateevo_jobs.benchmarks.acebench.milestones import Milestone, read_milestones
from curateevo_jobs.benchmarks.base import JsonObject, Task
from curateevo_jobs.benchmarks.reading import read_items
from curateevo_jobs.benchmarks.simulator import Simulator

LOADER = "curateevo_jobs.benchmarks.acebench.load"
INSTALL = "pip install --no-deps evalscope==1.14.1"
LAYOUT = (
    "folder must be a copy of ACEBench's data_all: data_en/data_agent_multi_step.json, data_en/possible_answer/..., "
    "data_zh/...; see docs/benchmarks.md"
)

CORRECTED = {"ReminderAPI": "ReminderApi", "Reminderpi": "ReminderApi", "BaseAPI": "BaseApi", "Baspi": "BaseApi"}
"""Class names that the data misspells. The official code takes them for other classes, and compares nothing."""
JSON_TYPES = {"dict": "object", "list": "array"}
DOING = ("add_", "cancel_", "delete_", "modify_", "reserve_", "send_", "view_")
"""How the functions begin that a scenario is about."""
WHOM = ("username", "user_id", "sender_name", "flight_no", "new_flight_no")


def tasks_of(family: str, folder: Path, simulator: Simulator | None) -> list[Task]:
    """The tasks of a family, e.g. `multi_step-en`, in the data's order.

    Raises ContractBroken where the data is not there, is not what it should be, or the package can't be read.
    """
    category, _, language = family.rpartition("-")
    questions = folder / f"data_{language}" / f"data_agent_{category}.json"
    answers = questions.parent / "possible_answer" / questions.name
    truths = {row["id"]: row for row in _rows(answers, {"id", "ground_truth", "mile_stone"})}
    tasks = []
    for item in _rows(questions, {"id", "question", "initial_config", "function", "involved_classes"}):
        if item["id"] not in truths:
            raise ContractBroken(f"suite acebench: {answers} has no {item['id']}", LAYOUT)
        try:
            tasks.append(_build(family, language, item, truths[item["id"]], simulator))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ContractBroken(
                f"suite acebench: {questions}: {item['id']} can't be read: {error!r}", LAYOUT
            ) from error
    return tasks


def _rows(path: Path, fields: set[str]) -> list[JsonObject]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise ContractBroken(f"suite acebench: {path} can't be read: {error.strerror}", LAYOUT) from error
    except ValueError as error:
        raise ContractBroken(f"suite acebench: {path} is not a JSON object per line: {error}", LAYOUT) from error
    for number, row in enumerate(rows, start=1):
        if missing := sorted(fields - set(row)) if isinstance(row, dict) else ["object"]:
            raise ContractBroken(f"suite acebench: {path}, line {number} has no {missing[0]}", LAYOUT)
    return rows


def _build(family: str, language: str, item: JsonObject, truth: JsonObject, simulator: Simulator | None) -> Task:
    told, classes = item["question"], item["involved_classes"]
    tools = _tools(item["function"])
    states = [{_class(name): state for name, state in entry.items()} for entry in truth["ground_truth"]]
    config = {_class(name): value for name, value in item["initial_config"].items()}
    state: JsonObject = {
        "id": f"acebench/{family}/{item['id']}",
        "world": {"language": language, "config": config, "classes": classes},
        "tools": [tool["function"]["name"] for tool in tools],
        "truth": states,
        "milestones": read_milestones(truth["mile_stone"]),
        "corrected": states != truth["ground_truth"] or config != item["initial_config"],
    }
    messages = [{"role": "system", "content": STEPS[language]}, {"role": "user", "content": told}]
    if simulator is not None:
        wording = _prompts()[language]
        rules = "".join(wording[kind] for kind, name in (("travel", "Travel"), ("base", "BaseApi")) if name in classes)
        messages = [{"role": "system", "content": TALK[language] + rules}]
        user = wording["user_travel" if "Travel" in classes else "user_base"].format(instruction=told)
        state |= {"simulator": simulator.to_wire(), "user": user, "greeting": wording["greeting"]}
    return Task(
        id=state["id"],
        family=family,
        messages=tuple(messages),
        tools=tuple(tools),
        state=json.dumps(state, ensure_ascii=False),
        later_prompts=(told,) if simulator is not None else (),
        group=_group(state["milestones"][0]),
    )


def _group(way: Sequence[Milestone]) -> str:
    """Tasks in which the same people and flights want the same done are one scenario: they differ in how the world
    begins, in language, and in whether there is a user. Digested, since it says what to do."""
    calls = [call for milestone in way for call in milestone]
    done = {name for name, _ in calls if name.startswith(DOING)}
    whom = {str(arguments[key]) for _, arguments in calls for key in WHOM if key in arguments}
    return f"acebench/{sha256(json.dumps([sorted(done), sorted(whom)]).encode()).hexdigest()[:16]}"


def _class(name: str) -> str:
    return CORRECTED.get(name, name)


def _tools(functions: Sequence[JsonObject]) -> list[JsonObject]:
    """The data's functions as OpenAI tools, sorted by name."""
    tools = [{"type": "function", "function": {**f, "parameters": _schema(f["parameters"])}} for f in functions]
    return sorted(tools, key=lambda tool: str(tool["function"]["name"]))


def _schema(schema: Mapping[str, Any]) -> JsonObject:
    plain = {**schema, "type": JSON_TYPES.get(schema["type"], schema["type"])}
    if "properties" in schema:
        plain["properties"] = {name: _schema(value) for name, value in schema["properties"].items()}
    if "items" in schema:
        plain["items"] = _schema(schema["items"])
    return plain


@cache
def _prompts() -> dict[str, JsonObject]:
    return {found["language"]: found for found in read_items("acebench", LOADER, [], INSTALL)}
