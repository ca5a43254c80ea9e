"""The tool-calling loop, as a state machine that knows no engine.

An episode is ASKING until it is FINISHED (it can be scored) or FAILED (it can't be measured). `advance` makes
one step with one answer; `play` drives many episodes, together or in threads.

What ends an episode: an answer without a call, or with one that can't be read (check `malformed_call`), to which the
environment has no user who says more; a call after which the environment is closed; a conversation that no longer fits
the context (`context_full`); the last turn (`out_of_turns`); an error, also of an environment that can't act.
An unknown tool or wrong arguments end nothing: the environment answers with an error text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256
from threading import Event

from curateevo.api.errors import Transient
from curateevo_jobs.agents.chat import (
    Answer,
    AnswerError,
    Call,
    ChatModel,
    Conversation,
    Generation,
    JsonObject,
)
from curateevo_jobs.benchmarks.base import Closing, Conversing, Environment, Opening, Reading, Score


class State(Enum):
    ASKING = auto()
    FINISHED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of an episode."""

    generation: Generation
    max_turns: int
    """Answers of the model to one user turn, at most. The calls of the last one are still run."""


@dataclass(slots=True)
class Episode:
    """One run of one task. `messages` grows; everything else says how far it came."""

    seed: int
    messages: list[JsonObject]
    tools: Sequence[JsonObject]
    environment: Environment
    state: State = State.ASKING
    turns: int = 0
    """Answers of the model."""
    user_turn_began: int = 0
    """`turns` when the user spoke last."""
    tokens: int = 0
    final_text: str = ""
    checks: dict[str, bool] = field(default_factory=dict)
    error: AnswerError | None = None
    """Given at the start: the episode can't be played."""

    def __post_init__(self) -> None:
        if self.error is not None:
            self.state = State.FAILED

    @property
    def conversation(self) -> Conversation:
        return Conversation(self.messages, self.tools)

    @property
    def turn_seed(self) -> int:
        """The seed of the next answer."""
        return seed_of(self.seed, self.turns)

    def score(self) -> Score:
        """The environment's score, with the loop's own checks. Only for a finished episode. Raises Transient."""
        if isinstance(self.environment, Reading):
            self.environment.read(self.messages)
        score = self.environment.score(self.final_text)
        return Score(score.success, score.reward, {**score.checks, **self.checks})


def seed_of(*parts: int | str) -> int:
    """A seed of 31 bits that depends on all parts and on nothing else."""
    return int.from_bytes(sha256("|".join(map(str, parts)).encode()).digest()[:4]) >> 1


def begin(episode: Episode) -> None:
    """Hear what is said before the model is asked."""
    if episode.state is not State.ASKING or not isinstance(episode.environment, Opening):
        return
    try:
        episode.messages += episode.environment.open()
    except Transient as error:
        _fail(episode, AnswerError(f"the environment: {error}", transient=True))


def advance(episode: Episode, answer: Answer, max_turns: int) -> None:
    """One step: write the answer down, run its calls or hear the user, move on."""
    if answer.error is not None:
        _fail(episode, answer.error)
        return
    episode.tokens += answer.tokens
    if answer.context_full:
        _finish(episode, "", "context_full")
        return
    episode.turns += 1
    try:
        _act(episode, answer, max_turns)
    except Transient as error:
        _fail(episode, AnswerError(f"the environment: {error}", transient=True))


def _act(episode: Episode, answer: Answer, max_turns: int) -> None:
    unreadable = answer.malformed or any(call.arguments is None for call in answer.calls)
    if unreadable or not answer.calls:
        text = answer.content or "\n".join(f"{call.name} {call.raw}" for call in answer.calls)
        episode.messages.append({"role": "assistant", "content": text})
        _hear_user(episode, text, "malformed_call" if unreadable else "")
        return
    _run_calls(episode, answer)
    if isinstance(episode.environment, Closing) and episode.environment.closed():
        _finish(episode, answer.content, "")
    elif episode.turns - episode.user_turn_began >= max_turns:
        _finish(episode, "", "out_of_turns")


def _hear_user(episode: Episode, text: str, check: str) -> None:
    """Go on with what the user says to `text`; where nothing is said, the episode is over."""
    said = episode.environment.reply(text) if isinstance(episode.environment, Conversing) else None
    if said is None:
        _finish(episode, text, check)
        return
    if check:
        episode.checks[check] = True
    episode.messages += said.messages
    episode.tools = episode.tools if said.tools is None else said.tools
    episode.user_turn_began = episode.turns


def _run_calls(episode: Episode, answer: Answer) -> None:
    ids = [f"call_{episode.turns}_{n}" for n in range(len(answer.calls))]
    calls = [render_call(i, call) for i, call in zip(ids, answer.calls, strict=True)]
    episode.messages.append({"role": "assistant", "content": answer.content, "tool_calls": calls})
    for call_id, call in zip(ids, answer.calls, strict=True):
        result = episode.environment.call(call.name, call.arguments or {})
        message = {"role": "tool", "tool_call_id": call_id, "name": call.name, "content": result}
        episode.messages.append(message)


def render_call(call_id: str, call: Call) -> JsonObject:
    """A call as it stands in an assistant message."""
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.raw}}


def _finish(episode: Episode, text: str, check: str) -> None:
    episode.final_text = text
    episode.state = State.FINISHED
    if check:
        episode.checks[check] = True


def _fail(episode: Episode, error: AnswerError) -> None:
    episode.error = error
    episode.state = State.FAILED


@dataclass(frozen=True, slots=True)
class Checks:
    """When to look whether what was played is enough."""

    every: int
    """Episodes between two looks, at least 1."""
    enough: Callable[[int], bool]
    """Whether the first n episodes, which are over, are enough."""

    def due(self, over: int, total: int) -> bool:
        return over % self.every == 0 or over == total


def play(
    model: ChatModel,
    episodes: Sequence[Episode],
    rules: Rules,
    ended: Callable[[int], None] = lambda n: None,
    checks: Checks | None = None,
) -> int:
    """Play the episodes to their end, all of them or the first that are enough: how many. Those behind may have begun,
    and are to be thrown away. `ended` is called with the number of episodes that are over."""
    if model.concurrency != 0:
        return _play_apart(model, episodes, rules, ended, checks)
    if checks is None:
        _play_together(model, episodes, rules, ended)
        return len(episodes)
    for start in range(0, len(episodes), checks.every):
        part = episodes[start : start + checks.every]
        _play_together(model, part, rules, lambda done, start=start: ended(start + done))  # type: ignore[misc]
        if checks.enough(start + len(part)):
            return start + len(part)
    return len(episodes)


def _play_together(model: ChatModel, episodes: Sequence[Episode], rules: Rules, ended: Callable[[int], None]) -> None:
    """In lock-step: turn n of all episodes that are still asking is one batch."""
    for episode in episodes:
        begin(episode)
    live = _asking(episodes)
    while live:
        answers = model.answer([e.conversation for e in live], rules.generation, [e.turn_seed for e in live])
        for episode, answer in zip(live, answers, strict=True):
            advance(episode, answer, rules.max_turns)
        live = _asking(live)
        ended(len(episodes) - len(live))


def _play_apart(
    model: ChatModel,
    episodes: Sequence[Episode],
    rules: Rules,
    ended: Callable[[int], None],
    checks: Checks | None,
) -> int:
    """Each episode in a thread of a pool. What is enough hangs on the first episodes in their order, never on those
    that happen to be over."""
    enough = Event()
    with ThreadPoolExecutor(model.concurrency) as pool:
        over = pool.map(lambda episode: play_one(model, episode, rules, enough.is_set), episodes)
        for n, _ in enumerate(over, start=1):
            ended(n)
            if checks is not None and checks.due(n, len(episodes)) and checks.enough(n):
                enough.set()
                return n
    return len(episodes)


def play_one(model: ChatModel, episode: Episode, rules: Rules, given_up: Callable[[], bool] = lambda: False) -> None:
    """Play one episode to its end, unless it is given up."""
    if given_up():
        return
    begin(episode)
    while episode.state is State.ASKING and not given_up():
        [answer] = model.answer([episode.conversation], rules.generation, [episode.turn_seed])
        advance(episode, answer, rules.max_turns)


def _asking(episodes: Iterable[Episode]) -> list[Episode]:
    return [e for e in episodes if e.state is State.ASKING]
