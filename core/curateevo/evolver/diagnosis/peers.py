"""What succeeded episodes do, as the measure of those that failed: no expected answer is needed for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from curateevo.evolver.diagnosis.episode import Episode, Origin
from curateevo.trajectories.flags import SchemaCheck

ENOUGH = 3
"""Succeeded episodes, or uses of an argument, below which nothing is said."""
USUAL_SHARE = 0.6
"""Peers that must agree before what they do is taken for what should be done."""
ODD_SHARE = 0.3
"""A tool that fewer peers than this call is odd."""
FREE_SHARE = 0.5
"""An argument is free when successes take its value from nowhere at least this often: it is knowledge, or a choice."""

Signature = tuple[tuple[str, bool], ...]


@dataclass(slots=True)
class Peers:
    """Succeeded episodes of one family; `uses` and `nowhere` count arguments over all families."""

    signatures: Counter[Signature] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)
    count: int = 0
    uses: Counter[tuple[str, str]] = field(default_factory=Counter)
    nowhere: Counter[tuple[str, str]] = field(default_factory=Counter)
    held: dict[str, set[str]] = field(default_factory=dict)
    """Values by argument name."""
    runs: dict[str, list[Episode]] = field(default_factory=dict)
    """The episodes by task."""
    schemas: SchemaCheck = field(default_factory=SchemaCheck)
    """Schemas compiled once for all episodes: that is dear."""

    @property
    def known(self) -> bool:
        return self.count >= ENOUGH

    @property
    def alike(self) -> bool:
        """Whether most do one kind of work, so that a tool which few call says something."""
        plain = sum(n for s, n in self.signatures.items() if all(self.share_with(t) >= ODD_SHARE for t, _ in s))
        return self.known and plain / self.count >= USUAL_SHARE

    def share_with(self, tool: str) -> float:
        """Share of peers that call the tool."""
        return self.tools[tool] / self.count if self.count else 0.0

    def share_like(self, signature: Signature) -> float:
        """Share of peers that did the same."""
        return self.signatures[signature] / self.count if self.count else 0.0

    def share_beyond(self, signature: Signature) -> float:
        """Share of peers that did the same and then more."""
        further = sum(
            n for s, n in self.signatures.items() if len(s) > len(signature) and s[: len(signature)] == signature
        )
        return further / self.count if self.count else 0.0

    def free(self, tool: str, argument: str) -> bool:
        """Whether successes, too, take this argument's value from nowhere."""
        key = (tool, argument)
        return self.uses[key] >= ENOUGH and self.nowhere[key] / self.uses[key] >= FREE_SHARE


def peers_of(episodes: Iterable[Episode]) -> dict[str, Peers]:
    """By family, of every family in `episodes`."""
    uses: Counter[tuple[str, str]] = Counter()
    nowhere: Counter[tuple[str, str]] = Counter()
    held: dict[str, set[str]] = defaultdict(set)
    schemas = SchemaCheck()
    found: dict[str, Peers] = {}
    for episode in episodes:
        peers = found.setdefault(episode.family, Peers(uses=uses, nowhere=nowhere, held=held, schemas=schemas))
        if episode.success < 1:
            continue
        peers.count += 1
        peers.signatures[episode.signature] += 1
        peers.runs.setdefault(episode.task, []).append(episode)
        peers.tools.update({m.call.name for m in episode.made})
        for made in episode.made:
            for argument in made.arguments:
                uses[made.call.name, argument.name] += 1
                nowhere[made.call.name, argument.name] += argument.origin is Origin.NOWHERE
                held[argument.name].add(argument.value)
    return found
