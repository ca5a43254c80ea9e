"""The LLM proposer: a policy's next edit from any OpenAI-compatible endpoint (see docs/evolver.md).

An answer that can't be taken is sent back with its reason, a few times; then the round's proposal is refused. The
budget is asked before every call, with what the call may cost at most. The API key goes to the client alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

from curateevo.api.base import digest_of
from curateevo.api.errors import ContractBroken, Denied, PolicyRejected, SpecInvalid, Transient
from curateevo.api.spec import LlmBudget, LlmEndpoint
from curateevo.evolution.pods import LLM_KEY_VARIABLE, REWRITE_KEY_VARIABLE
from curateevo.evolver.answer import Miss, check_patch, find_miss, make_patch, parse_answer
from curateevo.evolver.prompt import repair_prompt, round_prompt, system_prompt
from curateevo.evolver.proposal import Proposal, ProposalInput, ProposalRefused
from curateevo.evolver.spending import Ledger, NoRoom
from curateevo.trajectories.model import JsonObject

CHARS_PER_TOKEN = 3.0
"""Cautious: code and English take 3 to 4. Used before a call, and where a server sends no counts."""
MESSAGE_TOKENS = 8
ERROR_CHARS = 300
DENIED_STATUS = frozenset({401, 402, 403})
RETRIED_STATUS = frozenset({408, 409, 425, 429})
"""Tried again, as are all of 500 and above, time-outs, and connections that were refused or cut."""
QUOTA = ("insufficient_quota", "billing")
FILTERED = ("content_filter", "content_policy")


@dataclass(frozen=True, slots=True)
class Use:
    """What an endpoint is asked for: the section of the spec that names it, and the variable with its key."""

    section: str
    key_variable: str


PROPOSING = Use("proposer", LLM_KEY_VARIABLE)
REWRITING = Use("augmentation", REWRITE_KEY_VARIABLE)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how often to ask."""

    repairs: int = 3
    """Refused answers, misses of SEARCH aside, after which one more is the last."""
    misses: int = 3
    """Misses of SEARCH on one function after which it is asked for whole."""
    answers: int = 10
    """Answers in one round, at most."""
    answer_tokens: int = 16_384
    least_answer_tokens: int = 1024
    """With less room than this in the budget, no call is made."""
    call_seconds: float = 300.0
    tries: int = 4
    """Tries of one call at a server that is busy, failing or silent."""
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 60.0
    longest_asked_seconds: float = 600.0
    """A server that asks for a wait (Retry-After) gets it, up to this."""

    def waits(self) -> list[float]:
        """The wait before each try after the first."""
        return [min(self.first_wait_seconds * 2**n, self.longest_wait_seconds) for n in range(self.tries - 1)]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. `text` is empty when the answer was withheld."""

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False
    """The counts are ours: the server sent none."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A try without an answer, to be made again. `prompt_tokens` is what the server may have charged all the same."""

    reason: str
    prompt_tokens: int = 0
    wait_seconds: float = 0.0
    """What the server asked for."""


class ChatEndpoint:
    """One server and model. Every failure of the client is translated here, and the key is cut out of every text."""

    def __init__(self, endpoint: LlmEndpoint, api_key: str, call_seconds: float, use: Use = PROPOSING) -> None:
        url = parse_address(endpoint, use)
        self.model = endpoint.model
        self._use = use
        self._key = checked_key(api_key, needed=endpoint.api_key_secret_ref is not None, use=use)
        self._where = url.hostname or ""
        self._limit_field = "max_completion_tokens"
        try:
            import openai
        except ImportError as error:
            raise Denied(f"{use.section}.llm needs the openai package", "pip install 'openai>=2.0'") from error
        self._errors: Any = openai
        self._client = openai.OpenAI(
            base_url=endpoint.base_url, api_key=self._key or "none", timeout=call_seconds, max_retries=0
        )

    def ask(self, messages: list[JsonObject], answer_tokens: int) -> Reply | Lost:
        """One try. Raises Denied, SpecInvalid, or ContractBroken for what another try would not change."""
        create: Any = self._client.chat.completions.with_raw_response.create
        try:
            raw = create(model=self.model, messages=messages, **{self._limit_field: answer_tokens})
        except self._errors.APIStatusError as error:
            return self._refused(error, messages, answer_tokens)
        except self._errors.APITimeoutError:
            return Lost("no answer in time", estimate_tokens(messages))
        except self._errors.APIConnectionError as error:
            if type(error.__cause__).__name__ == "ConnectError":
                return Lost("no connection")
            return Lost("the connection was cut", estimate_tokens(messages))
        except self._errors.OpenAIError as error:
            raise ContractBroken(f"{self._use.section}.llm: {self._clean(str(error))}") from None
        return self._parse(raw.http_response.text, messages)

    def tries(
        self, messages: list[JsonObject], room: Callable[[], int], limits: Limits, sleep: Callable[[float], None]
    ) -> Iterator[Reply | Lost]:
        """Tries until one has an answer, the last of which is it, with the waits between them; `room` is asked before
        each how many tokens the answer may take. Ends with Lost where the server gives none. Raises what `ask` and
        `room` raise."""
        waits = limits.waits()
        while True:
            outcome = self.ask(messages, room())
            yield outcome
            if isinstance(outcome, Reply) or not waits:
                return
            sleep(max(waits.pop(0), min(outcome.wait_seconds, limits.longest_asked_seconds)))

    def close(self) -> None:
        self._client.close()

    def _refused(self, error: Any, messages: list[JsonObject], answer_tokens: int) -> Reply | Lost:
        status, text = int(error.status_code), self._clean(f"{error.message} {error.body or ''}")
        if status in DENIED_STATUS or (status == 429 and any(sign in text for sign in QUOTA)):
            raise Denied(
                f"{self._where} refuses the call: HTTP {status}: {text}",
                f"check {self._use.key_variable} and the quota",
            )
        if status >= 500 or status in RETRIED_STATUS:
            return Lost(f"HTTP {status}", wait_seconds=_retry_after(error.response.headers.get("retry-after", "")))
        if status == 400 and self._limit_field in text and self._limit_field != "max_tokens":
            self._limit_field = "max_tokens"  # servers of before 2025 know this name only
            return self.ask(messages, answer_tokens)
        if status == 400 and any(sign in text for sign in FILTERED):
            return Reply("", "content_filter", estimate_tokens(messages), 0, estimated=True)
        if status == 404:
            raise SpecInvalid(
                f"{self._use.section}.llm: {self._where} has no such model or path: {text}", "check baseURL and model"
            )
        raise ContractBroken(f"{self._use.section}.llm: HTTP {status}: {text}")

    def _parse(self, body: str, messages: list[JsonObject]) -> Reply | Lost:
        try:
            found = json.loads(body)
            choice = found["choices"][0]
            message, finish = choice["message"], str(choice.get("finish_reason") or "")
            content = message.get("content")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return Lost("the answer is no chat completion, or was cut", estimate_tokens(messages))
        text = self._clean(content, limit=None) if isinstance(content, str) else ""
        if message.get("refusal") or finish == "content_filter":
            text, finish = "", "content_filter"
        match found.get("usage"):
            case {"prompt_tokens": int(prompt), "completion_tokens": int(completion)} if prompt >= 0 <= completion:
                return Reply(text, finish, prompt, completion)
            case _:
                return Reply(text, finish, estimate_tokens(messages), _tokens_of(text), estimated=True)

    def _clean(self, text: str, limit: int | None = ERROR_CHARS) -> str:
        text = text.replace(self._key, "[key]") if self._key else text
        return text if limit is None else " ".join(text.split())[:limit]


def parse_address(endpoint: LlmEndpoint, use: Use = PROPOSING) -> SplitResult:
    """Where the endpoint is. Raises SpecInvalid."""
    try:
        url = urlsplit(endpoint.base_url)
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return url
    except ValueError:
        pass
    raise SpecInvalid(f"{use.section}.llm.baseURL must be http:// or https:// with a host", "e.g. http://llm:8000/v1")


def checked_key(key: str, *, needed: bool, use: Use = PROPOSING) -> str:
    """The key as a header may hold it. Raises Denied."""
    key = key.strip()
    if needed and not key:
        raise Denied(f"{use.key_variable} is not set", "the spec names a secret for the endpoint: put its key there")
    if not key.isascii() or not key.isprintable():
        raise Denied(f"{use.key_variable} holds characters that no HTTP header may hold", "set it again")
    return key


def _retry_after(value: str) -> float:
    """Seconds, from a number or from a date (RFC 9110, 10.2.3); 0 for anything else."""
    with contextlib.suppress(ValueError):
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else 0.0
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    return 0.0


def _tokens_of(text: str) -> int:
    return math.ceil(len(text) / CHARS_PER_TOKEN)


def estimate_tokens(messages: Iterable[JsonObject]) -> int:
    """Tokens of a prompt, counted high."""
    return sum(MESSAGE_TOKENS + _tokens_of(message["content"]) for message in messages)


@dataclass(slots=True)
class Talk:
    """One round's conversation: what is sent, what is archived, what it has cost."""

    spent: Ledger
    messages: list[JsonObject] = field(default_factory=list)
    transcript: list[JsonObject] = field(default_factory=list)
    misses: Counter[str] = field(default_factory=Counter)
    repairs: int = 0

    def say(self, role: str, content: str) -> None:
        message = {"role": role, "content": content}
        self.messages.append(message)
        self.transcript.append(message)

    def charge(self, entry: JsonObject) -> None:
        """Archive a try and count its cost."""
        self.transcript.append(entry)
        self.spent.charge(entry["prompt_tokens"], entry["completion_tokens"], entry["calls"])

    def refused(self, reason: str, message: str) -> ProposalRefused:
        self.transcript.append({"role": "check", "content": f"{reason}: {message}"})
        return ProposalRefused(reason, message, self.spent, tuple(self.transcript))


class LlmProposer:
    """Asks until an answer can be taken. `recorded` are entries that `record` was given in an attempt that was killed:
    what was answered then is not asked, but counted, again."""

    def __init__(
        self,
        endpoint: LlmEndpoint,
        budget: LlmBudget,
        *,
        api_key: str = "",
        limits: Limits | None = None,
        recorded: Iterable[JsonObject] = (),
        record: Callable[[JsonObject], None] = lambda entry: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limits = limits or Limits()
        self._endpoint = ChatEndpoint(endpoint, api_key, self._limits.call_seconds)
        self._budget, self._price = budget, endpoint.price
        self._recorded: dict[str, list[JsonObject]] = {}
        for entry in recorded:
            self._recorded.setdefault(entry["asked"], []).append(entry)
        self._record = record
        self._sleep = sleep

    def propose(self, given: ProposalInput) -> Proposal:
        """The next policy. Raises ProposalRefused, Transient, Denied, SpecInvalid or ContractBroken."""
        given = replace(given, source=given.source.rstrip("\n") + "\n")  # blocks are whole lines, the last one too
        talk = Talk(Ledger(self._budget, self._price))
        talk.say("system", system_prompt())
        talk.say("user", round_prompt(given))
        try:
            for _ in range(self._limits.answers):
                reply = self._ask(talk)
                try:
                    found = self._take(given, reply, talk)
                except PolicyRejected as error:
                    refusal = error
                else:
                    spent = talk.spent
                    return replace(
                        found,
                        tokens=spent.tokens,
                        usd=spent.usd,
                        calls=spent.calls,
                        transcript=tuple(talk.transcript),
                    )
                self._send_back(given, reply, refusal, talk)
            raise talk.refused("ProposalRefused", f"no acceptable answer in {self._limits.answers}: {refusal.message}")
        finally:
            self._endpoint.close()

    def _take(self, given: ProposalInput, reply: Reply, talk: Talk) -> Proposal:
        """The proposal of an answer. Raises PolicyRejected with what is wrong."""
        if not reply.text.strip():
            why = "it was withheld by a content filter" if reply.finish == "content_filter" else "it is empty"
            raise PolicyRejected("answer", f"there is no answer: {why}", "answer as text in the form asked for")
        try:
            answer = parse_answer(reply.text)
        except PolicyRejected as error:
            if reply.finish != "length":
                raise
            raise PolicyRejected("answer", f"{error.message}; it was cut at its limit", "be much briefer") from error
        patch = make_patch(given.source, answer, self._asked_whole(talk))
        try:
            source = check_patch(given, answer, patch)
        except PolicyRejected as error:
            if error.rule == "search":
                raise SearchMissed(error, find_miss(given.source, patch.edits)) from error
            raise
        return Proposal(source, patch.method, patch.hypothesis, patch.expected, patch)

    def _send_back(self, given: ProposalInput, reply: Reply, refusal: PolicyRejected, talk: Talk) -> None:
        """Tell the model what is wrong. Raises ProposalRefused when it was told often enough."""
        nearest = ""
        if isinstance(refusal, SearchMissed) and refusal.miss.unit and refusal.miss.unit not in self._asked_whole(talk):
            talk.misses[refusal.miss.unit] += 1
        else:
            talk.repairs += 1
            if talk.repairs > self._limits.repairs:
                raise talk.refused("ProposalRefused", f"refused {talk.repairs} times, last: {refusal.message}")
        if isinstance(refusal, SearchMissed):
            nearest = refusal.miss.nearest
        talk.messages.append({"role": "assistant", "content": reply.text.strip() or "(no answer)"})
        whole = self._asked_whole(talk)
        talk.say("user", repair_prompt(refusal.message, refusal.hint, nearest, whole))

    def _asked_whole(self, talk: Talk) -> list[str]:
        return sorted(name for name, count in talk.misses.items() if count >= self._limits.misses)

    def _ask(self, talk: Talk) -> Reply:
        """The answer to the conversation so far. Raises Transient when the server gives none, and what `ask` raises."""
        asked = digest_of({"model": self._endpoint.model, "messages": talk.messages})
        for entry in self._recorded.pop(asked, []):
            talk.charge(entry)
            if entry["role"] == "assistant":
                return Reply(entry["content"], entry["finish"], entry["prompt_tokens"], entry["completion_tokens"])
        for outcome in self._endpoint.tries(talk.messages, lambda: self._room(talk), self._limits, self._sleep):
            entry = entry_of(asked, outcome)
            self._record(entry)
            talk.charge(entry)
            if isinstance(outcome, Reply):
                return outcome
        raise Transient(f"proposer.llm: {entry['content']}, {self._limits.tries} times", "it is tried again later")

    def _room(self, talk: Talk) -> int:
        """Tokens that the next answer may take. Raises ProposalRefused when the budget has no room for a call."""
        limits = self._limits
        try:
            return talk.spent.room(estimate_tokens(talk.messages), limits.answer_tokens, limits.least_answer_tokens)
        except NoRoom as error:
            raise talk.refused("BudgetSpent", str(error)) from error


class SearchMissed(PolicyRejected):
    """A SEARCH that missed, with where it was probably meant."""

    def __init__(self, error: PolicyRejected, miss: Miss) -> None:
        super().__init__(error.rule, error.message.partition(": ")[2], error.hint)
        self.miss = miss


def entry_of(asked: str, outcome: Reply | Lost) -> JsonObject:
    """A try, as it is archived. `asked` is the digest of the model's name and the conversation up to here."""
    if isinstance(outcome, Lost):
        return {
            "role": "endpoint",
            "content": outcome.reason,
            "asked": asked,
            "calls": int(outcome.prompt_tokens > 0),
            "prompt_tokens": outcome.prompt_tokens,
            "completion_tokens": 0,
            "estimated": True,
        }
    return {
        "role": "assistant",
        "content": outcome.text,
        "asked": asked,
        "finish": outcome.finish,
        "calls": 1,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "estimated": outcome.estimated,
    }
