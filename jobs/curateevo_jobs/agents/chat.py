"""What is said to a model and what comes back. Every kind of agent speaks this."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

JsonObject = dict[str, Any]

TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)
"""Hermes format, read as vLLM's `hermes` parser reads it: the last call may lack its end tag."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a model is asked to go on with: OpenAI messages and tool schemas."""

    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject]


@dataclass(frozen=True, slots=True)
class Generation:
    """How answers are drawn."""

    temperature: float
    max_tokens: int
    """Generated tokens per answer, at most; less where the context ends before."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `arguments` is None when `raw`, the arguments' text, is no JSON object."""

    name: str
    arguments: JsonObject | None
    raw: str


@dataclass(frozen=True, slots=True)
class AnswerError:
    """Why there is no answer. Transient: another try might have had one."""

    message: str
    transient: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer to one conversation."""

    content: str = ""
    calls: tuple[Call, ...] = ()
    tokens: int = 0
    """Generated tokens, the end of turn included where the engine counts it."""
    malformed: bool = False
    """The text holds a tool call that can't be read: `content` is the whole text."""
    context_full: bool = False
    """The conversation no longer fits the model's context: nothing was generated."""
    error: AnswerError | None = None
    """Set: nothing can be said of the model; the task is not measured."""


class ChatModel(Protocol):
    """A model that answers conversations."""

    concurrency: int
    """How many callers may ask at once, each with one conversation; 0: one caller, with as many as it has."""

    def answer(
        self, conversations: Sequence[Conversation], generation: Generation, seeds: Sequence[int]
    ) -> Sequence[Answer]:
        """One answer per conversation, in order. `seeds[i]` decides the sampling of the i-th alone."""
        ...


def parse_call(name: str, raw: str) -> Call:
    """A call from its name and the JSON text of its arguments."""
    try:
        arguments = json.loads(raw)
    except json.JSONDecodeError:
        return Call(name, None, raw)
    return Call(name, arguments if isinstance(arguments, dict) else None, raw)


def parse_text(text: str, tokens: int) -> Answer:
    """An answer from generated text: calls in Hermes format, or plain content. All are read or none."""
    if "<tool_call>" not in text:
        return Answer(content=text, tokens=tokens)
    calls = []
    for closed, unclosed in TOOL_CALL.findall(text):
        try:
            call = json.loads(closed or unclosed)
        except json.JSONDecodeError:
            return Answer(content=text, tokens=tokens, malformed=True)
        if not (isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call):
            return Answer(content=text, tokens=tokens, malformed=True)
        calls.append(parse_call(call["name"], json.dumps(call["arguments"], ensure_ascii=False)))
    return Answer(content=text[: text.find("<tool_call>")], calls=tuple(calls), tokens=tokens)
