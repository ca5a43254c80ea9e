"""Items: spans of corpus trajectories. A policy handles references to turns, so it can neither part a call from its
result nor forge text: the trusted side writes the rows from the corpus itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from curateevo.trajectories.flags import TurnFlag
from curateevo.trajectories.model import JsonObject, Trajectory

__all__ = [
    "Context",
    "Corpus",
    "Item",
    "Items",
    "MemoryItem",
    "NoteKind",
    "Resources",
    "Rewrite",
    "RewriteKind",
    "RlTask",
    "TurnFlag",
]


class Corpus:
    """The fixed corpus, read-only: one row per trajectory, features as columns, text when asked for."""

    def __init__(
        self, columns: Mapping[str, list[Any]], read: Callable[[Iterable[int]], dict[int, Trajectory]]
    ) -> None:
        self._columns = columns
        self._read = read

    def __len__(self) -> int:
        return len(self._columns["id"])

    def column(self, name: str) -> list[Any]:
        """A feature by row, as docs/policies.md lists them. Raises KeyError for others."""
        if name not in self._columns:
            raise KeyError(f"no feature {name!r}; there are {', '.join(self._columns)}")
        return self._columns[name]

    def items(self) -> Items:
        """Every trajectory, whole, in corpus order."""
        whole = [tuple(range(n)) for n in range(max(self.column("turns"), default=0) + 1)]
        return Items(self, tuple([Item(row, whole[n]) for row, n in enumerate(self.column("turns"))]))

    def trajectories(self, rows: Iterable[int]) -> dict[int, Trajectory]:
        """The text of some rows. Dear on a large corpus: select on features first."""
        return self._read(rows)


class RewriteKind(StrEnum):
    """Which text of a turn is rewritten. Calls and results are none: they must stay true."""

    ANSWER = "answer"
    """What the assistant says."""
    REASONING = "reasoning"
    """What it thinks before that."""
    PROMPT = "prompt"
    """The user's message before the turn, the last one where there are several; for turn 0 that of the opening."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A text of the corpus, and how it is to be rewritten: a request, and where it is answered a reference."""

    row: int
    turn: int
    kind: RewriteKind
    instruction: str

    def is_kept(self, turns: Iterable[int]) -> bool:
        """Whether the text stands in a row that keeps these turns: the opening always does."""
        return self.turn in turns or (self.kind is RewriteKind.PROMPT and self.turn == 0)


@dataclass(frozen=True, slots=True)
class Item:
    """Some turns of one trajectory."""

    row: int
    turns: tuple[int, ...]
    """Kept turns, ascending."""
    copies: int = 1
    """How often it stands in the data."""
    lineage: tuple[str, ...] = ()
    """Operators that touched it, in order."""
    masked: tuple[int, ...] = ()
    """Kept turns that are context only: shown, never trained on. Ascending, some of `turns`, never all."""
    max_result_chars: int | None = None
    """Tool results longer than this many characters are cut when the row is written; None: none is."""
    rewrites: tuple[Rewrite, ...] = ()
    """Answered requests whose texts stand in place of the corpus's, one per turn and kind."""

    @property
    def trained(self) -> tuple[int, ...]:
        """Kept turns that are trained on, ascending."""
        return tuple(t for t in self.turns if t not in self.masked) if self.masked else self.turns

    def touched(self, operator: str) -> Item:
        """The item with the operator in its lineage: `replace`, in a third of its time."""
        lineage = (*self.lineage, operator)
        return Item(self.row, self.turns, self.copies, lineage, self.masked, self.max_result_chars, self.rewrites)


@dataclass(frozen=True, slots=True)
class Items:
    """An ordered selection of items of one corpus."""

    corpus: Corpus
    items: tuple[Item, ...]

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def feature(self, name: str) -> list[Any]:
        """A corpus column at these items."""
        column = self.corpus.column(name)
        return [column[item.row] for item in self.items]

    def flags(self, item: Item) -> list[int]:
        """`TurnFlag` sets of the item's kept turns."""
        return self.of_turns(item, "turn_flags")

    def of_turns(self, item: Item, name: str) -> list[Any]:
        """A feature that has one value per turn (turn_flags, turn_tokens, ...), at the item's kept turns."""
        found = self.corpus.column(name)[item.row]
        return [found[turn] for turn in item.turns]

    def keep(self, holds: Callable[[Item], bool], operator: str) -> Items:
        """The items for which `holds`, in order."""
        return replace(self, items=tuple(i.touched(operator) for i in self.items if holds(i)))

    def keep_turns(self, holds: Callable[[Item, int, int], bool], operator: str) -> Items:
        """Drop turns: `holds(item, turn, flags)` decides. Items that lose every turn to train on go."""
        bits = self.corpus.column("turn_flags")

        def cut(item: Item) -> Item:
            flags = bits[item.row]
            turns = tuple([t for t in item.turns if holds(item, t, flags[t])])
            if len(turns) == len(item.turns):
                return item
            return replace(item, turns=turns, masked=tuple(t for t in item.masked if t in turns))

        return self.change(cut, operator)

    def mask_turns(self, holds: Callable[[Item, int, int], bool], operator: str) -> Items:
        """Keep the turns for which `holds(item, turn, flags)` as context only: they are shown, but not trained on.

        Masked turns stay masked. Items that lose every turn to train on go.
        """
        bits = self.corpus.column("turn_flags")

        def mask(item: Item) -> Item:
            return replace(
                item, masked=tuple(t for t in item.turns if t in item.masked or holds(item, t, bits[item.row][t]))
            )

        return self.change(mask, operator)

    def change(self, change: Callable[[Item], Item], operator: str) -> Items:
        """Items as `change` makes them, in order; those that change get `operator` into their lineage, and those that
        keep no turn to train on go."""
        out = []
        for item in self.items:
            made = change(item)
            if made is item or made == item:
                out.append(item)
            elif made.trained:
                out.append(replace(made, lineage=(*item.lineage, operator)))
        return replace(self, items=tuple(out))

    def groups(self, feature: str) -> dict[Any, list[Item]]:
        """Items by the value of a feature, in order of first appearance."""
        out: dict[Any, list[Item]] = {}
        for item, value in zip(self.items, self.feature(feature), strict=True):
            out.setdefault(value, []).append(item)
        return out


@dataclass(frozen=True, slots=True)
class RlTask:
    """A task to practise: that of a corpus trajectory, up to turn `turn`."""

    row: int
    turn: int = 0
    reward: str = "environment"
    """`environment` (the suite scores the episode) or `action_match` (the next call equals the trajectory's)."""
    aimed: bool = True
    """False for replay of families that the policy does not aim at."""
    lineage: tuple[str, ...] = ()


class NoteKind(StrEnum):
    """What a note says of the call that it points at; the trusted side writes it (`policy/notes.py`)."""

    FACT = "fact"
    """The span of the call's result."""
    CONSTRAINT = "constraint"
    """The span, an error, and the tool that gave it."""
    TOOL = "tool"
    """The called tool's signature and description."""
    RECOVERY = "recovery"
    """The call's error, and what the next successful call does differently."""
    RULE = "rule"
    """The tools that the row's trajectory calls, in order, and those of the row `against` that are not to be called."""


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """A note: a call of a corpus trajectory, a span of its result, and what is to be said of it."""

    row: int
    turn: int
    result: int
    """Number of the call within the turn."""
    start: int
    """First character of the span in the result's text."""
    end: int
    scope: str
    """Tool or family that it belongs to."""
    lineage: tuple[str, ...] = ()
    kind: NoteKind = NoteKind.FACT
    against: int | None = None
    """Row of a failed trajectory that a rule is held against."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a policy makes."""

    sft: Items
    rl: tuple[RlTask, ...]
    memory: tuple[MemoryItem, ...]


@dataclass(slots=True)
class Context:
    """What a policy may know beside the corpus. `rng` is seeded; there is no clock, file, network or environment."""

    params: Mapping[str, Any]
    rng: random.Random
    profile: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[Mapping[str, Any], ...] = ()
    """Failure clusters of the parent on diag, worst first: mode, count, share, families, ..."""
    family_success: Mapping[str, float] = field(default_factory=dict)
    """Mean success of the parent on diag, by task family."""
    tools: tuple[JsonObject, ...] = ()
    rewritten: Mapping[Rewrite, str] = field(default_factory=dict)
    """Answers to what the first pass requested; empty in the first pass."""
    requests: dict[Rewrite, None] = field(default_factory=dict)
    """What `request_rewrite` asks for, in order, each once."""
    logs: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def log(self, text: str) -> None:
        """A line for `notes.json`, beside the resources; at most 200 are kept."""
        if len(self.logs) < 200:
            self.logs.append(str(text)[:500])

    def metric(self, name: str, value: float) -> None:
        """A number for `notes.json`; at most 200 are kept."""
        if len(self.metrics) < 200:
            self.metrics[str(name)[:80]] = float(value)
