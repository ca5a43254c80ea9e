"""The corpus: demonstrations of the world's tasks with planted defects, and the truth about each of them.

`generate(seed)` is deterministic. The truth never enters a row: a policy must find out.
Standard library only.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from curateevo_jobs.benchmarks.base import JsonObject
from curateevo_jobs.benchmarks.toolworld.phrasing import RETOUCHES, Skill
from curateevo_jobs.benchmarks.toolworld.suite import dev_scenarios
from curateevo_jobs.benchmarks.toolworld.values import CITIES, CODES, PEOPLE
from curateevo_jobs.benchmarks.toolworld.world import (
    ACCOUNT_HOLDERS,
    TOOL_ARGUMENTS,
    Call,
    Scenario,
    Value,
    World,
    draw_scenario,
    draw_slots,
    reference_calls,
    tool_schemas,
)

PARSE_ERROR = "error parse"
FINAL_TEXT = "Done."
CHAT_TEXT = "Noted."


class Defect(StrEnum):
    """What is wrong with a demonstration."""

    CLEAN = "clean"
    STOPPED_EARLY = "stoppedEarly"
    WRONG_TOOL = "wrongTool"
    WRONG_ARGUMENT = "wrongArgument"
    MALFORMED = "malformed"
    DETOUR = "detour"
    NEEDLESS_CALL = "needlessCall"
    """A call where none was asked for."""
    SLOW_RECOVERY = "slowRecovery"
    """The failing call is made three times, then the right one."""
    GAVE_UP = "gaveUp"
    """The failing call is made three times, and nothing else."""
    REFUNDED = "refunded"
    """The order is refunded, not cancelled, and the demonstration always passes for a success."""


class Copy(StrEnum):
    """How a duplicate was made."""

    EXACT = "exact"
    NEAR = "near"


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of one row. `good`: the goal was reached, if with waste; the row's own flag may lie."""

    skill: Skill
    defect: Defect
    good: bool
    duplicate_of: str | None
    duplicate: Copy | None
    leaked: bool
    """The row demonstrates a task of the suite's default dev pool."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How many demonstrations a skill has, and which share of them has which defect; the rest is clean."""

    count: int
    shares: Mapping[Defect, float]


RECIPES: dict[Skill, Recipe] = {
    Skill.WEATHER: Recipe(400, {Defect.STOPPED_EARLY: 0.45, Defect.WRONG_TOOL: 0.10, Defect.MALFORMED: 0.10}),
    Skill.TIMER: Recipe(400, {Defect.WRONG_ARGUMENT: 0.60, Defect.MALFORMED: 0.05, Defect.WRONG_TOOL: 0.05}),
    Skill.MONEY: Recipe(14, {Defect.WRONG_TOOL: 0.45, Defect.WRONG_ARGUMENT: 0.10}),
    Skill.REFUND: Recipe(60, {Defect.DETOUR: 0.85, Defect.STOPPED_EARLY: 0.12}),
    Skill.CANCEL: Recipe(24, {Defect.REFUNDED: 0.50, Defect.STOPPED_EARLY: 0.10}),
    Skill.MESSAGE: Recipe(96, {Defect.SLOW_RECOVERY: 0.30, Defect.GAVE_UP: 0.25, Defect.WRONG_ARGUMENT: 0.10}),
    Skill.BUY: Recipe(70, {Defect.SLOW_RECOVERY: 0.30, Defect.GAVE_UP: 0.25, Defect.WRONG_ARGUMENT: 0.10}),
    Skill.STOCK: Recipe(8, {Defect.WRONG_TOOL: 0.20}),
    Skill.SHIP: Recipe(60, {Defect.WRONG_ARGUMENT: 0.35, Defect.DETOUR: 0.15}),
    Skill.ACCOUNT: Recipe(16, {Defect.WRONG_ARGUMENT: 0.20}),
    Skill.CHAT: Recipe(60, {Defect.NEEDLESS_CALL: 0.50}),
}
SHOWN_CITIES = tuple(CITIES[:6])
SHOWN_HOLDERS = ACCOUNT_HOLDERS[:4]
"""Ship and account are demonstrated for these only; the other facts stand in results of other skills."""

EXACT_COPIES = 90
NEAR_COPIES = 40
COPIED_MOSTLY = (Skill.WEATHER, Skill.TIMER)
LEAKED_SKILLS = (Skill.WEATHER, Skill.TIMER, Skill.REFUND, Skill.MESSAGE, Skill.BUY, Skill.SHIP, Skill.CHAT)
LEAKS = 8
LEAK_POOL = 20
"""Leaks come from the first tasks of a skill, so that a small dev pool holds them too."""

GOOD_DEFECTS = frozenset({Defect.CLEAN, Defect.DETOUR, Defect.SLOW_RECOVERY})
FLAGGED_IF_GOOD = 0.92
FLAGGED_IF_BAD = 0.20

LAZY_SHARE = 0.75
LAZY_VALUES: dict[str, Value] = {
    "city": "Rome",
    "code": CODES[0],
    "currency": "USD",
    "customer": "Bob",
    "item": "pen",
    "minutes": 5,
    "pin": CODES[1],
    "quantity": 10,
    "topic": "book",
}
"""The default that a wrong argument mostly is: a systematic defect is learnt, a random one averages out."""

WRONG_TOOLS = {
    Skill.WEATHER: "check_stock",
    Skill.TIMER: "convert_money",
    Skill.MONEY: "set_timer",
    Skill.STOCK: "buy_item",
}

Move: TypeAlias = Call | str
"""A turn of a demonstration: a call, or the text of a malformed one."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A row before it has an id. `copied` is the position of the draft that it duplicates."""

    scenario: Scenario
    messages: list[JsonObject]
    flag: bool
    defect: Defect
    copied: int | None = None
    copy: Copy | None = None
    leaked: bool = False


def generate(seed: int) -> tuple[list[JsonObject], dict[str, Truth]]:
    """All rows of a corpus in their shuffled order, and the truth by row id."""
    rng = random.Random(f"toolworld corpus {seed}")
    drafts = [draft for skill in Skill for draft in _demonstrations(skill, rng)]
    drafts += _copies(drafts, rng)
    drafts += _leaks(rng)
    order = list(range(len(drafts)))
    rng.shuffle(order)
    ids = {position: f"tw-{number:06d}" for number, position in enumerate(order)}
    schemas = list(tool_schemas())
    rows = [_row(ids[position], drafts[position], schemas) for position in order]
    return rows, {ids[position]: _truth(drafts[position], ids) for position in order}


def truth_as_json(truth: Mapping[str, Truth]) -> JsonObject:
    """The truth as it is written to its own file."""
    return {row_id: asdict(entry) for row_id, entry in truth.items()}


def transcript(scenario: Scenario, moves: Sequence[Move]) -> list[JsonObject]:
    """The OpenAI messages of these moves in a fresh world, from the request to the final answer."""
    world = World(scenario)
    messages: list[JsonObject] = [{"role": "user", "content": scenario.prompt}]
    for number, move in enumerate(moves, start=1):
        if isinstance(move, str):
            messages.append({"role": "assistant", "content": move})
            messages.append({"role": "user", "content": PARSE_ERROR})
            continue
        call_id = f"call_{number}"
        messages.append(_call_message(call_id, move))
        result = world.call(move.name, move.arguments)
        messages.append({"role": "tool", "tool_call_id": call_id, "name": move.name, "content": result})
    answer = FINAL_TEXT if moves or scenario.skill is not Skill.CHAT else CHAT_TEXT
    return [*messages, {"role": "assistant", "content": answer}]


def _call_message(call_id: str, call: Call) -> JsonObject:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _demonstrations(skill: Skill, rng: random.Random) -> Iterable[_Draft]:
    recipe = RECIPES[skill]
    weights = {Defect.CLEAN: 1 - sum(recipe.shares.values()), **recipe.shares}
    prompts: set[str] = set()
    for number in range(recipe.count):
        defect = rng.choices(list(weights), list(weights.values()))[0]
        scenario, moves = _spoiled(skill, number, defect, prompts, rng)
        prompts.add(scenario.prompt)
        flagged_share = FLAGGED_IF_GOOD if defect in GOOD_DEFECTS else FLAGGED_IF_BAD
        flag = defect is Defect.REFUNDED or rng.random() < flagged_share
        yield _Draft(scenario, transcript(scenario, moves), flag, defect)


def _spoiled(
    skill: Skill, number: int, defect: Defect, taken: set[str], rng: random.Random
) -> tuple[Scenario, Sequence[Move]]:
    """A scenario with an unused prompt on which the defect can occur, and the defective moves."""
    while True:
        scenario = draw_scenario(skill, rng, dev=False, fixed=_fixed_slots(skill, number, rng))
        moves = spoil(scenario, defect, rng)
        if moves is not None and scenario.prompt not in taken:
            return scenario, moves


def _fixed_slots(skill: Skill, number: int, rng: random.Random) -> dict[str, Value]:
    """Slots that are not free: who ship and account show, and messages to everyone, account holders first."""
    match skill:
        case Skill.SHIP:
            return {"city": rng.choice(SHOWN_CITIES)}
        case Skill.ACCOUNT:
            return {"customer": rng.choice(SHOWN_HOLDERS)}
        case Skill.MESSAGE:
            recipients = [*ACCOUNT_HOLDERS, *PEOPLE]
            return {"to": recipients[number % len(recipients)]}
        case _:
            return {}


def spoil(scenario: Scenario, defect: Defect, rng: random.Random) -> Sequence[Move] | None:
    """The moves of a demonstration with this defect; None if it can't occur on this scenario."""
    wanted = reference_calls(scenario)
    match defect:
        case Defect.CLEAN:
            return wanted
        case Defect.STOPPED_EARLY:
            return wanted[:-1]
        case Defect.WRONG_TOOL:
            return [_call_with(WRONG_TOOLS[scenario.skill], wanted[-1].arguments, rng)]
        case Defect.WRONG_ARGUMENT:
            return _with_wrong_argument(wanted[0], rng)
        case Defect.MALFORMED:
            unclosed = json.dumps(wanted[-1].arguments)[:-1]
            return [f'<tool_call>\n{{"name": "{wanted[-1].name}", "arguments": {unclosed}\n</tool_call>']
        case Defect.DETOUR:
            tool = rng.choice(["check_stock", "get_weather"])
            return [*wanted[:-1], _call_with(tool, {}, rng), wanted[-1]]
        case Defect.NEEDLESS_CALL:
            tool = {"city": "get_weather", "item": "check_stock", "to": "send_message"}[min(scenario.slots)]
            return [_call_with(tool, scenario.slots, rng)]
        case Defect.REFUNDED:
            return [wanted[0], Call("refund_order", wanted[1].arguments)]
        case Defect.SLOW_RECOVERY:
            return [*[wanted[0]] * 3, *wanted[1:]] if scenario.trouble else None
        case Defect.GAVE_UP:
            return [wanted[0]] * 3 if scenario.trouble else None


def _with_wrong_argument(call: Call, rng: random.Random) -> Sequence[Move] | None:
    """The call with its last argument wrong, mostly a lazy default; None if that happens to be right."""
    name = list(call.arguments)[-1]
    value = LAZY_VALUES[name] if rng.random() < LAZY_SHARE else _any_value(name, rng)
    return None if value == call.arguments[name] else [Call(call.name, {**call.arguments, name: value})]


def _call_with(tool: str, known: Mapping[str, Any], rng: random.Random) -> Call:
    """A call of the tool with the arguments that are known, and random ones for the rest."""
    return Call(tool, {name: known.get(name, _any_value(name, rng)) for name in TOOL_ARGUMENTS[tool]})


def _any_value(argument: str, rng: random.Random) -> Value:
    return rng.choice(CODES) if argument in ("code", "pin") else draw_slots(rng)[argument]


def _copies(drafts: Sequence[_Draft], rng: random.Random) -> list[_Draft]:
    """Exact and near duplicates, mostly of the two commonest skills."""
    positions = list(range(len(drafts)))
    positions += [p for p in positions if drafts[p].scenario.skill in COPIED_MOSTLY] * 3
    chosen = [(rng.choice(positions), Copy.EXACT) for _ in range(EXACT_COPIES)]
    chosen += [(rng.choice(positions), Copy.NEAR) for _ in range(NEAR_COPIES)]
    return [_copy(drafts[position], position, kind, rng) for position, kind in chosen]


def _copy(draft: _Draft, position: int, kind: Copy, rng: random.Random) -> _Draft:
    scenario = draft.scenario
    if kind is Copy.NEAR:
        scenario = replace(scenario, prompt=rng.choice(RETOUCHES) + scenario.prompt)
    request: JsonObject = {"role": "user", "content": scenario.prompt}
    return replace(draft, scenario=scenario, messages=[request, *draft.messages[1:]], copied=position, copy=kind)


def _leaks(rng: random.Random) -> list[_Draft]:
    """Clean demonstrations of tasks that the suite's default dev pool holds."""
    skills = [LEAKED_SKILLS[number % len(LEAKED_SKILLS)] for number in range(LEAKS)]
    pool = {skill: rng.sample(dev_scenarios(skill, LEAK_POOL), 2) for skill in LEAKED_SKILLS}
    leaked = [pool[skill].pop() for skill in skills]
    return [
        _Draft(scenario, transcript(scenario, reference_calls(scenario)), True, Defect.CLEAN, leaked=True)
        for scenario in leaked
    ]


def _row(row_id: str, draft: _Draft, schemas: list[JsonObject]) -> JsonObject:
    return {
        "id": row_id,
        "source": "toolworld",
        "messages": draft.messages,
        "tools": schemas,
        "task": {
            "id": draft.scenario.task_id,
            "env": "toolworld",
            "prompt": draft.scenario.prompt,
            "state": draft.scenario.state(),
            "tags": [draft.scenario.skill.value],
        },
        "outcome": {"success": draft.flag},
    }


def _truth(draft: _Draft, ids: Mapping[int, str]) -> Truth:
    return Truth(
        skill=draft.scenario.skill,
        defect=draft.defect,
        good=draft.defect in GOOD_DEFECTS,
        duplicate_of=None if draft.copied is None else ids[draft.copied],
        duplicate=draft.copy,
        leaked=draft.leaked,
    )
