"""GRPO: the SFT model explores tasks and is drawn to what earns more than its group.

Rewards of one kind at a time: next actions first (`action_match`), then whole episodes (`environment`),
each a phase of its own that starts from the weights of the one before. Steps are shared out by the number
of rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import add_response_schema, qwen3_template

from curateevo.api.spec import Grpo
from curateevo_jobs.training.environments import Stage, build_stages, stage_name
from curateevo_jobs.training.lane import Lane
from curateevo_jobs.training.options import grpo_config
from curateevo_jobs.training.processes import run_phase
from curateevo_jobs.training.rewards import REWARDS
from curateevo_jobs.training.rows import RewardKind, RlRow
from curateevo_jobs.training.weights import (
    load_model,
    load_tokenizer,
    lora_config,
)

ORDER = (RewardKind.ACTION_MATCH, RewardKind.ENVIRONMENT)
TOOL_ITERATIONS = 10
"""Rounds of tool calls in a rollout, at most, unless `args` says otherwise."""
HORIZON = "horizon"
"""The metric of the limit of turns, where it grows."""
DEAD_GROUPS = "frac_reward_zero_std"
"""TRL's metric of the share of groups without reward variance."""


@dataclass(frozen=True, slots=True)
class Leg:
    """The part of GRPO with one kind of reward."""

    kind: RewardKind
    rows: tuple[RlRow, ...]
    steps: int

    @property
    def phase(self) -> str:
        return f"grpo-{self.kind.value}"


def plan_legs(rows: Sequence[RlRow], max_steps: int) -> list[Leg]:
    """Share `max_steps` out over the kinds of reward by their rows, a step at least to each."""
    by_kind = {kind: tuple(r for r in rows if r.reward is kind) for kind in ORDER}
    present = [kind for kind in ORDER if by_kind[kind]]
    if len(present) < 2:
        return [Leg(kind, by_kind[kind], max_steps) for kind in present]
    first = round(max_steps * len(by_kind[present[0]]) / len(rows))
    first = min(max(first, 1), max(max_steps - 1, 1))
    steps = (first, max_steps - first)
    return [Leg(kind, by_kind[kind], n) for kind, n in zip(present, steps, strict=True) if n > 0]


def turns_at(grpo: Grpo, step: int) -> int:
    """Rounds of tool calls in a rollout, at most, after `step` steps in environments."""
    if not grpo.horizon:
        return int(grpo.args.get("max_tool_calling_iterations") or TOOL_ITERATIONS)
    phases = sorted(grpo.horizon, key=lambda phase: phase.from_step)
    return next((p.max_turns for p in reversed(phases) if p.from_step <= step), phases[0].max_turns)


def schedule(rows: Sequence[RlRow], count: int, replay_fraction: float, seed: int) -> list[RlRow]:
    """`count` prompts in training order: a `replay_fraction` of rows that were not aimed at, evenly spread.

    Each of the two pools is shuffled by `seed` and read round and round. Where one is empty, the other fills
    in.
    """
    aimed, replayed = ([r for r in rows if r.aimed is side] for side in (True, False))
    share = replay_fraction if aimed and replayed else float(not aimed)
    draw_aimed, draw_replayed = _round_and_round(aimed, seed), _round_and_round(replayed, seed + 1)
    is_replay = (int((n + 1) * share) > int(n * share) for n in range(count))
    return [next(draw_replayed if replay else draw_aimed) for replay in is_replay]


def _round_and_round(rows: Iterable[RlRow], seed: int) -> Iterator[RlRow]:
    pool = sorted(rows, key=lambda r: r.id)
    random = Random(seed)
    while pool:
        random.shuffle(pool)
        yield from pool


def train_leg(lane: Lane, leg: Leg, start: Path, max_completion: int) -> Path:
    """One leg from the weights in `start`, as `run_phase` runs it. Raises NotReleased for a loss that is not finite."""
    build = partial(_build_trainer, leg=leg, start=start, max_completion=max_completion)
    return run_phase(lane, leg.phase, build, start)


def dead_group_fraction(lane: Lane) -> float | None:
    """Share of all GRPO groups of this training that taught nothing."""
    shares = [row[DEAD_GROUPS] for row in lane.metrics.rows() if row.get(DEAD_GROUPS) is not None]
    return sum(shares) / len(shares) if shares else None


class ScheduledTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer that shows the suites' own tool schemas, not ones made from Python signatures.

    So a prompt is the same text in SFT, GRPO and evaluation. `_env_tools` is TRL's: see the pin in pyproject.
    """

    def __init__(self, stages: dict[str, Stage], turns: Callable[[int], int] | None, **arguments: Any) -> None:
        factories = {name: stage.factory for name, stage in stages.items()}
        super().__init__(environment_factory=factories, **arguments)
        self._env_tools = {name: list(stage.schemas) for name, stage in stages.items()}
        self._turns = turns
        """The limit of turns, where it grows. It hangs on the steps done alone, so that what is resumed is the same."""

    def _tool_call_loop(self, *arguments: Any, **more: Any) -> Any:
        """TRL's loop, but a tool that does not exist is the environment's to answer, as in evaluation."""
        self._sync_tool_dicts = [AnyTool(world) for world in self.environments]
        if self._turns is not None:
            self.max_tool_calling_iterations = self._turns(self.state.global_step)
            self._metrics["train"][HORIZON].append(self.max_tool_calling_iterations)
        return super()._tool_call_loop(*arguments, **more)


class AnyTool(Mapping[str, Callable[..., str]]):
    """One rollout's tools, under any name: what the world does not know it answers with an error text."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __getitem__(self, name: str) -> Callable[..., str]:
        world = self._environment._world
        return lambda **arguments: str(world.call(name, arguments))

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _build_trainer(lane: Lane, leg: Leg, start: Path, max_completion: int) -> Any:
    grpo, lora = lane.params.training.grpo, lane.params.training.sft.lora
    config = leg_config(lane, leg, lane.phase(leg.phase).root, max_completion)
    tokenizer = load_tokenizer(start, None)
    tokenizer.padding_side = "left"
    prompts = schedule(leg.rows, count_prompts(config), grpo.replay_fraction, lane.seed)
    grows = bool(grpo.horizon) and leg.kind is RewardKind.ENVIRONMENT
    trainer = ScheduledTrainer(
        stages=build_stages(leg.rows, dict(lane.suites)),
        turns=partial(turns_at, grpo) if grows else None,
        model=load_model(start, lora, lane.base),
        args=config,
        reward_funcs=REWARDS[leg.kind],
        train_dataset=_dataset(prompts),
        processing_class=_with_response_template(tokenizer),
        peft_config=lora_config(lora),
        callbacks=lane.callbacks(leg.phase),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def leg_config(lane: Lane, leg: Leg, folder: Path, max_completion: int) -> GRPOConfig:
    """The trainer's arguments. Checkpoints are only made where a new generation begins: TRL forgets the
    buffered rest of one, and what was resumed would differ.
    """
    training = lane.params.training
    defaults: dict[str, Any] = {"max_completion_length": max_completion}
    defaults["max_tool_calling_iterations"] = TOOL_ITERATIONS

    def build(save_steps: int) -> GRPOConfig:
        return grpo_config(training.grpo, folder, lane.seed, save_steps, leg.steps, defaults)

    config = build(training.save_steps)
    if leg.kind is RewardKind.ACTION_MATCH:
        config.max_tool_calling_iterations = 0
    every = steps_per_buffer(config)
    config.save_steps = ceil(training.save_steps / every) * every
    return config


def steps_per_buffer(config: GRPOConfig) -> int:
    """Optimizer steps that one generation serves."""
    uses = int(config.steps_per_generation * config.num_iterations)
    return ceil(uses / int(config.gradient_accumulation_steps))


def count_prompts(config: GRPOConfig) -> int:
    """Prompts that `max_steps` steps use."""
    generations = ceil(config.max_steps / steps_per_buffer(config)) + 1
    return int(generations * (config.generation_batch_size // config.num_generations))


def _with_response_template(tokenizer: Any) -> Any:
    """A tokenizer whose tool calls TRL can read; with a template that TRL does not know, in Hermes format."""
    try:
        return add_response_schema(tokenizer)
    except ValueError:
        tokenizer.response_template = qwen3_template
        return tokenizer


def _dataset(rows: Sequence[RlRow]) -> Dataset:
    """Rows as TRL takes them. Kept as text and parsed on reading: Arrow would add null fields to messages."""
    texts = [
        json.dumps(
            {
                "prompt": list(row.messages),
                "environment": stage_name(row),
                "state": row.state,
                "reference": json.dumps(list(row.reference)),
            }
        )
        for row in rows
    ]

    def parse(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        parsed = [json.loads(text) for text in batch["row"]]
        return {key: [row[key] for row in parsed] for key in ("prompt", "environment", "state", "reference")}

    return Dataset.from_dict({"row": texts}).with_transform(parse)
