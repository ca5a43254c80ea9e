"""Texts that a model rewrote: what it is asked, what it may answer, and how an answer stands in a row.

Everything here runs on the trusted side (ADR 7). An answer changes what is said, never what is done: each value that a
later call takes from a text must stand in its new one, and no number or code may appear that was not there before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from curateevo.api.base import digest_of
from curateevo.policy.operators.items import Rewrite, RewriteKind
from curateevo.trajectories.flags import COMMON_VALUES, MALFORMED, values, words
from curateevo.trajectories.leakage import LeakIndex
from curateevo.trajectories.model import JsonObject, Trajectory, Turn

MAX_GROWTH, ROOM_CHARS = 3, 400
"""A new text has at most so many times the characters of the old one, and so many more."""
MAX_TEXT_CHARS = 20_000
"""Longer texts are not sent to a model."""
CONTEXT_CHARS = 2000
MARKUP = re.compile(r"<\|[^|>]*\|>|</?(tool|function|think)[\w-]*>|\[TOOL_CALLS?\]|\"tool_calls\"\s*:", re.IGNORECASE)
"""What chat templates and servers read as a call, a thought or the end of a turn, beside `MALFORMED`."""
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Unanswered(StrEnum):
    """Why a request has no answer."""

    NO_TEXT = "no-text"
    """There is nothing to rewrite, or it is longer than may be sent."""
    BUDGET = "budget"
    """The budget had no room for the call."""
    ENDPOINT = "endpoint"
    """The endpoint gave no answer: busy, failing, silent, cut off, or it refused the call."""
    WITHHELD = "withheld"
    """The model refused, or a content filter did."""
    FORM = "form"
    """The answer is not of the form asked for, or was cut."""
    LENGTH = "length"
    """Empty or too long."""
    MARKUP = "markup"
    """It holds what is read as a tool call, or control characters."""
    VALUES = "values"
    """It lost a value that a call takes from the text, or holds one that stands nowhere before."""
    DEV_CONTENT = "dev-content"
    """It holds a dev task."""
    SAME = "same"
    """It is the text as it was."""


class AnswerRefused(ValueError):
    """An answer that can't be taken."""

    def __init__(self, why: Unanswered, detail: str) -> None:
        super().__init__(detail)
        self.why = why


class RewriteAnswer(BaseModel):
    """What a model is to answer with."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A text in place of the corpus's."""

    text: str
    model: str
    span: str
    """Digest of the text that it was made from."""

    def lineage(self, request: Rewrite) -> JsonObject:
        """Made by which model, from what, under which instruction, and the digest of what was made."""
        return {
            "turn": request.turn,
            "kind": request.kind.value,
            "instruction": request.instruction,
            "model": self.model,
            "span": self.span,
            "answer": digest_of(self.text),
        }


def text_of(trajectory: Trajectory, request: Rewrite) -> str:
    """The text that is to be rewritten; empty when there is none."""
    turn = trajectory.turns[request.turn]
    match request.kind:
        case RewriteKind.ANSWER:
            return turn.content
        case RewriteKind.REASONING:
            return turn.reasoning or ""
        case RewriteKind.PROMPT:
            users = _users(trajectory, request.turn)
            return users[-1] if users else ""


def question(trajectory: Trajectory, request: Rewrite) -> JsonObject:
    """What the model is shown beside the instruction: the text, and what it belongs to."""
    turn = trajectory.turns[request.turn]
    users = _users(trajectory, request.turn) or trajectory.head
    return {
        "kind": request.kind.value,
        "text": text_of(trajectory, request),
        "user": users[-1][:CONTEXT_CHARS] if users and request.kind is not RewriteKind.PROMPT else "",
        "calls": [{"name": c.name, "arguments": c.arguments[:CONTEXT_CHARS]} for c in turn.calls],
        "keep": _needed(trajectory, request, text_of(trajectory, request)),
    }


def check_text(trajectory: Trajectory, request: Rewrite, answer: str, dev: LeakIndex) -> str:
    """The new text of a model's answer. Raises AnswerRefused."""
    old = text_of(trajectory, request)
    try:
        text = RewriteAnswer.model_validate_json(answer[answer.find("{") : answer.rfind("}") + 1]).text.strip()
    except ValidationError as error:
        raise AnswerRefused(Unanswered.FORM, "it is no JSON object with a text") from error
    allowed = MAX_GROWTH * len(old) + ROOM_CHARS
    if not 0 < len(text) <= allowed:
        raise AnswerRefused(Unanswered.LENGTH, f"{len(text)} characters, allowed 1 to {allowed}")
    if MARKUP.search(text) or MALFORMED.search(text) or CONTROL.search(text):
        raise AnswerRefused(Unanswered.MARKUP, "it holds what is read as a tool call, or control characters")
    if words(text) == words(old):
        raise AnswerRefused(Unanswered.SAME, "it is the text as it was")
    if lost := next((v for v in _needed(trajectory, request, old) if not _holds(text, v)), None):
        raise AnswerRefused(Unanswered.VALUES, f"{lost[:80]!r} is gone")
    if new := next(iter(sorted(_codes(text) - _codes(*_before(trajectory, request)))), None):
        raise AnswerRefused(Unanswered.VALUES, f"{new[:80]!r} stands nowhere before")
    if leak := dev.find(None, [text]):
        raise AnswerRefused(Unanswered.DEV_CONTENT, str(leak))
    return text


def with_rewrites(
    trajectory: Trajectory, requests: Iterable[Rewrite], answers: Mapping[Rewrite, Rewritten]
) -> Trajectory:
    """The trajectory with new texts in the places of the old ones."""
    head, turns = trajectory.head, list(trajectory.turns)
    for request in requests:
        text, number = answers[request].text, request.turn
        match request.kind:
            case RewriteKind.ANSWER:
                turns[number] = replace(turns[number], content=text)
            case RewriteKind.REASONING:
                turns[number] = replace(turns[number], reasoning=text)
            case RewriteKind.PROMPT if turns[number].users:
                turns[number] = replace(turns[number], users=(*turns[number].users[:-1], text))
            case RewriteKind.PROMPT:
                head = (*head[:-1], text)
    return replace(trajectory, head=head, turns=tuple(turns))


def _users(trajectory: Trajectory, turn: int) -> tuple[str, ...]:
    """The user's messages before a turn; before the first one stands the opening."""
    return trajectory.turns[turn].users or (trajectory.head if turn == 0 else ())


def _needed(trajectory: Trajectory, request: Rewrite, old: str) -> list[str]:
    """What must stay of a text: values that its own and later calls hold, and its numbers and codes. A thought may
    leave out those that no call holds."""
    calls = (call for turn in trajectory.turns[request.turn :] for call in turn.calls)
    held = {" ".join(words(value)) for call in calls for value in values(call.parsed()) if value not in COMMON_VALUES}
    kept = {value for value in held if len(value) > 1 and _holds(old, value)}
    return sorted(kept if request.kind is RewriteKind.REASONING else kept | _codes(old))


def _holds(text: str, plain: str) -> bool:
    """Whether words stand in a text, in a row."""
    return f" {plain} " in f" {' '.join(words(text))} "


def _codes(*texts: str) -> set[str]:
    """Words with a digit: numbers, dates, ids."""
    return {w for text in texts for w in words(text) if any(c.isdigit() for c in w)}


def _before(trajectory: Trajectory, request: Rewrite) -> list[str]:
    """What a new text may take numbers and codes from: the old one; for the assistant's also all that it had read, and
    its own call."""
    old = text_of(trajectory, request)
    if request.kind is RewriteKind.PROMPT:
        return [old]
    turn = trajectory.turns[request.turn]
    own = [turn.reasoning or "", *turn.users, *(call.arguments for call in turn.calls)]
    return [old, trajectory.system or "", *trajectory.head, *own, *_said(trajectory.turns[: request.turn])]


def _said(turns: Iterable[Turn]) -> Iterator[str]:
    for turn in turns:
        yield from (*turn.users, turn.content, turn.reasoning or "", *turn.results)
        yield from (call.arguments for call in turn.calls)
