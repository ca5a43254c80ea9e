"""The arguments of TRL's trainers: defaults for this machine, the user's `args`, and what the stage owns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch
from trl import GRPOConfig, SFTConfig

from curateevo.api.errors import SpecInvalid
from curateevo.api.spec import Grpo, Sft

# fmt: off
OWNED_BY_STAGE = frozenset((
    "output_dir", "seed", "data_seed", "save_strategy", "save_steps", "save_total_limit",
    "save_only_model", "resume_from_checkpoint", "logging_steps", "logging_strategy",
    "logging_first_step", "logging_nan_inf_filter", "report_to", "disable_tqdm",
    "remove_unused_columns", "num_train_epochs", "eval_strategy", "do_eval", "do_train", "do_predict",
    "load_best_model_at_end", "push_to_hub", "hub_model_id", "hub_token", "hub_strategy",
    "hub_private_repo", "model_init_kwargs", "chat_template_path", "use_cpu",
))
# fmt: on
SPEC_FIELDS = {
    "sft": {"max_steps": "maxSteps", "learning_rate": "learningRate", "lora": "lora"},
    "grpo": {
        "max_steps": "maxSteps",
        "learning_rate": "learningRate",
        "beta": "beta",
        "epsilon": "epsilon",
        "shuffle_dataset": "replayFraction",
        "reward_weights": "replayFraction",
    },
}
"""Arguments that the spec has a field of its own for."""
SHARDED = frozenset(("fsdp", "fsdp_config", "deepspeed", "parallelism_config"))
"""Arguments that part one model among GPUs, which the train stage can't save."""
KEPT_CHECKPOINTS = 2


def sft_config(sft: Sft, folder: Path, seed: int, save_steps: int, max_length: int) -> SFTConfig:
    """The arguments of one SFT. `max_length` is used unless `args` has one. Raises SpecInvalid."""
    chosen: dict[str, Any] = {"max_length": max_length, **sft.args}
    chosen.pop("assistant_only_loss", None)  # applied when the rows are tokenized
    return _build("sft", SFTConfig, sft.args, {**chosen, **_stage_arguments(sft, folder, seed, save_steps)})


def grpo_config(
    grpo: Grpo, folder: Path, seed: int, save_steps: int, max_steps: int, defaults: Mapping[str, Any]
) -> GRPOConfig:
    """The arguments of one GRPO phase of `max_steps` steps. Raises SpecInvalid."""
    owned = _stage_arguments(grpo, folder, seed, save_steps)
    owned |= {"max_steps": max_steps, "beta": grpo.beta, "epsilon": grpo.epsilon, "shuffle_dataset": False}
    return _build("grpo", GRPOConfig, grpo.args, {**defaults, **grpo.args, **owned})


def check_args(phase: Literal["sft", "grpo"], args: Mapping[str, Any]) -> None:
    """Raise SpecInvalid for an argument that TRL does not know or that the stage or the spec owns."""
    known = {f.name for f in fields(SFTConfig if phase == "sft" else GRPOConfig)}
    problems = []
    for name in sorted(args):
        where = f"training.{phase}.args.{name}"
        if name in SPEC_FIELDS[phase]:
            problems.append(f"{where}: set training.{phase}.{SPEC_FIELDS[phase][name]} instead")
        elif name in OWNED_BY_STAGE:
            problems.append(f"{where}: the train stage sets this itself")
        elif name in SHARDED:
            problems.append(
                f"{where}: every GPU holds the whole model; use LoRA or gradient_checkpointing to make it fit"
            )
        elif name not in known:
            near = get_close_matches(name, known - OWNED_BY_STAGE - SHARDED, n=3)
            problems.append(f"{where}: not known" + (f"; near: {', '.join(near)}" if near else ""))
    if problems:
        raise SpecInvalid("\n".join(problems), f"arguments are the fields of TRL's {phase.upper()}Config")


def _build(phase: Literal["sft", "grpo"], config: type, args: Mapping[str, Any], chosen: Mapping[str, Any]) -> Any:
    check_args(phase, args)
    try:
        return config(**{**_machine_defaults(), **chosen})
    except (TypeError, ValueError) as error:
        raise SpecInvalid(f"training.{phase}.args: {error}") from error


def _stage_arguments(section: Sft | Grpo, folder: Path, seed: int, save_steps: int) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "seed": seed,
        "data_seed": seed,
        "max_steps": section.max_steps,
        "learning_rate": section.learning_rate,
        "save_strategy": "steps",
        "save_steps": save_steps,
        "save_total_limit": KEPT_CHECKPOINTS,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
    }


def _machine_defaults() -> dict[str, Any]:
    if torch.cuda.is_available():
        return {"bf16": True}
    return {"bf16": False, "dataloader_pin_memory": False, "gradient_checkpointing": False}
