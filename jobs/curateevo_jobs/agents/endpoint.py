"""A model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import openai

from curateevo_jobs.agents.chat import Answer, AnswerError, Conversation, Generation, JsonObject, parse_call

RETRIED_STATUS = frozenset({408, 409, 425, 429})
"""Tried again, as are all of 500 and above, time-outs and refused connections."""
GONE = openai.APIConnectionError.__name__
"""The error of a connection that was refused or cut; not of a time-out."""
TOO_LONG = ("maximum context length", "max_model_len", "context_length_exceeded", "maximum model length")
"""How servers say, with status 400, that the prompt, or the prompt and `max_tokens`, do not fit."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between tries: first_seconds, doubled each time, at most longest_seconds."""

    tries: int = 6
    first_seconds: float = 0.5
    longest_seconds: float = 20.0

    def waits(self) -> list[float]:
        """The wait before each try after the first."""
        return [min(self.first_seconds * 2**n, self.longest_seconds) for n in range(self.tries - 1)]


class Endpoint:
    """A ChatModel that asks a server. An answer that can't be had becomes an error, never an empty answer.

    `await_back` is called where nothing listens any more: it returns when the server is there again, or raises.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "none",
        concurrency: int = 16,
        timeout_seconds: float = 300.0,
        backoff: Backoff | None = None,
        sleep: Callable[[float], None] = time.sleep,
        await_back: Callable[[], None] = lambda: None,
    ) -> None:
        self.concurrency = concurrency
        self._model = model
        self._backoff = backoff or Backoff()
        self._sleep = sleep
        self._await_back = await_back
        self._client = openai.OpenAI(base_url=base_url, api_key=api_key, timeout=timeout_seconds, max_retries=0)

    def answer(
        self, conversations: Sequence[Conversation], generation: Generation, seeds: Sequence[int]
    ) -> Sequence[Answer]:
        return [self._one(c, generation, s) for c, s in zip(conversations, seeds, strict=True)]

    def _one(self, conversation: Conversation, generation: Generation, seed: int) -> Answer:
        waits = self._backoff.waits()
        while True:
            answer = self._ask(conversation, seed, generation.temperature, generation.max_tokens)
            if answer.context_full:
                # Servers also refuse a prompt that leaves less room than was asked for; without a number,
                # they give what there is.
                answer = self._ask(conversation, seed, generation.temperature, openai.omit)
            if answer.error is None or not answer.error.transient or not waits:
                return answer
            self._sleep(waits.pop(0))
            if answer.error.message == GONE:
                self._await_back()

    def _ask(self, conversation: Conversation, seed: int, temperature: float, max_tokens: int | openai.Omit) -> Answer:
        """One try. Every failure of the client is translated here."""
        options: dict[str, Any] = {}
        if conversation.tools:
            options = {"tools": list(conversation.tools), "tool_choice": "auto"}
        try:
            completion = self._client.chat.completions.create(
                model=self._model,
                messages=[wire_message(m) for m in conversation.messages],  # type: ignore[misc]
                temperature=temperature,
                max_tokens=max_tokens,
                seed=seed,
                **options,
            )
        except openai.APIStatusError as error:
            return _refused(error)
        except openai.APIConnectionError as error:  # time-outs are among them
            return Answer(error=AnswerError(type(error).__name__, transient=True))
        except openai.APIError as error:
            return Answer(error=AnswerError(f"{type(error).__name__}: {error.message}", transient=False))
        return _parse(completion)

    def close(self) -> None:
        self._client.close()


def wire_message(message: JsonObject) -> JsonObject:
    """A message as the API takes it: `name` of a tool result is ours alone."""
    return {k: v for k, v in message.items() if not (k == "name" and message["role"] == "tool")}


def _refused(error: openai.APIStatusError) -> Answer:
    status = error.status_code
    if status == 400 and any(sign in str(error.body or error.message) for sign in TOO_LONG):
        return Answer(context_full=True)
    return Answer(error=AnswerError(f"HTTP {status}", status >= 500 or status in RETRIED_STATUS))


def _parse(completion: Any) -> Answer:
    """An answer from a completion. A server that sends no choice, or no counts, broke the protocol."""
    if not completion.choices or completion.usage is None:
        return Answer(error=AnswerError("the server sent no choice or no usage", transient=False))
    message = completion.choices[0].message
    calls = tuple(
        parse_call(c.function.name, c.function.arguments) for c in message.tool_calls or () if c.type == "function"
    )
    content = message.content or ""
    return Answer(
        content=content,
        calls=calls,
        tokens=completion.usage.completion_tokens,
        malformed=not calls and "<tool_call>" in content,
    )
