"""The train program: SFT, then GRPO, always from the base model; then the release gate.

Whatever is done is kept in the checkpoints' folder, so that an attempt after a crash goes on where the last
one was, with bit for bit the same weights (on one kind of machine).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from curateevo.api.base import canonical_json
from curateevo.api.errors import ContractBroken
from curateevo.api.stage import Outcome, TrainParams, TrainSummary
from curateevo_jobs.agents.chat import Generation
from curateevo_jobs.agents.episode import Rules
from curateevo_jobs.agents.hardware import count_gpus
from curateevo_jobs.agents.identity import digest_model
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.base import Suite
from curateevo_jobs.stage import StageResult, StageRun
from curateevo_jobs.training import gate
from curateevo_jobs.training.base_model import find_base
from curateevo_jobs.training.libraries import LIBRARIES, require_libraries
from curateevo_jobs.training.rows import RlRow, SftRow, read_rl, read_sft

NO_RL_ROWS = "there are no RL rows"
DISABLED = "training.grpo.enabled is false"
OpenSuite: TypeAlias = Callable[[str, Path], Suite]
ANSWER_TOKENS = 256
"""Generated tokens per answer when the gate asks a model, at most."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is trained on, measured against the model's context."""

    sft: Sequence[SftRow]
    rl: Sequence[RlRow]
    tokens: Sequence[Any]
    """SFT rows as token ids (fit.TokenRow)."""
    max_length: int
    max_completion: int
    longest_prompt: int


@dataclass(frozen=True, slots=True)
class Released:
    """One training's end."""

    model: Path
    phase: str
    """base, sft or grpo."""
    adapters: Mapping[str, Path]
    sft_steps: int
    grpo_steps: int
    finding: gate.Finding
    notes: tuple[str, ...]


def train(run: StageRun, params: TrainParams, open_suite: OpenSuite = registry.suite) -> StageResult:
    """Train `params.training.repeats` models.

    Rejected, with a reason: `row-fits-context` or `ReleaseGate`. Raises ContractBroken for rows or a base
    model that can't be used, SpecInvalid for arguments that TRL does not have, Denied where TRL is not installed.
    """
    require_libraries("training")
    from curateevo_jobs.training.weights import prepare_torch

    started = time.monotonic()
    prepare_torch()
    _check_args(params)
    _claim_checkpoints(run)
    base = find_base(params.model, endpoint=run.request.store.endpoint, downloads=run.scratch)
    rows = _measure_rows(run, params, base)
    seeds = tuple(params.training.seed + i for i in range(params.training.repeats))
    if isinstance(rows, str):
        from curateevo_jobs.training.fit import RULE

        return StageResult(TrainSummary(seeds=seeds), Outcome.REJECTED, RULE, rows)
    skipped = "" if rows.rl and params.training.grpo.enabled else NO_RL_ROWS
    skipped = skipped if params.training.grpo.enabled else DISABLED
    suites = {name: open_suite(name, run.inputs) for name in sorted({r.suite for r in rows.rl if r.suite})}
    released: list[Released] = []
    try:
        for index in range(params.training.repeats):
            released.append(_train_one(run, params, base, index, rows, suites))
    except gate.NotReleased as refusal:
        volatile = _publish_metrics(run)
        summary = TrainSummary(seeds=seeds, grpo_skipped=skipped)
        return StageResult(
            summary, Outcome.REJECTED, gate.REASON, str(refusal), volatile, gpu_seconds=_gpu_seconds(started)
        )
    for index, one in enumerate(released):
        _publish_model(run.output, index, one, base)
    summary = _summarise(seeds, skipped, released)
    _write_facts(run.output / "training.json", params, rows, summary, released)
    return StageResult(summary, volatile=_publish_metrics(run), gpu_seconds=_gpu_seconds(started))


def _gpu_seconds(started: float) -> float:
    return count_gpus() * (time.monotonic() - started)


def _check_args(params: TrainParams) -> None:
    from curateevo_jobs.training.options import check_args

    check_args("sft", params.training.sft.args)
    check_args("grpo", params.training.grpo.args)


def _claim_checkpoints(run: StageRun) -> None:
    """Clear checkpoints that belong to other inputs."""
    owner = run.checkpoints.folder / "inputs.json"
    mine = canonical_json({"inputDigest": run.request.input_digest})
    if owner.is_file() and owner.read_text() == mine:
        return
    for path in run.checkpoints.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    owner.write_text(mine)


def _measure_rows(run: StageRun, params: TrainParams, base: Path) -> Rows | str:
    """The rows, tokenized; or why one does not fit."""
    from transformers import AutoConfig

    from curateevo_jobs.training import fit
    from curateevo_jobs.training.weights import load_tokenizer

    training = params.training
    sft = read_sft(run.inputs / "sft.jsonl") if training.sft.enabled else []
    if training.sft.enabled and not sft:
        raise ContractBroken("sft.jsonl holds no rows", "a policy must route rows to SFT, or disable training.sft")
    rl = read_rl(run.inputs / "rl.jsonl") if training.grpo.enabled else []
    tokenizer = load_tokenizer(base, params.model.chat_template)
    context = int(
        getattr(AutoConfig.from_pretrained(base).get_text_config(), "max_position_embeddings", 0)
        or fit.DEFAULT_MAX_LENGTH
    )
    max_length = training.sft.args.get("max_length", fit.DEFAULT_MAX_LENGTH)
    max_length = context if max_length is None else min(int(max_length), context)
    tokens = fit.tokenize(sft, tokenizer, assistant_only=training.sft.args.get("assistant_only_loss", True))
    if misfit := fit.find_sft_misfit(sft, tokens, max_length, tokenizer):
        return misfit.message
    prompts = [fit.prompt_tokens(row, tokenizer) for row in rl]
    room = int(training.grpo.args.get("max_completion_length") or fit.LEAST_COMPLETION)
    if misfit := fit.find_rl_misfit(rl, prompts, context - room, tokenizer):
        return misfit.message
    longest = max(prompts, default=0)
    return Rows(sft, rl, tokens, max_length, min(ANSWER_TOKENS, context - longest), longest)


def _train_one(
    run: StageRun, params: TrainParams, base: Path, index: int, rows: Rows, suites: Mapping[str, Suite]
) -> Released:
    """One training from the base model to the released one. Raises NotReleased."""
    from curateevo_jobs.training.lane import Lane
    from curateevo_jobs.training.sft import train_sft

    training = params.training
    lane = Lane(run, params, base, index, suites)
    model, phase, adapters, call_rate = base, "base", {}, None
    if training.sft.enabled:
        model, phase = train_sft(lane, rows.tokens, rows.max_length), "sft"
        adapters = _adapter("sft", model)
        call_rate = gate.measure_call_rate(_load(model, params), rows.sft, answer_tokens(params))
        gate.require_calls(call_rate, training.gate)
    sft_steps = training.sft.max_steps if training.sft.enabled else 0
    if not rows.rl:
        return Released(model, phase, adapters, sft_steps, 0, gate.Finding(call_rate), ())
    from curateevo_jobs.training.grpo import dead_group_fraction, plan_legs, train_leg

    legs = plan_legs(rows.rl, training.grpo.max_steps)
    trained, grpo_adapters = model, adapters
    for leg in legs:
        trained = train_leg(lane, leg, trained, rows.max_completion)
        grpo_adapters = {**grpo_adapters, **_adapter(leg.phase, trained)}
    before, after = (_measure_families(path, rows.rl, suites, params) for path in (model, trained))
    finding = gate.Finding(call_rate, dead_group_fraction(lane), before, after)
    grpo_steps = sum(leg.steps for leg in legs)
    reasons = gate.reasons_against_grpo(finding, training.gate)
    if reasons:
        notes = tuple(f"seed {lane.seed}: {phase} is released, not grpo: {reason}" for reason in reasons)
        return Released(model, phase, adapters, sft_steps, grpo_steps, finding, notes)
    return Released(trained, "grpo", grpo_adapters, sft_steps, grpo_steps, finding, ())


def _adapter(phase: str, model: Path) -> dict[str, Path]:
    adapter = model / "adapter"
    return {phase: adapter} if adapter.is_dir() else {}


def _load(model: Path, params: TrainParams) -> Any:
    """A model as the gate asks it: with what GRPO tells the chat template, thinking or not for instance."""
    from curateevo_jobs.agents import inprocess
    from curateevo_jobs.training.weights import free_memory

    free_memory()
    return inprocess.load(model, template_kwargs=params.training.grpo.args.get("chat_template_kwargs"))


def _measure_families(
    model: Path, rows: Sequence[RlRow], suites: Mapping[str, Suite], params: TrainParams
) -> dict[str, float]:
    from curateevo_jobs.training.grpo import turns_at

    grpo = params.training.grpo
    rules = Rules(Generation(0.0, answer_tokens(params)), turns_at(grpo, grpo.max_steps) + 1)
    return gate.measure_families(_load(model, params), gate.sample_families(rows), suites, rules)


def answer_tokens(params: TrainParams) -> int:
    """Tokens per answer that the gate lets a model generate: no more than GRPO lets it."""
    return min(ANSWER_TOKENS, int(params.training.grpo.args.get("max_completion_length") or ANSWER_TOKENS))


def _publish_model(output: Path, index: int, one: Released, base: Path) -> None:
    """model-<index>/ holds full weights; adapter-<index>/<phase>/ the adapters that were merged."""
    from curateevo_jobs.training.weights import link_or_copy, publish

    publish(one.model, output / f"model-{index}", base)
    for phase, adapter in one.adapters.items():
        shutil.copytree(adapter, output / f"adapter-{index}" / phase, copy_function=link_or_copy)


def _publish_metrics(run: StageRun) -> frozenset[str]:
    """Copy the metrics, and name them: they hold times."""
    paths = sorted(run.checkpoints.folder.glob("metrics-*.jsonl"))
    run.output.mkdir(parents=True, exist_ok=True)
    for path in paths:
        shutil.copy(path, run.output / path.name)
    return frozenset(path.name for path in paths)


def _summarise(seeds: tuple[int, ...], skipped: str, released: Sequence[Released]) -> TrainSummary:
    phases = [one.phase for one in released]
    return TrainSummary(
        seeds=seeds,
        sft_steps=sum(one.sft_steps for one in released),
        grpo_steps=sum(one.grpo_steps for one in released),
        grpo_skipped=skipped,
        released="grpo" if set(phases) == {"grpo"} else min(phases, key=("base", "sft", "grpo").index),
        notes=tuple(note for one in released for note in one.notes),
    )


def _write_facts(
    path: Path, params: TrainParams, rows: Rows, summary: TrainSummary, released: Sequence[Released]
) -> None:
    """`training.json`: what was done, without times."""
    facts = {
        "libraries": {name: version(name) for name in LIBRARIES},
        "base": params.model.base,
        "rows": {"sft": len(rows.sft), "rl": len(rows.rl)},
        "longestSftRowTokens": max((len(t.tokens) for t in rows.tokens), default=0),
        "longestRlPromptTokens": rows.longest_prompt,
        "maxLength": rows.max_length,
        "summary": summary.to_wire(),
        "models": [
            {
                "seed": seed,
                "released": one.phase,
                "digest": f"sha256:{digest_model(path.parent / f'model-{index}')}",
                "callRate": one.finding.call_rate,
                "deadGroupFraction": one.finding.dead_group_fraction,
                "familySuccessBefore": one.finding.family_before,
                "familySuccessAfter": one.finding.family_after,
            }
            for index, (seed, one) in enumerate(zip(summary.seeds, released, strict=True))
        ],
    }
    path.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
