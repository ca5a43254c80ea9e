"""One self-contained HTML page about a run: no request leaves it, and no script is needed to read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from curateevo.api.evolution import EvolutionPhase
from curateevo.api.spec import AcceptanceRule, EvolutionSpec
from curateevo.api.stage import IngestSummary, SplitScore
from curateevo.evolution.acceptance import detectable_gain
from curateevo.local.objects import RunFolder
from curateevo.report import charts, representation, view, wording
from curateevo.report.charts import Mark
from curateevo.report.leaks import leaks_of
from curateevo.report.sections import (
    MAX_NAME,
    Section,
    code_chars,
    interval_text,
    section_of,
    success_share,
    top_families,
)
from curateevo.report.story import Story, VersionStory, read_story

TEMPLATE = "page.html.jinja"
MAX_BYTES = 1_900_000
MAX_CODE_CHARS = 500_000
"""Of all sections' code together, escaped."""
MAX_CORPUS_SOURCES = 6
BASE_CONFIDENCE = 0.9
"""The confidence that `detectable_gain` is made for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many versions stand in the table and the chart, and how many of them have a section of their own."""

    rows: int = 160
    sections: int = 32

    def halved(self) -> Limits:
        return Limits(max(1, self.rows // 2), self.sections // 2)


def write_report(folder: RunFolder, target: Path) -> Path:
    """Write the page about a run to `target`, whole or not at all. Raises ContractBroken when the folder is no run."""
    data = render_page(read_story(folder)).encode("utf-8", "replace")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    partial.write_bytes(data)
    partial.replace(target)
    return target


def render_page(story: Story) -> str:
    """The page. Pure; a run too large for one page is told in fewer rows and sections, and the page says so."""
    limits = Limits()
    while True:
        page = _environment().get_template(TEMPLATE).render(_context(story, limits))
        if len(page.encode("utf-8", "replace")) <= MAX_BYTES or limits.sections == 0:
            return page
        limits = limits.halved()


def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words: dict[str, Callable[..., Any]] = {
        "number": wording.number,
        "signed": wording.signed,
        "count": wording.count,
        "share": wording.share,
        "duration": wording.duration,
        "filesize": wording.size,
        "when": wording.when,
        "clip": wording.clip,
        "short": wording.short,
        "reason_words": wording.reason_words,
        "icon": charts.icon,
        "css_class": charts.css_class,
    }
    found.filters.update(words)
    found.globals.update(change_bar=charts.change_bar, interval=interval_text, total=view.total)
    found.globals.update(axis=representation.axis, sample=representation.sample)
    return found


def _printable(value: object) -> object:
    """What the template prints: nothing for None, and no character that can't be seen."""
    if value is None:
        return wording.DASH
    return wording.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _context(story: Story, limits: Limits) -> dict[str, Any]:
    status, spec = story.evolution.status, story.evolution.spec
    rows = view.rows_of(story)
    shown = _shown(rows, status.first_champion, limits.rows)
    sections = _sections(story, rows, limits.sections)
    floors = view.floors_on(story, "sel")
    sealed = view.sealed_rows(story)
    end = status.completed_at
    return {
        "name": story.evolution.metadata.name,
        "uid": story.evolution.metadata.uid or "",
        "status": status,
        "phase": wording.PHASES[status.phase],
        "tone": _tone(status.phase),
        "reason": status.reason.value if status.reason else "",
        "ended": wording.is_end(status.phase),
        "last_change": view.last_change(story),
        "took": end - status.started_at if end and status.started_at else None,
        "spec": spec,
        "summary": _spec_lines(story),
        "cautions": _cautions(story, floors),
        "champion": next((r for r in rows if r.champion), None),
        "chart": charts.history_chart([r.point for r in shown], [(name, s.p) for name, s in floors]),
        "marks": [m for m in Mark if any(r.mark is m for r in rows)],
        "rows": shown,
        "rows_left_out": len(rows) - len(shown),
        "sections": sections,
        "sectioned": {s.row.number for s in sections},
        "sections_left_out": len(story.versions) - len(sections),
        "floors": floors,
        "sealed": sealed,
        "sealed_families": sorted({f for r in sealed for f in r.families})[:80],
        "difference": view.sealed_difference(story),
        "costs": view.costs_of(story),
        "ingest": story.ingest.summary if story.ingest and isinstance(story.ingest.summary, IngestSummary) else None,
        "leaks": leaks_of(story.leaked, [suite.name for suite in spec.evaluation.suites]),
        "corpus": story.corpus_profile,
        "corpus_success": success_share(story.corpus_profile),
        "corpus_families": top_families(story.corpus_profile)[:24],
        "number_of": view.number_of,
        "max_name": MAX_NAME,
    }


def _tone(phase: EvolutionPhase) -> str:
    """How the phase is coloured; it is said in words as well."""
    return {EvolutionPhase.COMPLETE: "good", EvolutionPhase.FAILED: "bad"}.get(phase, "open")


def _shown(rows: list[view.Row], first_champion: int | None, limit: int) -> list[view.Row]:
    """The champions, then the newest, in order: what fits."""
    ranked = sorted(
        rows,
        key=lambda r: (not r.champion, r.number != first_champion, r.mark is not Mark.COMMITTED, -r.number),
    )
    return sorted(ranked[:limit], key=lambda r: r.number)


def _sections(story: Story, rows: list[view.Row], limit: int) -> list[Section]:
    """Sections of the versions that fit, in order. Each has an equal share of the room for code, and what those before
    it, the champion and then the newest, left over."""
    by_number = {v.version.spec.number: v for v in story.versions}
    told = [r for r in rows if r.number in by_number]
    chosen = _shown(told, story.evolution.status.first_champion, limit)
    room, made = 0, []
    for row in sorted(chosen, key=lambda r: (not r.champion, -r.number)):
        room += MAX_CODE_CHARS // len(chosen)
        version = by_number[row.number]
        section = section_of(version, row, _before(story, version, by_number), story.corpus_profile, room)
        room -= code_chars(section)
        made.append(section)
    return sorted(made, key=lambda s: s.row.number)


def _before(story: Story, version: VersionStory, by_number: dict[int, VersionStory]) -> tuple[str, SplitScore | None]:
    """What a version's success by family is compared with: its parent, or the untrained base for version 0."""
    parent = version.version.spec.parent
    if parent is not None and parent in by_number:
        return f"parent v{parent}", by_number[parent].scores.get("sel")
    return "untrained", dict(view.floors_on(story, "sel")).get("untrained")


def _spec_lines(story: Story) -> list[tuple[str, str]]:
    """The spec in short: what is asked, and how it is judged."""
    spec = story.evolution.spec
    sources = [wording.short(f"{s.uri} ({s.format})", 160) for s in spec.corpus.sources[:MAX_CORPUS_SOURCES]]
    more = len(spec.corpus.sources) - len(sources)
    repeats, seed = spec.training.repeats, spec.training.seed
    rounds = f"{wording.plural(spec.rounds.max, 'round')} at most, ends after {spec.rounds.patience} without a commit"
    rounds += f" or at P {spec.rounds.goal:g}" if spec.rounds.goal is not None else ""
    seeds = f"{seed}" if repeats == 1 else f"{seed} to {seed + repeats - 1} (each version is trained {repeats} times)"
    memory = f"{spec.memory.k} notes per task by {spec.memory.retriever}" if spec.memory.enabled else "off"
    return [
        ("Corpus", "; ".join(sources) + (f"; and {more} more" if more > 0 else "")),
        ("Base model", wording.short(spec.model.base, 160)),
        ("Suites", ", ".join(s.name for s in spec.evaluation.suites)),
        ("Dev tasks", _splits(story)),
        ("Objective", f"J = P − {spec.objective.lambda_:g}·C, N_ref {_reference(story)}"),
        ("Acceptance", _rule(spec)),
        ("Rounds", f"{rounds}; focus: {', '.join(f.value for f in spec.rounds.focus)}"),
        (
            "Proposer",
            wording.short(
                spec.proposer.type.value + (f" ({spec.proposer.llm.model})" if spec.proposer.llm else ""), 160
            ),
        ),
        ("Training", _training(spec)),
        ("Training seeds", seeds),
        ("Evaluation", _evaluation(spec)),
        ("Memory", memory),
    ]


def _splits(story: Story) -> str:
    summary = story.ingest.summary if story.ingest else None
    if isinstance(summary, IngestSummary) and summary.dev_tasks:
        sizes = ", ".join(f"{name} {n:,}" for name, n in summary.dev_tasks.items())
    else:
        s = story.evolution.spec.evaluation.splits
        sizes = f"shares diag {s.diag:g}, sel {s.sel:g}, test {s.test:g}; not counted yet"
    return f"{sizes} (split seed {story.evolution.spec.evaluation.splits.seed})"


def _reference(story: Story) -> str:
    turns = story.evolution.spec.objective.reference_turns
    if turns is not None:
        return wording.plural(turns, "turn")
    summary = story.ingest.summary if story.ingest else None
    told = f" ({wording.plural(summary.turns, 'turn')})" if isinstance(summary, IngestSummary) else ""
    return f"the corpus{told}"


def _rule(spec: EvolutionSpec) -> str:
    a = spec.acceptance
    if a.rule is AcceptanceRule.PAPER:
        return "Paper: commit whenever J went up"
    margin = f"cheaper, and P not lower by more than {a.non_inferiority_margin:g}"
    return f"Paired bootstrap over tasks at one-sided {a.confidence:.0%}: J up, or for Efficiency {margin}"


def _evaluation(spec: EvolutionSpec) -> str:
    """At temperature 0 in process every repeat gives the same, and one is run."""
    temperature = spec.evaluation.sampling.temperature
    once = temperature == 0 and spec.serving.engine == "transformers"
    repeats = wording.plural(1 if once else spec.evaluation.repeats, "run")
    return f"{repeats} per task at temperature {temperature:g}, {spec.serving.engine}"


def _training(spec: EvolutionSpec) -> str:
    t = spec.training
    lora = f"LoRA r {t.sft.lora.r}" if t.sft.lora.enabled else "full fine-tuning"
    sft = f"SFT, {lora}, at most {wording.plural(t.sft.max_steps, 'step')}" if t.sft.enabled else "no SFT"
    grpo = f"GRPO, at most {wording.plural(t.grpo.max_steps, 'step')}" if t.grpo.enabled else "no GRPO"
    return f"{sft}; {grpo}; always from the base model"


def _cautions(story: Story, floors: list[tuple[str, SplitScore]]) -> list[str]:
    """What a reader must know before believing a number."""
    spec = story.evolution.spec
    out = []
    if spec.training.repeats == 1:
        out.append(
            "Training noise is not covered: each version was trained once, "
            "so that a verdict also holds the luck of one seed."
        )
    summary = story.ingest.summary if story.ingest else None
    sel = summary.dev_tasks.get("sel", 0) if isinstance(summary, IngestSummary) else 0
    if sel:
        gain = wording.number(detectable_gain(sel))
        out.append(
            f"With {wording.plural(sel, 'sel task')}, a gain in P of {gain} is seen one time in two "
            f"(at {BASE_CONFIDENCE:.0%} confidence, if 30 % of tasks change their outcome); "
            "smaller gains mostly go unseen."
        )
    if spec.acceptance.rule is AcceptanceRule.PAPER:
        out.append(
            "The rule is the paper's: J went up. "
            "About every second candidate that is no better would be committed by it."
        )
    if not spec.evaluation.floors:
        out.append("No floors were scored: what a do-nothing agent or the untrained base reaches is not known.")
    return out + _doubts(story, floors)


def _doubts(story: Story, floors: list[tuple[str, SplitScore]]) -> list[str]:
    """What speaks against this run's numbers."""
    champion, out = story.evolution.status.champion, []
    best = max(floors, key=lambda f: f[1].p, default=None)
    if best is not None and champion is not None and champion.p <= best[1].p:
        told = f"{wording.number(champion.p)} against {wording.number(best[1].p)} on sel"
        out.append(f"The champion is not better than the floor “{wording.short(best[0], MAX_NAME)}”: {told}.")
    measured = (v.version.status.measurement for v in story.versions)
    errors = sum(m.errors for m in measured if m is not None)
    if errors:
        are = "is" if errors == 1 else "are"
        told = wording.plural(errors, "measurement")
        out.append(f"{told} on sel ended in an error and {are} left out of P.")
    return out
