"""Dev tasks inside training material: by task id, by equal prompt, and by 13-gram."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from curateevo.trajectories.features import words

NGRAM = 13


class LeakIndex:
    """Finds dev tasks in texts. Built from `{task id: prompt}`."""

    def __init__(self, prompts: Mapping[str, str]) -> None:
        self._ids = set(prompts)
        self._exact = {_plain(p): task for task, p in sorted(prompts.items()) if p.strip()}
        self._grams = {g: task for task, p in sorted(prompts.items()) for g in _grams(words(p))}

    def find(self, task_id: str | None, texts: Iterable[str]) -> str | None:
        """How and which dev task stands in here, in words; None when none does."""
        if task_id in self._ids:
            return f"it is dev task {task_id}"
        for text in texts:
            if (task := self._exact.get(_plain(text))) is not None:
                return f"its prompt equals that of dev task {task}"
            if self._grams and (found := next((self._grams[g] for g in _grams(words(text)) if g in self._grams), None)):
                return f"it shares {NGRAM} words in a row with dev task {found}"
        return None


def _plain(text: str) -> str:
    return " ".join(words(text))


def _grams(tokens: list[str]) -> list[tuple[str, ...]]:
    return [tuple(tokens[i : i + NGRAM]) for i in range(len(tokens) - NGRAM + 1)]
