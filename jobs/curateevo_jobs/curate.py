"""The curate program: an untrusted policy in the sandbox, trusted steps around it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from curateevo.api.errors import PolicyRejected
from curateevo.api.stage import CurateParams, CurateSummary, Outcome
from curateevo.policy.exchange import CONTEXT, POLICY
from curateevo.policy.gate import Curated, OnStep, ask_twice, gate_settings, judge
from curateevo.policy.operators.items import Item
from curateevo.policy.recipe import Recipe
from curateevo.policy.sandbox import Answer
from curateevo.trajectories import corpus as layout
from curateevo.trajectories.model import JsonObject
from curateevo.trajectories.profile import profile_of
from curateevo.trajectories.representation import Kept, representation_of
from curateevo_jobs.agents.memory import Retriever, parse_item, query_of, with_notes
from curateevo_jobs.stage import StageResult, StageRun

SFT, RL, MEMORY, LINEAGE, REJECTION = (
    "sft.jsonl",
    "rl.jsonl",
    "memory.jsonl",
    "lineage.jsonl",
    "rejection.json",
)
VISIBLE = (layout.FEATURES, layout.TRAJECTORIES)
"""The corpus, as far as a policy may read it."""


def curate(run: StageRun, params: CurateParams) -> StageResult:
    """A policy that breaks its contract is a result: outcome Rejected, with the rule as the reason."""
    corpus = lay_out_corpus(run)
    context = run.inputs / CONTEXT
    on_step = _reporter(run)
    answers = ask_twice(
        run.inputs / POLICY,
        corpus,
        context=context if context.is_file() else None,
        settings=gate_settings(params.sandbox, params.seed),
        on_step=on_step,
    )
    return conclude(run, params, corpus, answers, on_step)


def conclude(
    run: StageRun, params: CurateParams, corpus: Path, answers: Iterable[Answer], on_step: OnStep | None = None
) -> StageResult:
    """The trusted half: judge what the policy answered and write its rows, or its refusal."""
    try:
        curated = judge(
            run.inputs / POLICY,
            corpus,
            answers,
            dev_prompts=json.loads((run.inputs / layout.DEV_PROMPTS).read_text(encoding="utf-8")),
            on_step=on_step or _reporter(run),
        )
    except PolicyRejected as error:
        _write(
            run.output / REJECTION,
            {"rule": error.rule, "message": error.message, "hint": error.hint, "line": error.line},
        )
        return StageResult(CurateSummary(), Outcome.REJECTED, error.rule, str(error))
    return _publish(run, params, curated, corpus)


def lay_out_corpus(run: StageRun) -> Path:
    """A folder with only what a policy may read, and the sealed states beside it for the trusted side."""
    folder = run.scratch / "corpus"
    folder.mkdir()
    for name in (*VISIBLE, layout.SEALED_TASKS):
        (folder / name).symlink_to(run.inputs / name)
    return folder


def _reporter(run: StageRun) -> OnStep:
    steps: list[str] = []

    def on_step(name: str) -> None:
        steps.append(name)
        run.progress.report(name, len(steps), 4)

    return on_step


def _publish(run: StageRun, params: CurateParams, curated: Curated, corpus: Path) -> StageResult:
    material = curated.material
    _write_lines(run.output / MEMORY, material.memory)
    retriever = None
    if params.memory.enabled and params.memory.in_training and material.memory:
        retriever = Retriever([parse_item(row) for row in material.memory], params.memory.k)
    for name, rows in ((SFT, material.sft), (RL, material.rl)):
        _write_lines(run.output / name, (_with_notes(row, retriever, params) for row in rows))
    _write_lines(run.output / LINEAGE, material.lineage)
    features = layout.read_features(corpus)
    kept = [item.row for item in curated.recipe.sft for _ in range(item.copies)]
    turns = [len(item.turns) for item in curated.recipe.sft for _ in range(item.copies)]
    frame = features[kept].with_columns(pl.Series("turns", turns, dtype=pl.Int32))
    sft, rl = _represented(curated.recipe, features)
    _write(run.output / layout.PROFILE, {**profile_of(frame), "representation": representation_of(features, sft, rl)})
    _write(run.output / "notes.json", {"log": curated.recipe.logs, "metrics": curated.recipe.metrics})
    (run.output / "printed.txt").write_text(curated.run.printed, encoding="utf-8")
    return StageResult(
        CurateSummary(
            sft_rows=len(material.sft),
            sft_turns=material.sft_turns,
            rl_tasks=len(material.rl),
            rl_turns=material.rl_turns,
            memory_items=len(material.memory),
            tier=curated.run.tier,
        ),
        volatile=frozenset({"printed.txt"}),
    )


def _represented(recipe: Recipe, features: pl.DataFrame) -> tuple[list[Kept], list[Kept]]:
    """The SFT rows and the RL tasks as the report on representation counts them."""
    called, tools = features["turn_tools"].to_list(), features["tools"].to_list()

    def called_by(item: Item) -> frozenset[str]:
        return frozenset(name for turn in item.turns for name in called[item.row][turn].split(">") if name)

    sft = [Kept(item.row, called_by(item), item.copies) for item in recipe.sft]
    return sft, [Kept(task.row, frozenset(tools[task.row])) for task in recipe.rl]


def _with_notes(row: JsonObject, retriever: Retriever | None, params: CurateParams) -> JsonObject:
    if retriever is None:
        return row
    notes = retriever.notes(query_of(row["messages"]))
    return {**row, "messages": with_notes(row["messages"], notes, params.memory.place)}


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1), encoding="utf-8")


def _write_lines(path: Path, rows: Iterable[JsonObject]) -> None:
    with path.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")
