"""Episodes to clusters of failures. Every claim carries a quote that stands in the episode, or it is dropped."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curateevo.evolver.diagnosis.episode import Episode, read_episode
from curateevo.evolver.diagnosis.modes import READINGS, Mode
from curateevo.evolver.diagnosis.peers import Peers, peers_of
from curateevo.evolver.diagnosis.rules import RULES, Claim, Rule
from curateevo.trajectories.flags import values
from curateevo.trajectories.model import JsonObject, RowInvalid, Turn

MAX_EVIDENCE = 5
MAX_QUOTE_CHARS = 240
MAX_NAMED_FAMILIES = 4


@dataclass(frozen=True, slots=True)
class Evidence:
    """A quote from turn `turn` of a task's episode."""

    task: str
    turn: int
    quote: str


@dataclass(frozen=True, slots=True)
class Finding:
    mode: Mode
    family: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Cluster:
    """Failures of one mode."""

    mode: Mode
    count: int
    share: float
    """Of all failed episodes, 0..1."""
    families: dict[str, int]
    evidence: tuple[Evidence, ...]
    name: str = ""
    """Where an LLM named it; clusters of one name have one cause."""

    def to_json(self) -> JsonObject:
        reading = READINGS[self.mode]
        return {
            "mode": self.mode.value,
            "name": self.name,
            "failure_family": reading.family.value,
            "count": self.count,
            "share": round(self.share, 4),
            "families": self.families,
            "evidence": [{"task": e.task, "turn": e.turn, "quote": e.quote} for e in self.evidence],
            "seen": reading.seen,
            "hypothesis": reading.hypothesis,
            "curation_hint": reading.hint,
            "target_stage": reading.target,
            "expected_metric": f"{reading.metric}; success on {_named(self.families)}",
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    clusters: tuple[Cluster, ...]
    episodes: int
    failures: int
    family_success: dict[str, float]
    findings: tuple[Finding, ...] = ()
    """One of each failure; clusters are made of them."""
    naming: str = ""
    """Whose names the clusters bear, and why, where an LLM was asked for some."""

    def to_json(self) -> JsonObject:
        return {
            "episodes": self.episodes,
            "failures": self.failures,
            "familySuccess": self.family_success,
            "naming": self.naming,
            "clusters": [c.to_json() for c in self.clusters],
        }


def diagnose(episodes: Iterable[JsonObject], checks: Mapping[tuple[str, int], Mapping[str, bool]]) -> Diagnosis:
    """`episodes` are rows of an evaluation's trajectories.jsonl; `checks` its checks by (task, repeat).

    Failures are measured against the successes of their family among `episodes`. Clusters are ordered by count, then by
    mode; what no rule explains comes last.
    """
    success: dict[str, list[float]] = defaultdict(list)
    read: list[Episode] = []
    findings: list[Finding] = []
    for row in episodes:
        if row["success"] is None:
            continue
        success[row["family"]].append(float(row["success"]))
        try:
            read.append(read_episode(row, checks.get((row["task"], row["repeat"]), {})))
        except RowInvalid:
            if row["success"] < 1:
                findings.append(Finding(Mode.UNKNOWN, row["family"], Evidence(row["task"], 0, "")))
    peers = peers_of(read)
    findings += [explain(episode, peers[episode.family]) for episode in read if episode.success < 1]
    grouped: dict[Mode, list[Finding]] = defaultdict(list)
    for finding in findings:
        grouped[finding.mode].append(finding)
    clusters = tuple(_cluster(mode, group, len(findings)) for mode, group in grouped.items())
    means = {family: sum(v) / len(v) for family, v in sorted(success.items())}
    count = sum(map(len, success.values()))
    return Diagnosis(
        tuple(sorted(clusters, key=lambda c: (c.mode is Mode.UNKNOWN, -c.count, c.mode))),
        count,
        len(findings),
        means,
        tuple(findings),
    )


def explain(episode: Episode, peers: Peers, rules: Sequence[Rule] = RULES) -> Finding:
    """The mode of one failed episode, with its quote: the first rule whose quote is found."""
    for rule in rules:
        claim = rule(episode, peers)
        if claim is not None and stands(claim, episode.turns):
            return Finding(claim.mode, episode.family, _evidence(episode.task, claim))
    last = max(0, len(episode.turns) - 1)
    return Finding(Mode.UNKNOWN, episode.family, _evidence(episode.task, Claim(Mode.UNKNOWN, last, episode.last_words)))


def stands(claim: Claim, turns: Sequence[Turn]) -> bool:
    """Whether the quote stands, letter by letter, in its turn: in its text, a call or a result."""
    if not 0 <= claim.turn < len(turns):
        return False
    turn = turns[claim.turn]
    if not claim.quote:
        return not turn.content
    texts = [turn.content, *turn.results]
    texts += [text for c in turn.calls for text in (c.name, c.arguments, *values(c.parsed()))]
    return any(claim.quote in text for text in texts)


def _evidence(task: str, claim: Claim) -> Evidence:
    return Evidence(task, claim.turn, claim.quote[:MAX_QUOTE_CHARS])


def _named(families: Mapping[str, int]) -> str:
    names = list(families)
    more = f" and {len(names) - MAX_NAMED_FAMILIES} more" if len(names) > MAX_NAMED_FAMILIES else ""
    return ", ".join(names[:MAX_NAMED_FAMILIES]) + more


def _cluster(mode: Mode, group: Sequence[Finding], failures: int) -> Cluster:
    families = dict(Counter(f.family for f in group).most_common())
    chosen: list[Evidence] = []
    for family in families:
        chosen += [f.evidence for f in group if f.family == family and f.evidence.quote][:2]
    return Cluster(mode, len(group), len(group) / failures, families, tuple(chosen[:MAX_EVIDENCE]))


def parse_jsonl(text: str) -> list[Any]:
    """Rows of JSON lines."""
    return [json.loads(line) for line in text.splitlines() if line.strip()]
