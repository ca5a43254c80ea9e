"""BFCL's items as tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from curateevo_jobs.benchmarks.base import JsonObject, Task
from curateevo_jobs.benchmarks.bfcl.categories import is_memory, is_multi_turn, language_of
from curateevo_jobs.benchmarks.reading import read_items

PREFIX = "bfcl/"
LOADER = "curateevo_jobs.benchmarks.bfcl.load"
INSTALL = "pip install 'curateevo[bfcl]' && pip install --no-deps bfcl-eval==2026.3.23"


_read: dict[str, tuple[Task, ...]] = {}


def tasks_of(categories: Sequence[str]) -> list[tuple[Task, ...]]:
    """All tasks of each category, in the package's order. Raises ContractBroken where the package can't be read."""
    if missing := [category for category in categories if category not in _read]:
        items: dict[str, list[JsonObject]] = {category: [] for category in missing}
        for item in read_items("bfcl", LOADER, missing, INSTALL):
            items[item["category"]].append(item)
        _read.update({category: tuple(_build(category, items[category])) for category in missing})
    return [_read[category] for category in categories]


def _build(category: str, items: list[JsonObject]) -> list[Task]:
    if is_memory(category):
        return _memory_tasks(items)
    return _multi_turn_tasks(items) if is_multi_turn(category) else _ast_tasks(items)


def _ast_tasks(items: list[JsonObject]) -> list[Task]:
    return [
        _task(item, "ast", language=language_of(item["category"]), functions=item["functions"], truth=item["truth"])
        for item in items
    ]


def _multi_turn_tasks(items: list[JsonObject]) -> list[Task]:
    # The four categories hold the same scenarios, with the same users, under the same numbers.
    return [
        replace(
            _task(item, "turns", **_conversation(item), added=item["added"]),
            group=f"{PREFIX}multi_turn_{item['id'].rpartition('_')[2]}",
        )
        for item in items
    ]


def _memory_tasks(items: list[JsonObject]) -> list[Task]:
    """Questions, each after the conversations in which the agent was told the answer."""
    tasks = {
        item["id"]: _task(item, "memory", **_conversation(item), opening=item["opening"], memory=None) for item in items
    }
    return [
        replace(
            tasks[item["id"]],
            group=f"{PREFIX}memory_{item['id'].removeprefix(item['category'] + '_')}",
            prerequisites=tuple(tasks[name] for name in item["before"]),
        )
        for item in items
        if item["truth"] is not None
    ]


def _conversation(item: JsonObject) -> JsonObject:
    """What an environment with a user of several turns is made of."""
    return {"entry": item["entry"], "truth": item["truth"], "tools": item["tools"], "users": item["turns"][1:]}


def _task(item: JsonObject, kind: str, **state: object) -> Task:
    return Task(
        id=PREFIX + item["id"],
        family=item["category"],
        messages=tuple(item["turns"][0]),
        tools=tuple(item["tools"]),
        state=json.dumps({"kind": kind, "category": item["category"], **state}, ensure_ascii=False),
        later_prompts=tuple(m["content"] for turn in item["turns"][1:] for m in turn),
    )
