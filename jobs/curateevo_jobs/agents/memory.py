"""Memory at inference: which notes a task retrieves, and where they are put. Curation does the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import bm25s

JsonObject = dict[str, Any]

WORD = re.compile(r"[^\W\d_]+|\d+")
# fmt: off
STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no",
    "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this",
    "to", "was", "will", "with",
))
# fmt: on
HEADER = "notes:"


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One row of `memory.jsonl`. Title and content are searched; the content alone is shown to the model."""

    content: str
    title: str = ""
    scope: str = ""
    evidence: tuple[str, ...] = ()


def parse_item(row: Mapping[str, Any]) -> MemoryItem:
    """A memory item from its JSON row. Raises KeyError when there is no content."""
    return MemoryItem(
        content=str(row["content"]),
        title=str(row.get("title") or ""),
        scope=str(row.get("scope") or ""),
        evidence=tuple(str(e) for e in row.get("evidence") or ()),
    )


def words(text: str) -> list[str]:
    """Lower-case words and numbers, stop words left out."""
    return [w for w in WORD.findall(text.lower()) if w not in STOP_WORDS]


class Retriever:
    """BM25 (Lucene's variant, k1 1.2, b 0.75) over the items of a memory."""

    def __init__(self, items: Sequence[MemoryItem], k: int) -> None:
        self._items = tuple(items)
        self._k = k
        documents = [words(f"{item.title} {item.content}") for item in self._items]
        self._index: bm25s.BM25 | None = None
        self._vocabulary = frozenset(w for d in documents for w in d)
        if self._vocabulary:
            import bm25s  # takes a second where numba is installed

            self._index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
            self._index.index(documents, show_progress=False)

    def notes(self, query: str) -> list[str]:
        """Contents of at most k items with a score above 0, best first; equal scores keep the items' order.

        Line breaks within an item become spaces: a note is one line.
        """
        known = sorted(set(words(query)) & self._vocabulary)
        if self._index is None or not known:
            return []
        scores = [float(s) for s in self._index.get_scores(known)]
        best = sorted((i for i, s in enumerate(scores) if s > 0), key=lambda i: (-scores[i], i))
        return [" ".join(self._items[i].content.split()) for i in best[: self._k]]


def query_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """What a task is asked about: the text of its first user message, or nothing."""
    for message in messages:
        if message.get("role") == "user":
            return text_of(message)
    return ""


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message; of content parts, the text parts joined."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def with_notes(
    messages: Sequence[JsonObject], notes: Sequence[str], place: Literal["system", "user"]
) -> list[JsonObject]:
    """A copy of `messages` that shows `notes`; without notes, an equal copy.

    system: the first message is a system message `notes:` and one line per note; where one stands there
    already, the block is appended to it. user: the block stands before the first user message's text.
    """
    copy = [dict(message) for message in messages]
    if not notes:
        return copy
    block = "\n".join([HEADER, *notes])
    if place == "system":
        if copy and copy[0].get("role") == "system":
            copy[0]["content"] = f"{text_of(copy[0])}\n\n{block}"
            return copy
        return [{"role": "system", "content": block}, *copy]
    for message in copy:
        if message.get("role") == "user":
            message["content"] = f"{block}\n\n{text_of(message)}"
            return copy
    return [*copy, {"role": "user", "content": block}]
