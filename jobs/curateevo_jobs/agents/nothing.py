"""The do-nothing agent: a floor that every number is shown beside."""

from __future__ import annotations

from collections.abc import Sequence

from curateevo_jobs.agents.chat import Answer, Conversation, Generation


class Nothing:
    """Answers at once with an empty text and calls no tool."""

    concurrency = 0

    def answer(
        self, conversations: Sequence[Conversation], generation: Generation, seeds: Sequence[int]
    ) -> Sequence[Answer]:
        return [Answer() for _ in conversations]
