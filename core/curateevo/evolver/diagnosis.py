"""Diagnosis by rules on typed turns. Every claim carries a quote that stands in the episode, or it is dropped."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from curateevo.trajectories.features import MALFORMED, reads_like_error, values, words
from curateevo.trajectories.formats.atif_steps import conversation, read_record, unique_call_ids
from curateevo.trajectories.model import JsonObject, RowInvalid, Turn

MAX_EVIDENCE = 5
MAX_QUOTE_CHARS = 240
NOTES = "notes:"
LOOP_CALLS = 3


class Mode(StrEnum):
    """What went wrong in a failed episode. The first that applies, in this order, is an episode's mode."""

    MALFORMED_CALL = "malformed_call"
    REPEATED_FAILURE = "repeated_failing_call"
    INVENTED_ARGUMENT = "invented_argument"
    RECOVERY_FAILURE = "recovery_failure"
    SCHEMA_VIOLATION = "schema_violation"
    NO_CALL = "no_call_where_needed"
    WRONG_TOOL = "wrong_tool"
    STOPPED_EARLY = "stopped_early"
    NEEDLESS_CALL = "needless_call"
    LOOP = "loop"
    MEMORY_MISLED = "memory_misled"
    WRONG_ARGUMENT = "wrong_argument"
    UNKNOWN = "unknown"


HINTS: dict[Mode, tuple[str, str, str]] = {
    Mode.MALFORMED_CALL: ("SFT rows show broken call syntax", "drop malformed turns", "sft"),
    Mode.REPEATED_FAILURE: ("SFT rows insist on a failing call", "fold repeats, keep the recovery", "sft"),
    Mode.INVENTED_ARGUMENT: (
        "a value is needed that no request holds",
        "supply facts by memory, drop ungrounded rows",
        "memory",
    ),
    Mode.RECOVERY_FAILURE: (
        "too few rows show what to do after an error",
        "keep recoveries, fold repeats, upsample them",
        "sft",
    ),
    Mode.SCHEMA_VIOLATION: ("SFT rows break tool schemas", "keep schema-valid rows only", "sft"),
    Mode.NO_CALL: ("SFT rows answer without the call that was needed", "drop rows that stop early", "sft"),
    Mode.WRONG_TOOL: (
        "SFT rows use a wrong tool, or the right one is rare",
        "keep reliable kinds of work, balance families",
        "sft",
    ),
    Mode.STOPPED_EARLY: ("SFT rows end before the work is done", "keep reliable kinds of work", "sft"),
    Mode.NEEDLESS_CALL: ("SFT rows hold detours", "drop unused calls", "sft"),
    Mode.LOOP: ("SFT rows repeat themselves", "fold repeats, cap turns", "sft"),
    Mode.MEMORY_MISLED: (
        "a retrieved note was wrong or beside the point",
        "believe successful results only",
        "memory",
    ),
    Mode.WRONG_ARGUMENT: (
        "SFT rows copy the wrong value",
        "drop rows with lazy defaults, practise by RL",
        "rl",
    ),
    Mode.UNKNOWN: ("no rule explains it", "look at the episode", "sft"),
}


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

    def to_json(self) -> JsonObject:
        hypothesis, hint, target = HINTS[self.mode]
        return {
            "mode": self.mode.value,
            "count": self.count,
            "share": round(self.share, 4),
            "families": self.families,
            "evidence": [{"task": e.task, "turn": e.turn, "quote": e.quote} for e in self.evidence],
            "hypothesis": hypothesis,
            "curation_hint": hint,
            "target_stage": target,
            "expected_metric": "success on the families named",
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    clusters: tuple[Cluster, ...]
    episodes: int
    failures: int
    family_success: dict[str, float]

    def to_json(self) -> JsonObject:
        return {
            "episodes": self.episodes,
            "failures": self.failures,
            "familySuccess": self.family_success,
            "clusters": [c.to_json() for c in self.clusters],
        }


def diagnose(episodes: Iterable[JsonObject], checks: dict[tuple[str, int], dict[str, bool]]) -> Diagnosis:
    """`episodes` are rows of an evaluation's trajectories.jsonl; `checks` its checks by (task, repeat).

    Clusters are ordered by count, then by mode.
    """
    success: dict[str, list[float]] = defaultdict(list)
    findings: list[Finding] = []
    count = 0
    for row in episodes:
        if row["success"] is None:
            continue
        count += 1
        success[row["family"]].append(float(row["success"]))
        if row["success"] < 1:
            findings.append(explain(row, checks.get((row["task"], row["repeat"]), {})))
    grouped: dict[Mode, list[Finding]] = defaultdict(list)
    for finding in findings:
        grouped[finding.mode].append(finding)
    clusters = tuple(_cluster(mode, group, len(findings)) for mode, group in grouped.items())
    means = {family: sum(v) / len(v) for family, v in sorted(success.items())}
    return Diagnosis(tuple(sorted(clusters, key=lambda c: (-c.count, c.mode))), count, len(findings), means)


def explain(row: JsonObject, checks: dict[str, bool]) -> Finding:
    """The mode of one failed episode, with its quote."""
    try:
        parts = conversation(read_record({"messages": unique_call_ids(row["messages"])}, "openai-messages").steps)
    except RowInvalid as error:
        return Finding(Mode.UNKNOWN, row["family"], Evidence(row["task"], 0, str(error)[:MAX_QUOTE_CHARS]))
    opening = " ".join([parts.system or "", *parts.head])
    notes = (parts.system or "").partition(NOTES)[2]
    for rule in RULES:
        found = rule(parts.turns, opening, notes, checks)
        if found is not None and (turn := _quoted_turn(row, parts.turns, found[1], found[2])) is not None:
            return Finding(found[0], row["family"], Evidence(row["task"], turn, found[2][:MAX_QUOTE_CHARS]))
    quote = parts.turns[-1].content if parts.turns else ""
    return Finding(
        Mode.UNKNOWN,
        row["family"],
        Evidence(row["task"], max(0, len(parts.turns) - 1), quote[:MAX_QUOTE_CHARS]),
    )


Found = tuple[Mode, int, str] | None


def _malformed(turns: Sequence[Turn], opening: str, notes: str, checks: dict[str, bool]) -> Found:
    for number, turn in enumerate(turns):
        if not turn.calls and MALFORMED.search(turn.content):
            return Mode.MALFORMED_CALL, number, turn.content
        if any(call.parsed() is None for call in turn.calls):
            return Mode.MALFORMED_CALL, number, turn.calls[0].arguments
    return None


def _repeated(turns: Sequence[Turn], opening: str, notes: str, checks: dict[str, bool]) -> Found:
    failed: set[tuple[str, str]] = set()
    for number, turn in enumerate(turns):
        for call, result in zip(turn.calls, turn.results, strict=True):
            if (call.name, call.arguments) in failed:
                return Mode.REPEATED_FAILURE, number, call.arguments
            if reads_like_error(result):
                failed.add((call.name, call.arguments))
    return None


def _invented(turns: Sequence[Turn], opening: str, notes: str, checks: dict[str, bool]) -> Found:
    seen = set(words(opening))
    for number, turn in enumerate(turns):
        for call in turn.calls:
            for value in values(call.parsed()):
                if words(value) and not any(w in seen for w in words(value)):
                    return Mode.INVENTED_ARGUMENT, number, value
        seen.update(words(" ".join([*turn.users, *turn.results])))
    return None


def _recovery(turns: Sequence[Turn], opening: str, notes: str, checks: dict[str, bool]) -> Found:
    calling = [(n, t) for n, t in enumerate(turns) if t.calls]
    if calling and (bad := next((r for r in calling[-1][1].results if reads_like_error(r)), None)) is not None:
        if notes and any(v in notes for c in calling[-1][1].calls for v in values(c.parsed())):
            return Mode.MEMORY_MISLED, calling[-1][0], bad
        mode = Mode.SCHEMA_VIOLATION if "argument" in bad or "tool" in bad else Mode.RECOVERY_FAILURE
        return mode, calling[-1][0], bad
    return None


def _no_call(turns: Sequence[Turn], opening: str, notes: str, checks: dict[str, bool]) -> Found:
    if turns and not any(t.calls for t in turns):
        return Mode.NO_CALL, len(turns) - 1, turns[-1].content
    return None


def _by_checks(turns: Sequence[Turn], opening: str, notes: str, checks: dict[str, bool]) -> Found:
    """What only the suite can tell: which tools were right, and whether a call too many was made."""
    calls = [(n, c) for n, t in enumerate(turns) for c in t.calls]
    if not calls or not checks:
        return None
    number, last = calls[-1]
    tools = checks.get("tools", checks.get("right_tool", True))
    if tools:
        return Mode.WRONG_ARGUMENT, number, last.arguments
    if checks.get("nothing_needless") is False:
        return Mode.NEEDLESS_CALL, number, last.name
    answered = not turns[-1].calls
    return (Mode.STOPPED_EARLY if answered and len(calls) > 1 else Mode.WRONG_TOOL), number, last.name


def _loop(turns: Sequence[Turn], opening: str, notes: str, checks: dict[str, bool]) -> Found:
    counts = Counter((c.name, c.arguments) for t in turns for c in t.calls)
    if counts and counts.most_common(1)[0][1] >= LOOP_CALLS:
        name, arguments = counts.most_common(1)[0][0]
        number = next(
            n for n, t in enumerate(turns) if any((c.name, c.arguments) == (name, arguments) for c in t.calls)
        )
        return Mode.LOOP, number, arguments
    return None


RULES = (_malformed, _repeated, _loop, _invented, _recovery, _no_call, _by_checks)


def _quoted_turn(row: JsonObject, turns: Sequence[Turn], turn: int, quote: str) -> int | None:
    """The turn, if the quote really stands in it; None drops the claim."""
    if not quote:
        return turn if not turns[turn].content else None
    texts = [turns[turn].content, *turns[turn].results]
    texts += [text for c in turns[turn].calls for text in (c.name, c.arguments, *values(c.parsed()))]
    return turn if any(quote in text for text in texts) else None


def _cluster(mode: Mode, group: Sequence[Finding], failures: int) -> Cluster:
    families = dict(Counter(f.family for f in group).most_common())
    chosen: list[Evidence] = []
    for family in families:
        chosen += [f.evidence for f in group if f.family == family][:2]
    return Cluster(mode, len(group), len(group) / failures, families, tuple(chosen[:MAX_EVIDENCE]))


def parse_jsonl(text: str) -> list[Any]:
    """Rows of JSON lines."""
    return [json.loads(line) for line in text.splitlines() if line.strip()]
