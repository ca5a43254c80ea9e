"""Models and tokenizers: loaded for training, saved as one thing that evaluation and vLLM load alike."""

from __future__ import annotations

import gc
import os
import random
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from curateevo.api.spec import Lora
from curateevo_jobs.training.fit import training_template


def prepare_torch() -> None:
    """Make training repeat bit for bit, where the machine can: one thread on a CPU, deterministic kernels."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()


def seed_everything(seed: int) -> None:
    """Seed all generators: equal seeds give equal trainings, whatever ran before in this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def free_memory() -> None:
    """Give back what a trainer held: its references are cyclic, and the next model needs the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def load_tokenizer(folder: Path, chat_template: str | None) -> Any:
    """The tokenizer in `folder`, with `chat_template` in place of its own when there is one."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(folder: Path, lora: Lora, base: Path) -> Any:
    """The model in `folder`, for training: float32, but in the base's number type under LoRA on a GPU.

    It is loaded onto this process's GPU, where there is one, without a copy in the machine's memory.
    """
    free_memory()
    if not torch.cuda.is_available():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    dtype = number_type(base) if lora.enabled else torch.float32
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map={"": torch.cuda.current_device()})


def number_type(folder: Path) -> torch.dtype:
    """What the weights in `folder` are stored in."""
    found: torch.dtype = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", device_map="meta").dtype
    return found


def lora_config(lora: Lora) -> LoraConfig | None:
    """PEFT's configuration: all linear layers."""
    if not lora.enabled:
        return None
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def save(model: Any, folder: Path, *, start: Path, base: Path, chat_template: str | None, adapter: Path) -> None:
    """Save full weights in float32, and the base's tokenizer with the chat template in force: where TRL has one of its
    own for training, that one, so that a prompt is the same text in training and behind a server.

    An adapter is saved to `adapter`, and merged into the weights in `start`, which it was trained on. In float32: what
    a short training at a low rate changes can be less than half of bfloat16's last bit, and phase by phase it would be
    rounded away. What is published is rounded once (`publish`).
    """
    if isinstance(model, PeftModel):
        model.save_pretrained(adapter)
        whole = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
        model = PeftModel.from_pretrained(whole, adapter).merge_and_unload()
    model.to(torch.float32).save_pretrained(folder)
    tokenizer = load_tokenizer(base, chat_template)
    tokenizer.chat_template = training_template(tokenizer) or tokenizer.chat_template
    tokenizer.save_pretrained(folder)


def publish(model: Path, folder: Path, base: Path) -> None:
    """Put the model in `model` into `folder`, in the base's number type."""
    dtype = number_type(base)
    same = number_type(model) is dtype
    left_out = ("adapter", "complete.json*", *(() if same else ("*.safetensors*", "*config.json")))
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns(*left_out), copy_function=link_or_copy)
    if not same:
        AutoModelForCausalLM.from_pretrained(model, dtype=dtype).save_pretrained(folder)


def link_or_copy(source: str, target: str) -> str:
    """A large model once on the disk, where one file system holds both."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)
    return target
