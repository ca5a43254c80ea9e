"""A model that gives prepared answers: for tests, and to replay an episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from curateevo_jobs.agents.chat import Answer, Conversation, Generation


class Scripted:
    """Answers with `reply(conversation)`. `asked` counts the conversations, `seeds` keeps the seeds seen."""

    def __init__(self, reply: Callable[[Conversation], Answer], concurrency: int = 0) -> None:
        self.concurrency = concurrency
        self.asked = 0
        self.seeds: list[int] = []
        self._reply = reply
        self._lock = Lock()

    def answer(
        self, conversations: Sequence[Conversation], generation: Generation, seeds: Sequence[int]
    ) -> Sequence[Answer]:
        with self._lock:
            self.asked += len(conversations)
            self.seeds.extend(seeds)
        return [self._reply(c) for c in conversations]


def in_turn(*answers: Answer) -> Callable[[Conversation], Answer]:
    """A reply that depends on how many answers the conversation holds; after the last, an empty one."""

    def reply(conversation: Conversation) -> Answer:
        turn = sum(message["role"] == "assistant" for message in conversation.messages)
        return answers[turn] if turn < len(answers) else Answer()

    return reply
