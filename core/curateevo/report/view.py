"""From a story to what the page prints: rows, sections and sentences. Pure; nothing here reads or guesses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from curateevo.api.evolution import EvolutionStatus, Stage, Verdict, VersionPhase
from curateevo.api.stage import ScoreTable, SplitScore
from curateevo.report.charts import Mark, Point
from curateevo.report.story import Skipped, Story, VersionStory
from curateevo.report.wording import VERSION_PHASES

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""
SEALED_NAME = re.compile(r"v(\d+)(?:-seed-(\d+))?")
MARKS = {
    Verdict.COMMITTED: Mark.COMMITTED,
    Verdict.REVERTED: Mark.REVERTED,
    Verdict.REJECTED: Mark.REJECTED,
    Verdict.FAILED: Mark.FAILED,
}
ENDED = {VersionPhase.REJECTED: Mark.REJECTED, VersionPhase.FAILED: Mark.FAILED}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table of versions. None where it is not known."""

    number: int
    mark: Mark
    state: str
    """Where it stands, in words; it matters while there is no verdict."""
    parent: int | None
    focus: str
    method: str
    p: float | None
    low: float | None
    high: float | None
    p_at_most: float | None
    """What P could at most have come to, where not all of sel was run."""
    c: float | None
    j: float | None
    delta_p: float | None
    delta_j: float | None
    lower: float | None
    upper: float | None
    compared_tasks: int
    sft_turns: int | None
    rl_turns: int | None
    memory_items: int | None
    seconds: float | None
    errors: int
    reason: str
    message: str
    champion: bool

    @property
    def point(self) -> Point:
        return Point(self.number, self.mark, self.p, self.low, self.high, self.c, self.j)


@dataclass(frozen=True, slots=True)
class FamilyRow:
    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True, slots=True)
class SealedRow:
    """One subject on the sealed test: a floor, or a champion (the mean of its training seeds)."""

    name: str
    p: float
    low: float
    high: float
    tasks: int
    errors: int
    seeds: int
    families: dict[str, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """Last minus first champion on the sealed test, paired by task, with a 95 % interval (normal)."""

    first: int
    last: int
    mean: float
    low: float
    high: float
    tasks: int


@dataclass(frozen=True, slots=True)
class CostRow:
    name: str
    seconds: float
    cpu_seconds: float
    gpu_seconds: float
    peak_bytes: int
    calls: int
    tokens: int
    usd: float
    reused: int
    """Artifacts that were taken from earlier equal work, and so cost nothing here."""


def wilson(p: float, n: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share `p` of `n` tasks (Wilson 1927). For task means over repeats, whose
    variance is smaller, it is on the safe side."""
    if n <= 0 or not math.isfinite(p):
        return 0.0, 1.0
    z2 = Z95 * Z95
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(max(0.0, p * (1 - p)) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def rows_of(story: Story) -> list[Row]:
    """Every version and every round without one, by number."""
    champion = story.evolution.status.champion
    number = champion.number if champion else None
    rows = [_row(v, number) for v in story.versions] + [_skipped_row(s) for s in story.skipped]
    return sorted(rows, key=lambda r: r.number)


def mark_of(story: VersionStory) -> Mark:
    verdict = story.version.status.verdict or (story.decision.verdict if story.decision else None)
    if verdict is not None:
        return MARKS[verdict]
    return ENDED.get(story.version.status.phase, Mark.RUNNING)


def _row(story: VersionStory, champion: int | None) -> Row:
    spec, status, decision = story.version.spec, story.version.status, story.decision
    measured, sel = status.measurement, story.scores.get("sel")
    low, high = wilson(measured.p, sel.tasks) if measured and measured.p is not None and sel else (None, None)
    reason = decision.reason if decision else (status.reason.value if status.reason else "")
    return Row(
        number=spec.number,
        mark=mark_of(story),
        state=VERSION_PHASES[status.phase],
        parent=spec.parent,
        focus=spec.focus.value if spec.focus else "",
        method=text_of(story.proposal, "method"),
        p=measured.p if measured else None,
        low=low,
        high=high,
        p_at_most=measured.stopped.p_at_most if measured and measured.p is None and measured.stopped else None,
        c=measured.c if measured else None,
        j=measured.j if measured else None,
        delta_p=decision.delta_p if decision else None,
        delta_j=decision.delta_j if decision else None,
        lower=decision.lower if decision else None,
        upper=decision.upper if decision else None,
        compared_tasks=decision.tasks if decision else 0,
        sft_turns=measured.sft_turns if measured else None,
        rl_turns=measured.rl_turns if measured else None,
        memory_items=measured.memory_items if measured else None,
        seconds=measured.seconds if measured else _seconds(story),
        errors=measured.errors if measured else 0,
        reason=reason,
        message=(decision.message if decision else "") or status.message,
        champion=spec.number == champion,
    )


def _seconds(story: VersionStory) -> float | None:
    done = [m.usage.seconds for stage, m in story.manifests.items() if stage is not Stage.PROPOSE]
    return sum(done) if done else None


def _skipped_row(skipped: Skipped) -> Row:
    return Row(
        number=skipped.number,
        mark=Mark.SKIPPED,
        state="",
        parent=skipped.parent,
        focus="",
        method="",
        p=None,
        low=None,
        high=None,
        p_at_most=None,
        c=None,
        j=None,
        delta_p=None,
        delta_j=None,
        lower=None,
        upper=None,
        compared_tasks=0,
        sft_turns=None,
        rl_turns=None,
        memory_items=None,
        seconds=None,
        errors=0,
        reason=skipped.reason,
        message=skipped.message,
        champion=False,
    )


def floors_on(story: Story, split: str) -> list[tuple[str, SplitScore]]:
    return [(name, score) for name, found, score in story.floors if found == split]


def families_of(before: SplitScore | None, after: SplitScore | None) -> list[FamilyRow]:
    """Success by family on two sides, those that changed most first."""
    old, new = (before.families if before else {}), (after.families if after else {})
    rows = [FamilyRow(name, old.get(name), new.get(name)) for name in sorted({*old, *new})]
    return sorted(rows, key=lambda r: (-abs(r.change or 0.0), r.name))


def sealed_rows(story: Story) -> list[SealedRow]:
    """Floors first, then champions by number, the seeds of one champion taken together."""
    floors = [_sealed_row(name, [score]) for name, score in story.sealed if not SEALED_NAME.fullmatch(name)]
    by_version: dict[int, list[SplitScore]] = {}
    for name, score in story.sealed:
        if found := SEALED_NAME.fullmatch(name):
            by_version.setdefault(int(found[1]), []).append(score)
    return floors + [_sealed_row(champion_name(story.evolution.status, n), s) for n, s in sorted(by_version.items())]


def champion_name(status: EvolutionStatus, number: int) -> str:
    first, last = (
        number == status.first_champion,
        status.champion is not None and number == status.champion.number,
    )
    kind = (
        "first and last champion"
        if first and last
        else "first champion"
        if first
        else "last champion"
        if last
        else "version"
    )
    return f"{kind}, v{number}"


def _sealed_row(name: str, scores: Sequence[SplitScore]) -> SealedRow:
    p = sum(s.p for s in scores) / len(scores)
    low, high = wilson(p, scores[0].tasks)
    families = {f: sum(s.families.get(f, 0.0) for s in scores) / len(scores) for f in scores[0].families}
    return SealedRow(name, p, low, high, scores[0].tasks, sum(s.errors for s in scores), len(scores), families)


def sealed_difference(story: Story) -> Difference | None:
    """None when there is one champion only, or no score task by task."""
    status, table = story.evolution.status, story.sealed_tasks
    if table is None or status.champion is None or status.first_champion in (None, status.champion.number):
        return None
    first, last = status.first_champion or 0, status.champion.number
    old, new = _task_means(table, first), _task_means(table, last)
    gaps = [new[t] - old[t] for t in old if t in new]
    if len(gaps) < 2:
        return None
    mean = sum(gaps) / len(gaps)
    error = math.sqrt(sum((g - mean) ** 2 for g in gaps) / (len(gaps) - 1) / len(gaps))
    return Difference(first, last, mean, mean - Z95 * error, mean + Z95 * error, len(gaps))


def _task_means(table: ScoreTable, version: int) -> dict[int, float]:
    """Mean over a version's seeds and repeats, by task position."""
    subjects = [s for s in table.scores if (found := SEALED_NAME.fullmatch(s)) and int(found[1]) == version]
    out = {}
    for position in range(len(table.tasks)):
        rows = [table.scores[s][position] for s in subjects if position < len(table.scores[s])]
        kept = [value for row in rows for value in row if value is not None]
        if kept:
            out[position] = sum(kept) / len(kept)
    return out


def costs_of(story: Story) -> list[CostRow]:
    """What every stage took, summed over versions."""
    found = [m for v in story.versions for m in v.manifests.values()] + list(story.runs.values())
    found += [story.ingest] if story.ingest else []
    rows = []
    for stage in Stage:
        used = [m for m in found if m.stage is stage]
        if not used:
            continue
        rows.append(
            CostRow(
                name=f"{stage.value} × {len(used)}" if len(used) > 1 else stage.value,
                seconds=sum(m.usage.seconds for m in used),
                cpu_seconds=sum(m.usage.cpu_seconds for m in used),
                gpu_seconds=sum(m.usage.gpu_seconds for m in used),
                peak_bytes=max(m.usage.peak_bytes for m in used),
                calls=sum(m.usage.calls for m in used),
                tokens=sum(m.usage.tokens for m in used),
                usd=sum(m.usage.usd for m in used),
                reused=sum(m.cached_from is not None for m in used),
            )
        )
    return rows


def version_costs(story: VersionStory) -> list[CostRow]:
    order = (Stage.PROPOSE, Stage.CURATE, Stage.TRAIN, Stage.EVALUATE)
    found = [(stage, story.manifests[stage]) for stage in order if stage in story.manifests]
    return [
        CostRow(
            stage.value,
            m.usage.seconds,
            m.usage.cpu_seconds,
            m.usage.gpu_seconds,
            m.usage.peak_bytes,
            m.usage.calls,
            m.usage.tokens,
            m.usage.usd,
            int(m.cached_from is not None),
        )
        for stage, m in found
    ]


def total(rows: Iterable[CostRow]) -> CostRow:
    found = list(rows)
    return CostRow(
        "total",
        sum(r.seconds for r in found),
        sum(r.cpu_seconds for r in found),
        sum(r.gpu_seconds for r in found),
        max((r.peak_bytes for r in found), default=0),
        sum(r.calls for r in found),
        sum(r.tokens for r in found),
        sum(r.usd for r in found),
        sum(r.reused for r in found),
    )


def last_change(story: Story) -> float | None:
    """The latest time that any status names."""
    status = story.evolution.status
    times = [status.started_at, status.completed_at, *(c.last_transition_time for c in status.conditions)]
    times += [s.started_at for s in status.stages.values()]
    times += [s.started_at for v in story.versions for s in v.version.status.stages.values()]
    return max((t for t in times if t is not None), default=None)


def text_of(value: object, key: str) -> str:
    """A string field of a JSON object that others wrote; empty for anything else."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def number_of(value: object, *path: str) -> float | None:
    """A number in nested JSON objects that others wrote; None for anything else."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
