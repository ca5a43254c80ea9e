"""The world: scenarios, the calls that solve them, and the environment that runs and scores calls.

A `Scenario` is everything there is to know about one task; the environment is built from its state text.
Success is strict: exactly the reference calls in their order, with nothing needless. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, TypeAlias, cast

from curateevo_jobs.benchmarks.base import JsonObject, Score
from curateevo_jobs.benchmarks.toolworld.phrasing import CLOSERS, OPENERS, PHRASINGS, Skill
from curateevo_jobs.benchmarks.toolworld.values import (
    CITIES,
    CODES,
    CURRENCIES,
    ITEMS,
    NUMBER_ARGUMENTS,
    PEOPLE,
)

Value: TypeAlias = str | int

TOOL_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "buy_item": ("item", "quantity"),
    "cancel_order": ("order",),
    "check_stock": ("item",),
    "convert_money": ("amount", "currency"),
    "find_order": ("customer",),
    "get_weather": ("city",),
    "open_account": ("customer", "pin"),
    "page_person": ("to", "topic"),
    "refund_order": ("order",),
    "send_message": ("to", "topic"),
    "set_timer": ("minutes",),
    "ship_parcel": ("city", "code"),
}
ACCOUNT_HOLDERS = tuple(PEOPLE[:12])
TROUBLE_SHARE = 0.75
"""How often the first call of a message or buy task fails and has to be recovered from."""

DEV_BUCKETS, BUCKETS = 2, 5
"""Prompts hash into `BUCKETS`; the first `DEV_BUCKETS` belong to the benchmark, the others to the corpus."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class Scenario:
    """One task with everything hidden in it."""

    skill: Skill
    prompt: str
    slots: Mapping[str, Value]
    """The values that the prompt names, by argument."""
    order: int
    """The number of the customer's order, 10 to 99."""
    have: int
    """How many of an item the shop has, 2 to 9: always fewer than a buy task asks for."""
    trouble: bool
    """Whether the first call of a message or buy task fails."""

    @property
    def in_dev_pool(self) -> bool:
        """Whether the benchmark may use this prompt. The corpus never does, planted leaks apart."""
        return _digest(self.skill, self.prompt) % BUCKETS < DEV_BUCKETS

    @property
    def task_id(self) -> str:
        """`toolworld/<skill>/<12 hex digits of the content>`."""
        content = f"{self.prompt}\n{self.state()}".encode()
        return f"toolworld/{self.skill}/{hashlib.sha256(content).hexdigest()[:12]}"

    def state(self) -> str:
        """The sealed JSON text that `World.from_state` reads."""
        return json.dumps(
            {
                "skill": self.skill,
                "slots": dict(self.slots),
                "order": self.order,
                "have": self.have,
                "trouble": self.trouble,
            },
            sort_keys=True,
        )


def _digest(*parts: object) -> int:
    return int(hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest(), 16)


def fact(kind: str, key: str) -> str:
    """A constant of the world that no prompt tells: the `code` of a city or the `pin` of a person."""
    return CODES[_digest("toolworld fact", kind, key) % len(CODES)]


def tool_schemas() -> tuple[JsonObject, ...]:
    """OpenAI schemas of all tools, sorted by name."""
    return tuple(_schema(name, arguments) for name, arguments in sorted(TOOL_ARGUMENTS.items()))


def _schema(name: str, arguments: tuple[str, ...]) -> JsonObject:
    types = {a: {"type": "integer" if a in NUMBER_ARGUMENTS else "string"} for a in arguments}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": name.replace("_", " "),
            "parameters": {"type": "object", "properties": types, "required": list(arguments)},
        },
    }


def draw_slots(rng: random.Random) -> dict[str, Value]:
    """A random value for every argument that a prompt may name."""
    return {
        "city": rng.choice(CITIES),
        "minutes": rng.randint(2, 99),
        "amount": rng.randint(2, 99),
        "currency": rng.choice(CURRENCIES),
        "to": rng.choice(PEOPLE),
        "topic": rng.choice(ITEMS),
        "customer": rng.choice(PEOPLE),
        "item": rng.choice(ITEMS),
        "quantity": rng.randint(10, 50),
    }


def draw_scenario(skill: Skill, rng: random.Random, *, dev: bool, fixed: Mapping[str, Value] | None = None) -> Scenario:
    """A random scenario from the dev pool or from the corpus side; `fixed` sets some slots beforehand."""
    while True:
        slots = draw_slots(rng)
        if skill is Skill.ACCOUNT:
            slots["customer"] = rng.choice(ACCOUNT_HOLDERS)
        slots |= fixed or {}
        template = rng.choice(OPENERS) + rng.choice(PHRASINGS[skill]) + rng.choice(CLOSERS)
        scenario = Scenario(
            skill=skill,
            prompt=template.format(**slots),
            slots={name: slots[name] for name in slot_names(template)},
            order=rng.randint(10, 99),
            have=rng.randint(2, 9),
            trouble=rng.random() < TROUBLE_SHARE,
        )
        if scenario.in_dev_pool == dev:
            return scenario


def slot_names(template: str) -> tuple[str, ...]:
    """The arguments that a phrasing names, in their order."""
    return tuple(name for _, name, _, _ in Formatter().parse(template) if name)


def reference_calls(scenario: Scenario) -> tuple[Call, ...]:
    """The calls that solve a scenario: nothing else scores."""
    skill, slots = scenario.skill, scenario.slots
    match skill:
        case Skill.CHAT:
            return ()
        case Skill.REFUND | Skill.CANCEL:
            find = Call("find_order", {"customer": slots["customer"]})
            return (find, Call(f"{skill}_order", {"order": scenario.order}))
        case Skill.MESSAGE:
            send = Call("send_message", {"to": slots["to"], "topic": slots["topic"]})
            page = Call("page_person", send.arguments)
            return (send, page) if scenario.trouble else (send,)
        case Skill.BUY:
            buy = Call("buy_item", {"item": slots["item"], "quantity": slots["quantity"]})
            fewer = Call("buy_item", {"item": slots["item"], "quantity": scenario.have})
            return (buy, fewer) if scenario.trouble else (buy,)
        case Skill.SHIP:
            city = str(slots["city"])
            return (Call("ship_parcel", {"city": city, "code": fact("code", city)}),)
        case Skill.ACCOUNT:
            customer = str(slots["customer"])
            return (Call("open_account", {"customer": customer, "pin": fact("pin", customer)}),)
        case Skill.WEATHER | Skill.TIMER | Skill.MONEY | Skill.STOCK:
            name = _SINGLE_CALL_TOOL[skill]
            return (Call(name, {argument: slots[argument] for argument in TOOL_ARGUMENTS[name]}),)


_SINGLE_CALL_TOOL = {
    Skill.WEATHER: "get_weather",
    Skill.TIMER: "set_timer",
    Skill.MONEY: "convert_money",
    Skill.STOCK: "check_stock",
}


class World:
    """The environment of one episode: it runs calls, remembers them and scores them."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._calls: list[Call] = []
        self._send_failed = False
        self._tools: dict[str, Callable[[JsonObject], str]] = {
            "buy_item": self._buy_item,
            "cancel_order": self._close_order,
            "check_stock": lambda _: f"{scenario.have} left",
            "convert_money": lambda _: "ok",
            "find_order": self._find_order,
            "get_weather": lambda a: f"ok {a['city']} code {fact('code', a['city'])}",
            "open_account": lambda a: _unlock("pin", a["customer"], a["pin"]),
            "page_person": self._page_person,
            "refund_order": self._close_order,
            "send_message": self._send_message,
            "set_timer": lambda _: "ok",
            "ship_parcel": lambda a: _unlock("code", a["city"], a["code"]),
        }

    @classmethod
    def from_state(cls, state: str) -> World:
        """A fresh world from a scenario's state text. Raises ValueError for a text that is not one."""
        try:
            raw = json.loads(state)
            scenario = Scenario(
                skill=Skill(raw["skill"]),
                prompt="",
                slots=raw["slots"],
                order=raw["order"],
                have=raw["have"],
                trouble=raw["trouble"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a toolworld state: {state[:80]!r}") from error
        return cls(scenario)

    def call(self, name: str, arguments: JsonObject) -> str:
        """Run one call and return its result; one that can't be run counts too; its result is an error."""
        self._calls.append(Call(name, arguments))
        problem = _call_problem(name, arguments)
        return problem or self._tools[name](arguments)

    def score(self, final_text: str) -> Score:
        """Score the calls made so far. The final text does not count: what was done does."""
        wanted = reference_calls(self._scenario)
        checks = {
            "tools": [c.name for c in self._calls] == [c.name for c in wanted],
            "calls": self._calls == list(wanted),
            "nothing_needless": len(self._calls) <= len(wanted),
        }
        success = checks["calls"]
        return Score(float(success), 1.0 if success else 0.5 * self._matched_share(wanted), checks)

    def _matched_share(self, wanted: tuple[Call, ...]) -> float:
        """Half for each right tool in its place, half for its arguments, per call of the reference."""
        if not wanted:
            return 0.0
        pairs = list(zip(self._calls, wanted, strict=False))
        return sum(0.5 * (made.name == ref.name) + 0.5 * (made == ref) for made, ref in pairs) / len(wanted)

    def _find_order(self, arguments: JsonObject) -> str:
        known = arguments["customer"] == self._scenario.slots.get("customer")
        return f"order {self._scenario.order}" if known else "none"

    def _close_order(self, arguments: JsonObject) -> str:
        return "ok" if arguments["order"] == self._scenario.order else "error number"

    def _send_message(self, arguments: JsonObject) -> str:
        if self._scenario.skill is Skill.MESSAGE and self._scenario.trouble:
            self._send_failed = True
            return "error offline"
        return _reached(arguments["to"])

    def _page_person(self, arguments: JsonObject) -> str:
        return _reached(arguments["to"]) if self._send_failed else "error send first"

    def _buy_item(self, arguments: JsonObject) -> str:
        scenario = self._scenario
        short = scenario.skill is Skill.BUY and scenario.trouble and arguments["quantity"] > scenario.have
        return f"error only {scenario.have}" if short else "ok"


def _call_problem(name: str, arguments: JsonObject) -> str | None:
    """Why a call can't be run, as the world words it."""
    if name not in TOOL_ARGUMENTS:
        return "error tool"
    # Arguments come from a model: whatever their annotation says, they may be anything.
    given = cast(Any, arguments)
    if not isinstance(given, dict) or set(given) != set(TOOL_ARGUMENTS[name]):
        return "error arguments"
    fits = all(type(value) is (int if key in NUMBER_ARGUMENTS else str) for key, value in given.items())
    return None if fits else "error arguments"


def _unlock(kind: str, key: str, secret: str) -> str:
    return f"ok {key} {kind} {secret}" if secret == fact(kind, key) else f"error {kind}"


def _reached(person: str) -> str:
    return f"ok {person} pin {fact('pin', person)}"
