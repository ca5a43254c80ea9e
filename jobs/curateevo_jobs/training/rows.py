"""The rows that curation made: what SFT and GRPO train on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from curateevo.api.errors import ContractBroken

JsonObject = dict[str, Any]


class RewardKind(StrEnum):
    """Where a GRPO reward comes from."""

    ENVIRONMENT = "environment"
    """The suite scores the whole episode."""
    ACTION_MATCH = "action_match"
    """The first call is compared with a reference; nothing is run."""


@dataclass(frozen=True, slots=True)
class SftRow:
    """A conversation to imitate."""

    id: str
    family: str
    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...]
    masked: frozenset[int] = frozenset()
    """Answers that are context only, by number among the assistant messages, from 0: nothing is learnt of them."""


@dataclass(frozen=True, slots=True)
class RlRow:
    """A prompt to explore. `suite` and `state` are set for `environment`, `reference` for `action_match`."""

    id: str
    family: str
    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...]
    reward: RewardKind
    aimed: bool
    """The policy aimed at this family; otherwise the row may be replayed against forgetting."""
    suite: str
    state: str
    reference: tuple[JsonObject, ...]


def read_sft(path: Path) -> list[SftRow]:
    """All SFT rows. Raises ContractBroken at the first that can't be read."""
    return [_parse_sft(n, row) for n, row in _read(path)]


def read_rl(path: Path) -> list[RlRow]:
    """All RL rows; a file that is not there holds none. Raises ContractBroken at the first bad one."""
    return [_parse_rl(n, row) for n, row in _read(path)] if path.is_file() else []


def _read(path: Path) -> list[tuple[str, JsonObject]]:
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        where = f"{path.name}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ContractBroken(f"{where} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise ContractBroken(f"{where} is no object")
        rows.append((where, row))
    return rows


def _field(where: str, row: Mapping[str, Any], name: str, kind: type) -> Any:
    value = row.get(name)
    if not isinstance(value, kind):
        raise ContractBroken(f"{where}: {name} must be {kind.__name__}, is {type(value).__name__}")
    return value


def _parse_sft(where: str, row: JsonObject) -> SftRow:
    messages = _field(where, row, "messages", list)
    answers = sum(m.get("role") == "assistant" for m in messages)
    masked = _field(where, {"masked": [], **row}, "masked", list)
    if not all(type(n) is int and 0 <= n < answers for n in masked):
        raise ContractBroken(f"{where}: masked {masked} must number some of the {answers} assistant messages, from 0")
    return SftRow(
        id=_field(where, row, "id", str),
        family=_field(where, row, "family", str),
        messages=tuple(messages),
        tools=tuple(_field(where, row, "tools", list)),
        masked=frozenset(masked),
    )


def _parse_rl(where: str, row: JsonObject) -> RlRow:
    try:
        reward = RewardKind(row.get("reward", ""))
    except ValueError as error:
        raise ContractBroken(f"{where}: {error}", f"rewards are {', '.join(RewardKind)}") from error
    acts = reward is RewardKind.ENVIRONMENT
    return RlRow(
        id=_field(where, row, "id", str),
        family=_field(where, row, "family", str),
        messages=tuple(_field(where, row, "messages", list)),
        tools=tuple(_field(where, row, "tools", list)),
        reward=reward,
        aimed=_field(where, row, "aimed", bool),
        suite=_field(where, row, "suite", str) if acts else "",
        state=_field(where, row, "state", str) if acts else "",
        reference=() if acts else tuple(_field(where, row, "reference", list)),
    )
