"""The rule `row-fits-context`: every row, rendered by the chat template, fits what the model is trained with.

TRL would cut a row that is too long, or drop all of them with an unhelpful message; here the policy hears
of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trl.chat_template_utils import (
    get_training_chat_template,
    has_generation_markers,
    is_chat_template_stop_token_trained,
)

from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo_jobs.training.rows import RlRow, SftRow

RULE = "row-fits-context"
DEFAULT_MAX_LENGTH = 8192
"""Tokens of an SFT row, at most, where neither the model's context nor `args` says less."""
LEAST_COMPLETION = 32
"""Tokens that an RL prompt must leave for the completion."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """An SFT row as token ids, with 1 where loss is taken: where the assistant speaks, or everywhere, and never in a
    masked answer."""

    id: str
    tokens: list[int]
    mask: list[int]


@dataclass(frozen=True, slots=True)
class Misfit:
    """The longest row that does not fit."""

    kind: str
    row: str
    tokens: int
    limit: int
    tool_tokens: int
    count: int
    remedy: str

    @property
    def message(self) -> str:
        more = f" ({self.count} rows in all)" if self.count > 1 else ""
        return (
            f"{RULE}: {self.kind} row {self.row!r} has {self.tokens} tokens under the chat template, "
            f"at most {self.limit} fit{more}; its tools alone take {self.tool_tokens}. {self.remedy}"
        )


def training_template(tokenizer: Any) -> str | None:
    """The template that marks what the assistant says; None: the tokenizer's own does. Raises SpecInvalid."""
    if has_generation_markers(tokenizer.chat_template or ""):
        return None
    try:
        template: str | None = get_training_chat_template(tokenizer)
    except ValueError as error:
        raise SpecInvalid(
            "the chat template does not mark what the assistant says, and TRL knows no replacement",
            "give model.chatTemplate with {% generation %} and {% endgeneration %} around assistant turns",
        ) from error
    return template


def stop_is_trained(tokenizer: Any) -> bool:
    """Whether the end of an assistant's turn is among the trained tokens."""
    return bool(is_chat_template_stop_token_trained(tokenizer, chat_template=training_template(tokenizer)))


def tokenize(rows: Sequence[SftRow], tokenizer: Any, *, assistant_only: bool = True) -> list[TokenRow]:
    """All rows under the chat template. `assistant_only`: loss is taken on what the assistant says alone.

    Raises ContractBroken for a row in which the assistant says nothing that is trained on. Done here rather than by
    TRL: Arrow would add fields that are null to each message, and TRL knows of no masked answers.
    """
    template = training_template(tokenizer)
    tokenized = []
    for row in rows:
        out = tokenizer.apply_chat_template(
            list(row.messages),
            tools=list(row.tools) or None,
            chat_template=template,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        spoken = list(out["assistant_masks"])
        trained = _without_masked(row, spoken)
        if 1 not in trained:
            raise ContractBroken(f"SFT row {row.id!r} holds no assistant message to train on")
        mask = trained if assistant_only else [int(t or not s) for t, s in zip(trained, spoken, strict=True)]
        tokenized.append(TokenRow(row.id, list(out["input_ids"]), mask))
    return tokenized


def answer_spans(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Where answers begin and end, the end not included. An answer is a run of ones: what opens it is not spoken."""
    edges = [i for i, (left, right) in enumerate(pairwise([0, *mask, 0])) if left != right]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _without_masked(row: SftRow, spoken: list[int]) -> list[int]:
    """`spoken` with 0 in place of 1 in masked answers.

    Raises ContractBroken where the template marks more or fewer spans than there are answers.
    """
    if not row.masked:
        return spoken
    spans = answer_spans(spoken)
    answers = sum(m["role"] == "assistant" for m in row.messages)
    if len(spans) != answers:
        raise ContractBroken(
            f"SFT row {row.id!r}: answers are masked, and the template marks {len(spans)} spans for {answers} answers",
            "give model.chatTemplate with one {% generation %} block for each assistant message, or mask no turns",
        )
    trained = list(spoken)
    for number in row.masked:
        start, end = spans[number]
        trained[start:end] = [0] * (end - start)
    return trained


def prompt_tokens(row: RlRow, tokenizer: Any) -> int:
    """Length of an RL prompt under the chat template."""
    return len(
        tokenizer.apply_chat_template(
            list(row.messages),
            tools=list(row.tools) or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )["input_ids"]
    )


def tool_tokens(tools: Sequence[dict[str, Any]], tokenizer: Any) -> int:
    """How many tokens the tools' preamble takes."""
    nothing = [{"role": "user", "content": ""}]
    lengths = [
        len(tokenizer.apply_chat_template(nothing, tools=t, tokenize=True, return_dict=True)["input_ids"])
        for t in (list(tools) or None, None)
    ]
    return lengths[0] - lengths[1]


def find_sft_misfit(rows: Sequence[SftRow], tokenized: Sequence[TokenRow], limit: int, tokenizer: Any) -> Misfit | None:
    """The longest SFT row above `limit` tokens."""
    remedy = "Shorten the row's turns or drop tools that it does not use, or raise training.sft.args.max_length."
    return _longest("SFT", rows, [len(t.tokens) for t in tokenized], limit, tokenizer, remedy)


def find_rl_misfit(rows: Sequence[RlRow], lengths: Sequence[int], limit: int, tokenizer: Any) -> Misfit | None:
    """The longest RL prompt above `limit` tokens."""
    remedy = "Shorten the prompt or its notes, or lower training.grpo.args.max_completion_length."
    return _longest("RL", rows, lengths, limit, tokenizer, remedy)


def _longest(
    kind: str,
    rows: Sequence[SftRow] | Sequence[RlRow],
    lengths: Sequence[int],
    limit: int,
    tokenizer: Any,
    remedy: str,
) -> Misfit | None:
    over = [i for i, n in enumerate(lengths) if n > limit]
    if not over:
        return None
    worst = max(over, key=lambda i: (lengths[i], rows[i].id))
    row = rows[worst]
    preamble = tool_tokens(row.tools, tokenizer)
    return Misfit(kind, row.id, lengths[worst], limit, preamble, len(over), remedy)
