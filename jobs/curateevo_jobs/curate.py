"""The curate program: an untrusted policy in the sandbox, trusted steps around it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import polars as pl

from curateevo.api.errors import PolicyRejected
from curateevo.api.stage import CurateParams, CurateSummary, Outcome
from curateevo.evolution.pods import REWRITE_KEY_VARIABLE
from curateevo.evolver.proposal import COVERED
from curateevo.policy.exchange import CONTEXT, POLICY
from curateevo.policy.gate import (
    Curated,
    OnStep,
    agree,
    ask_twice,
    called_by,
    check_rewrites,
    gate_settings,
    read_policy,
    write_rows,
)
from curateevo.policy.recipe import Recipe, encode_answers
from curateevo.policy.sandbox import SandboxRun
from curateevo.store.connect import connect
from curateevo.trajectories import corpus as layout
from curateevo.trajectories.features import FEATURES
from curateevo.trajectories.leakage import LeakIndex
from curateevo.trajectories.model import JsonObject
from curateevo.trajectories.profile import profile_of
from curateevo.trajectories.representation import Kept, representation_of
from curateevo_jobs.agents.memory import Retriever, parse_item, query_of, with_notes
from curateevo_jobs.rewriting import Fulfilled, Fulfiller
from curateevo_jobs.stage import StageResult, StageRun

SFT, RL, MEMORY, LINEAGE, REJECTION, REWRITES = (
    "sft.jsonl",
    "rl.jsonl",
    "memory.jsonl",
    "lineage.jsonl",
    "rejection.json",
    "rewrites.jsonl",
)
PROFILED = tuple(name for name in FEATURES if name not in ("minhash", "turn_calls", "turn_errors"))
"""The features that the profile and the report on representation read."""
VISIBLE = (layout.FEATURES, layout.TRAJECTORIES)
"""The corpus, as far as a policy may read it."""
STEPS_OF_ONE_PASS, STEPS_OF_TWO_PASSES = 4, 7


def curate(run: StageRun, params: CurateParams) -> StageResult:
    """A policy that breaks its contract is a result: outcome Rejected, with the rule as the reason."""
    corpus, on_step = lay_out_corpus(run), _reporter(run, params)

    def ask(context: Path) -> SandboxRun:
        answers = ask_twice(
            run.inputs / POLICY,
            corpus,
            context=context if context.is_file() else None,
            settings=gate_settings(params.sandbox, params.seed),
            on_step=on_step,
        )
        return agree(run.inputs / POLICY, corpus, answers, on_step=on_step)

    try:
        first = ask(run.inputs / CONTEXT)
        fulfilled = fulfil_requests(run, params, corpus, first.recipe)
    except PolicyRejected as error:
        return _refused(run, error, Fulfilled())
    if fulfilled is None:
        return conclude(run, params, corpus, lambda: first, on_step=on_step)
    second = run.scratch / CONTEXT
    write_second_context(run.inputs / CONTEXT, fulfilled, second)
    return conclude(run, params, corpus, lambda: ask(second), fulfilled, on_step)


def fulfil_requests(run: StageRun, params: CurateParams, corpus: Path, recipe: Recipe) -> Fulfilled | None:
    """What became of the rewrites that the first pass requests; None where it requests none, or may not.

    Raises PolicyRejected where it requests too many, and what `Fulfiller.fulfil` raises.
    """
    if params.augmentation is None or not recipe.requests:
        return None
    check_rewrites(recipe, {}, read_policy(run.inputs / POLICY))
    fulfiller = Fulfiller(
        params.augmentation,
        connect(run.request.store),
        f"{run.request.evolution_uid}/{run.request.version}",
        LeakIndex(_dev_prompts(run)),
        api_key=os.environ.get(REWRITE_KEY_VARIABLE, ""),
    )
    texts = layout.read_trajectories(corpus, {request.row for request in recipe.requests})
    return fulfiller.fulfil(recipe.requests, texts, lambda done, total: run.progress.report("rewriting", done, total))


def write_second_context(first: Path, fulfilled: Fulfilled, second: Path) -> None:
    """What the policy may know in its second pass: as in the first, if there was a file, and the answers."""
    facts = json.loads(first.read_text(encoding="utf-8")) if first.is_file() else {}
    texts = {request: answer.text for request, answer in fulfilled.answers.items()}
    second.write_text(json.dumps({**facts, "rewritten": encode_answers(texts)}), encoding="utf-8")


def conclude(
    run: StageRun,
    params: CurateParams,
    corpus: Path,
    agreed: Callable[[], SandboxRun],
    fulfilled: Fulfilled | None = None,
    on_step: OnStep | None = None,
) -> StageResult:
    """The trusted half: judge what the policy answered last and write its rows, or its refusal. `agreed` raises
    PolicyRejected for answers that can't be taken."""
    answered = fulfilled or Fulfilled()
    try:
        curated = write_rows(
            run.inputs / POLICY,
            corpus,
            agreed(),
            dev_prompts=_dev_prompts(run),
            covered=_covered_by_champion(run),
            rewritten=None if params.augmentation is None else answered.answers,
            on_step=on_step or _reporter(run, params),
        )
    except PolicyRejected as error:
        return _refused(run, error, answered)
    return _publish(run, params, curated, corpus, fulfilled)


def _refused(run: StageRun, error: PolicyRejected, fulfilled: Fulfilled) -> StageResult:
    _write(
        run.output / REJECTION,
        {"rule": error.rule, "message": error.message, "hint": error.hint, "line": error.line},
    )
    return _counted(StageResult(CurateSummary(), Outcome.REJECTED, error.rule, str(error)), fulfilled)


def _counted(result: StageResult, fulfilled: Fulfilled) -> StageResult:
    """The result with what rewriting cost."""
    return replace(result, tokens=fulfilled.tokens, usd=fulfilled.usd, calls=fulfilled.calls, cache=fulfilled.is_final)


def _covered_by_champion(run: StageRun) -> list[str]:
    """What `propose` has told of the champion's data; nothing for version 0, which follows none."""
    context = run.inputs / CONTEXT
    covered: list[str] = json.loads(context.read_text(encoding="utf-8")).get(COVERED, []) if context.is_file() else []
    return covered


def _dev_prompts(run: StageRun) -> dict[str, str]:
    prompts: dict[str, str] = json.loads((run.inputs / layout.DEV_PROMPTS).read_text(encoding="utf-8"))
    return prompts


def lay_out_corpus(run: StageRun) -> Path:
    """A folder with only what a policy may read, and the sealed states beside it for the trusted side."""
    folder = run.scratch / "corpus"
    folder.mkdir()
    for name in (*VISIBLE, layout.SEALED_TASKS):
        (folder / name).symlink_to(run.inputs / name)
    return folder


def _reporter(run: StageRun, params: CurateParams) -> OnStep:
    steps: list[str] = []
    total = STEPS_OF_ONE_PASS if params.augmentation is None else STEPS_OF_TWO_PASSES

    def on_step(name: str) -> None:
        steps.append(name)
        run.progress.report(name, len(steps), total)

    return on_step


def _publish(
    run: StageRun, params: CurateParams, curated: Curated, corpus: Path, fulfilled: Fulfilled | None
) -> StageResult:
    material = curated.material
    _write_lines(run.output / MEMORY, material.memory)
    retriever = None
    if params.memory.enabled and params.memory.in_training and material.memory:
        retriever = Retriever([parse_item(row) for row in material.memory], params.memory.k)
    for name, rows in ((SFT, material.sft), (RL, material.rl)):
        _write_lines(run.output / name, (_with_notes(row, retriever, params) for row in rows))
    _write_lines(run.output / LINEAGE, material.lineage)
    features = layout.read_features(corpus, PROFILED)
    kept = [item.row for item in curated.recipe.sft for _ in range(item.copies)]
    turns = [len(item.turns) for item in curated.recipe.sft for _ in range(item.copies)]
    frame = features[kept].with_columns(pl.Series("turns", turns, dtype=pl.Int32))
    sft, rl = _represented(curated.recipe, features)
    profile = {**profile_of(frame), "representation": representation_of(features, sft, rl)}
    profile[COVERED] = sorted(curated.covered)
    if fulfilled is not None:
        profile["augmentation"] = fulfilled.counts()
        ids = features["id"]
        _write_lines(run.output / REWRITES, ({"trajectory": ids[row["row"]], **row} for row in fulfilled.to_rows()))
    _write(run.output / layout.PROFILE, profile)
    _write(run.output / "notes.json", {"log": curated.recipe.logs, "metrics": curated.recipe.metrics})
    (run.output / "printed.txt").write_text(curated.run.printed, encoding="utf-8")
    result = StageResult(
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
    return _counted(result, fulfilled or Fulfilled())


def _represented(recipe: Recipe, features: pl.DataFrame) -> tuple[list[Kept], list[Kept]]:
    """The SFT rows and the RL tasks as the report on representation counts them."""
    rows = sorted({item.row for item in recipe.sft} | {task.row for task in recipe.rl})
    some = features.select("turn_tools", "tools")[rows]
    called = dict(zip(rows, some["turn_tools"].to_list(), strict=True))
    tools = dict(zip(rows, map(frozenset, some["tools"].to_list()), strict=True))
    sft = [Kept(item.row, called_by(item, called), item.copies) for item in recipe.sft]
    return sft, [Kept(task.row, tools[task.row]) for task in recipe.rl]


def _with_notes(row: JsonObject, retriever: Retriever | None, params: CurateParams) -> JsonObject:
    if retriever is None:
        return row
    notes = retriever.notes(query_of(row["messages"]))
    return {**row, "messages": with_notes(row["messages"], notes, params.memory.place)}


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1), encoding="utf-8")


def _write_lines(path: Path, rows: Iterable[JsonObject]) -> None:
    """Keys stay in their order: a chat template shows tools as they are."""
    with path.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
