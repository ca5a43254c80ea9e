"""Dev tasks inside training material: by task id, by equal prompt, and by 13-gram."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from curateevo.trajectories.flags import words

NGRAM = 13


@dataclass(frozen=True, slots=True)
class Leak:
    """A dev task that was found, and how. As text it doesn't quote the task: that text may reach a proposer."""

    task: str
    how: str
    quote: str = ""
    """The words that the material shares with the task's prompt: for a person only."""

    def __str__(self) -> str:
        return f"{self.how} {self.task}"


class LeakIndex:
    """Finds dev tasks in texts. Built from `{task id: prompt}`."""

    def __init__(self, prompts: Mapping[str, str]) -> None:
        self._ids = set(prompts)
        self._exact = {" ".join(words(p)): task for task, p in sorted(prompts.items()) if p.strip()}
        self._grams = {g: task for task, p in sorted(prompts.items()) for g in _grams(words(p))}

    def find(self, task_id: str | None, texts: Iterable[str]) -> Leak | None:
        """The first dev task that stands in here; None when none does."""
        if task_id is not None and task_id in self._ids:
            return Leak(task_id, "it is dev task")
        for text in texts if self._exact else ():
            said = words(text)
            plain = " ".join(said)
            if (task := self._exact.get(plain)) is not None:
                return Leak(task, "its prompt equals that of dev task", plain)
            if self._grams and (shared := next((g for g in _grams(said) if g in self._grams), None)):
                return Leak(self._grams[shared], f"it shares {NGRAM} words in a row with dev task", " ".join(shared))
        return None


def _grams(tokens: list[str]) -> list[tuple[str, ...]]:
    return [tuple(tokens[i : i + NGRAM]) for i in range(len(tokens) - NGRAM + 1)]
