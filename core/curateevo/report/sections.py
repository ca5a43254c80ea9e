"""What the page says of one version in full: its idea, its diff, what it was to mend, what it kept, what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from markupsafe import escape

from curateevo.api.evolution import Stage, StageState
from curateevo.api.stage import CurateSummary, SplitScore, TrainSummary
from curateevo.report.representation import Group, groups_of
from curateevo.report.story import JsonObject, VersionStory
from curateevo.report.view import CostRow, FamilyRow, Row, families_of, number_of, text_of, version_costs
from curateevo.report.wording import clip, count, number, plural, share, short

MAX_DIFF_LINES = 400
MAX_LINE = 240
MAX_QUOTE = 240
MAX_TEXT = 1000
MAX_NAME = 60
MAX_CLUSTERS = 6
MAX_EVIDENCE = 3
MAX_FAMILIES = 40
MAX_PROFILE_FAMILIES = 12
MAX_NOTES = 12
KINDS = {"+": "add", "-": "del", "@": "hunk"}


@dataclass(frozen=True, slots=True)
class Code:
    """Lines with their kind (add, del, hunk, file or same) and how many were left out."""

    lines: tuple[tuple[str, str], ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Failures of one mode: what is wrong, how often, where, what may help, and quotes (task, turn, text)."""

    name: str
    """An LLM's name for it, or the mode's."""
    mode: str
    """The mode and the family of failures it belongs to."""
    seen: str
    """What the quotes show."""
    count: float | None
    share: float | None
    families: str
    hypothesis: str
    hint: str
    target: str
    quotes: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class ProfileRow:
    name: str
    corpus: str
    kept: str
    ratio: str


@dataclass(frozen=True, slots=True)
class Section:
    row: Row
    hypothesis: str
    expected: str
    digest: str
    diff: Code
    source: Code
    against: str
    """Whose success by family stands in the left column."""
    families: tuple[FamilyRow, ...]
    families_left_out: int
    diagnosed: str
    naming: str
    """Whose names the clusters bear, where an LLM was asked."""
    clusters: tuple[Cluster, ...]
    clusters_left_out: int
    profile: tuple[ProfileRow, ...]
    kept_families: tuple[ProfileRow, ...]
    represented: tuple[Group, ...]
    facts: tuple[tuple[str, str], ...]
    """What curation and training said of themselves: name and text."""
    notes: tuple[str, ...]
    stages: tuple[tuple[str, str], ...]
    """Stages that are not simply done: name and where they stand."""
    costs: tuple[CostRow, ...]


def section_of(
    story: VersionStory,
    row: Row,
    before: tuple[str, SplitScore | None],
    corpus: JsonObject | None,
    code_chars: int,
) -> Section:
    """`before`: the side to compare success by family with, and its score on sel. `code_chars`: at most so many
    characters of code, escaped."""
    families = families_of(before[1], story.scores.get("sel"))
    clusters = [c for c in _list(story.diagnosis, "clusters") if isinstance(c, dict)]
    diff = code_of(story.diff, code_chars, diff=True)
    return Section(
        row=row,
        hypothesis=clip(text_of(story.proposal, "hypothesis"), MAX_TEXT),
        expected=clip(text_of(story.proposal, "expected"), MAX_TEXT),
        digest=story.version.spec.policy_digest,
        diff=diff,
        source=code_of(story.source, code_chars - _escaped_chars(diff), diff=False) if row.champion else Code(()),
        against=before[0] if before[1] else "",
        families=tuple(families[:MAX_FAMILIES]),
        families_left_out=max(0, len(families) - MAX_FAMILIES),
        diagnosed=_diagnosed(story.diagnosis),
        naming=clip(text_of(story.diagnosis, "naming"), MAX_QUOTE),
        clusters=tuple(cluster_of(c) for c in clusters[:MAX_CLUSTERS]),
        clusters_left_out=max(0, len(clusters) - MAX_CLUSTERS),
        profile=tuple(_profile_rows(corpus, story.profile)),
        kept_families=tuple(_kept_families(corpus, story.profile)),
        represented=groups_of(story.profile),
        facts=tuple(_facts(story)),
        notes=tuple(_notes(story)),
        stages=tuple(_stages(story)),
        costs=tuple(version_costs(story)),
    )


def code_of(text: str, chars: int, *, diff: bool) -> Code:
    """At most MAX_DIFF_LINES lines of at most MAX_LINE characters, and `chars` escaped characters in all."""
    lines = text.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    out: list[tuple[str, str]] = []
    for place, line in enumerate(lines[:MAX_DIFF_LINES]):
        shown = clip(line, MAX_LINE)
        chars -= len(escape(shown)) + LINE_OVERHEAD
        if chars < 0:
            break
        kind = "same" if not diff else "file" if place < 2 else KINDS.get(line[:1], "same")
        out.append((kind, shown))
    return Code(tuple(out), len(lines) - len(out))


LINE_OVERHEAD = 32
"""Markup about one line of code, in characters."""


def _escaped_chars(code: Code) -> int:
    return sum(len(escape(text)) + LINE_OVERHEAD for _, text in code.lines)


def code_chars(section: Section) -> int:
    """Escaped characters that a section's code takes of the page."""
    return _escaped_chars(section.diff) + _escaped_chars(section.source)


def _diagnosed(diagnosis: JsonObject | None) -> str:
    episodes, failures = number_of(diagnosis, "episodes"), number_of(diagnosis, "failures")
    if episodes is None or failures is None:
        return ""
    return f"{count(failures)} of {count(episodes)} episodes on diag failed"


def cluster_of(raw: JsonObject) -> Cluster:
    """A record of diagnosis.json, whatever it holds."""
    families = raw.get("families")
    named = (
        sorted(families.items(), key=lambda kv: (-(_number(kv[1]) or 0), kv[0])) if isinstance(families, dict) else []
    )
    told = ", ".join(f"{short(str(name), MAX_NAME)} {count(_number(n))}" for name, n in named[:8])
    quotes = [e for e in _list(raw, "evidence") if isinstance(e, dict)]
    mode = short(text_of(raw, "mode").replace("_", " "), MAX_NAME)
    name = short(text_of(raw, "name"), MAX_NAME) or mode
    kinds = [mode if name != mode else "", short(text_of(raw, "failure_family"), MAX_NAME)]
    return Cluster(
        name=name,
        mode=", ".join(kind for kind in kinds if kind and kind != name),
        seen=clip(text_of(raw, "seen"), MAX_QUOTE),
        count=number_of(raw, "count"),
        share=number_of(raw, "share"),
        families=""
        if len(named) < 2
        else told + (f" and {plural(len(named) - 8, 'more')[:-1]}" if len(named) > 9 else ""),
        hypothesis=clip(text_of(raw, "hypothesis"), MAX_QUOTE),
        hint=clip(text_of(raw, "curation_hint"), MAX_QUOTE),
        target=TARGETS.get(text_of(raw, "target_stage"), short(text_of(raw, "target_stage"), MAX_NAME)),
        quotes=tuple(
            (short(text_of(e, "task"), 80), count(number_of(e, "turn")), _quote(text_of(e, "quote")))
            for e in quotes[:MAX_EVIDENCE]
        ),
    )


TARGETS = {"sft": "SFT data", "rl": "RL tasks", "memory": "the memory"}


def _quote(text: str) -> str:
    """A quote, with a mark where the diagnosis has cut it."""
    return f"{text}…" if len(text) == MAX_QUOTE else clip(text, MAX_QUOTE)


PROFILE_COUNTS = (
    ("trajectories", "trajectories"),
    ("turns", "turns"),
    ("calls", "tool calls"),
    ("tokens", "tokens"),
    ("exact_duplicates", "exact duplicates"),
)
FLAGS = {
    "CALL": "turns that call a tool",
    "ERROR": "turns with a result that reads like an error",
    "REPEAT": "turns that repeat the turn before",
    "MALFORMED": "turns with text that was meant to be a call",
    "BAD_SCHEMA": "turns with a call that breaks its schema",
    "UNGROUNDED": "turns with an argument from nowhere",
    "UNUSED": "turns whose results nothing uses",
    "FINAL": "turns that answer at the end",
}


def _profile_rows(corpus: JsonObject | None, kept: JsonObject | None) -> list[ProfileRow]:
    """What the policy kept beside the corpus. Empty when the one or the other is not known."""
    if corpus is None or kept is None:
        return []
    rows = []
    for key, name in PROFILE_COUNTS:
        whole, part = number_of(corpus, key), number_of(kept, key)
        if whole is not None or part is not None:
            rows.append(ProfileRow(name, count(whole), count(part), _ratio(part, whole)))
    rows.append(
        ProfileRow("successful, of all trajectories", share(success_share(corpus)), share(success_share(kept)), "")
    )
    for flag, name in FLAGS.items():
        whole, part = number_of(corpus, "turn_flags", flag), number_of(kept, "turn_flags", flag)
        if whole is not None or part is not None:
            rows.append(ProfileRow(name, share(whole or 0.0), share(part or 0.0), ""))
    return rows


def success_share(profile: JsonObject | None) -> float | None:
    """Successful trajectories as a share of all in a profile."""
    wins, everything = number_of(profile, "success", "true"), number_of(profile, "trajectories")
    return wins / everything if wins is not None and everything else None


def top_families(profile: JsonObject | None) -> list[tuple[str, float]]:
    """Families of a profile with their counts, the largest first."""
    found = profile.get("families") if profile else None
    known = {str(k): n for k, v in found.items() if (n := _number(v)) is not None} if isinstance(found, dict) else {}
    return sorted(known.items(), key=lambda kv: (-kv[1], kv[0]))


def _kept_families(corpus: JsonObject | None, kept: JsonObject | None) -> list[ProfileRow]:
    if corpus is None or kept is None:
        return []
    parts = dict(top_families(kept))
    top = top_families(corpus)[:MAX_PROFILE_FAMILIES]
    return [
        ProfileRow(short(f, MAX_NAME), count(n), count(parts.get(f, 0.0)), _ratio(parts.get(f, 0.0), n)) for f, n in top
    ]


def _ratio(part: float | None, whole: float | None) -> str:
    return share(part / whole) if part is not None and whole else ""


def _facts(story: VersionStory) -> list[tuple[str, str]]:
    out = []
    curate = story.manifests.get(Stage.CURATE)
    if curate is not None and isinstance(curate.summary, CurateSummary):
        s = curate.summary
        out.append(("SFT data", f"{plural(s.sft_rows, 'row')}, {plural(s.sft_turns, 'turn')}"))
        out.append(("RL data", f"{plural(s.rl_tasks, 'task')}, {plural(s.rl_turns, 'turn')}"))
        out.append(("Memory", plural(s.memory_items, "note")))
        out += _rewritten(story.profile)
        out.append(("Sandbox tier", short(s.tier, MAX_LINE) or "not recorded"))
    train = story.manifests.get(Stage.TRAIN)
    if train is not None and isinstance(train.summary, TrainSummary):
        t = train.summary
        seeds = ", ".join(str(seed) for seed in t.seeds[:16]) or "not recorded"
        grpo = f"skipped: {clip(t.grpo_skipped, MAX_QUOTE)}" if t.grpo_skipped else plural(t.grpo_steps, "step")
        out.append(("Training seeds", seeds))
        out.append(("SFT", plural(t.sft_steps, "step")))
        out.append(("GRPO", grpo))
        out.append(("Released model", short(t.released, MAX_LINE) or "none"))
        out += _gate(story.training)
    return out


def _rewritten(profile: JsonObject | None) -> list[tuple[str, str]]:
    """How many texts the policy had rewritten, and why others were not."""
    asked, answered = (number_of(profile, "augmentation", key) for key in ("requested", "answered"))
    if asked is None or answered is None:
        return []
    told = f"{answered:,.0f} of {plural(int(asked), 'text')} that were requested"
    reasons = (profile or {})["augmentation"].get("unanswered")
    why = ", ".join(f"{clip(name, MAX_LINE)} {count}" for name, count in reasons.items()) if _is_counts(reasons) else ""
    return [("Rewritten", f"{told}; not: {clip(why, MAX_QUOTE)}" if why else told)]


def _is_counts(value: object) -> TypeGuard[dict[str, int]]:
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, int) for k, v in value.items())


def _gate(training: JsonObject | None) -> list[tuple[str, str]]:
    """What the release gate saw, of the first seed."""
    models = [m for m in _list(training, "models") if isinstance(m, dict)]
    if not models:
        return []
    calls, dead = number_of(models[0], "callRate"), number_of(models[0], "deadGroupFraction")
    seen = [("Gate: first answers with a call", calls), ("Gate: GRPO groups without variance", dead)]
    return [(name, share(value)) for name, value in seen if value is not None]


def _notes(story: VersionStory) -> list[str]:
    train = story.manifests.get(Stage.TRAIN)
    if train is None or not isinstance(train.summary, TrainSummary):
        return []
    notes = train.summary.notes
    more = [f"{len(notes) - MAX_NOTES} more notes in the training artifact"] if len(notes) > MAX_NOTES else []
    return [clip(n, MAX_QUOTE) for n in notes[:MAX_NOTES]] + more


def _stages(story: VersionStory) -> list[tuple[str, str]]:
    out = []
    for name, status in story.version.status.stages.items():
        failures = status.infrastructure_failures + status.application_failures
        if status.state is StageState.DONE and not failures:
            continue
        told = f"{status.state.value}, attempt {status.attempt}"
        told += f" after {plural(failures, 'failure')}" if failures else ""
        told += f": {clip(status.message, MAX_QUOTE)}" if status.message else ""
        out.append((name, told))
    return out


def _list(value: JsonObject | None, key: str) -> Sequence[Any]:
    found = value.get(key) if value else None
    return found if isinstance(found, list) else ()


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def interval_text(low: float | None, high: float | None) -> str:
    """An interval as `low to high`; empty when there is none."""
    return "" if low is None or high is None else f"{number(low)} to {number(high)}"
