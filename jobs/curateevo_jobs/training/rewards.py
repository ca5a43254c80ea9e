"""GRPO rewards, by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from curateevo_jobs.training.rows import RewardKind

JsonObject = dict[str, Any]

RIGHT_TOOL = 0.5
"""Reward of the right tool with other arguments."""


def match_first_call(call: tuple[str, Any] | None, reference: Sequence[Mapping[str, Any]]) -> float:
    """1 for the reference's first call by tool and arguments, RIGHT_TOOL for its tool alone, else 0.

    An empty reference wants an answer without a call.
    """
    if not reference or call is None:
        return float(not reference and call is None)
    if call[0] != reference[0]["name"]:
        return 0.0
    return 1.0 if call[1] == reference[0]["arguments"] else RIGHT_TOOL


def action_match(completions: Sequence[Sequence[JsonObject]], reference: Sequence[str], **_: Any) -> list[float]:
    """TRL reward: the first call of each completion against its reference (JSON text)."""
    return [
        match_first_call(_first_call(completion), json.loads(text))
        for completion, text in zip(completions, reference, strict=True)
    ]


def environment(completions: Sequence[Sequence[JsonObject]], environments: Sequence[Any], **_: Any) -> list[float]:
    """TRL reward: what the suite gives for the whole episode, its final text included."""
    return [
        world._score(final_text(completion)).reward for completion, world in zip(completions, environments, strict=True)
    ]


REWARDS: dict[RewardKind, Callable[..., list[float]]] = {
    RewardKind.ENVIRONMENT: environment,
    RewardKind.ACTION_MATCH: action_match,
}


def final_text(completion: Sequence[JsonObject]) -> str:
    """The text of the last message, if it is an answer without a call."""
    last = completion[-1] if completion else {}
    return str(last.get("content") or "") if last.get("role") == "assistant" and not last.get("tool_calls") else ""


def _first_call(completion: Sequence[JsonObject]) -> tuple[str, Any] | None:
    for message in completion:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            return function["name"], _parse_arguments(function["arguments"])
    return None


def _parse_arguments(arguments: Any) -> Any:
    """Arguments as a value: TRL's parser gives objects, some templates text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except json.JSONDecodeError:
        return arguments
