"""SFT: the base model learns to answer as the curated conversations do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback
from trl import SFTTrainer

from curateevo_jobs.training.fit import TokenRow
from curateevo_jobs.training.lane import Lane
from curateevo_jobs.training.options import sft_config
from curateevo_jobs.training.processes import run_phase
from curateevo_jobs.training.weights import (
    load_model,
    load_tokenizer,
    lora_config,
)

PHASE = "sft"


def train_sft(lane: Lane, rows: Sequence[TokenRow], max_length: int) -> Path:
    """The phase, as `run_phase` runs it. Raises NotReleased for a loss that is not finite."""
    return run_phase(lane, PHASE, partial(_build_trainer, rows=as_dataset(rows), max_length=max_length), lane.base)


def as_dataset(rows: Sequence[TokenRow]) -> Dataset:
    """Rows as TRL takes what is tokenized already."""
    return Dataset.from_dict({"input_ids": [r.tokens for r in rows], "assistant_masks": [r.mask for r in rows]})


def _build_trainer(lane: Lane, rows: Dataset, max_length: int) -> Any:
    training = lane.params.training
    trainer = SFTTrainer(
        model=load_model(lane.base, training.sft.lora, lane.base),
        args=sft_config(training.sft, lane.phase(PHASE).root, lane.seed, training.save_steps, max_length),
        train_dataset=rows,
        processing_class=load_tokenizer(lane.base, lane.params.model.chat_template),
        peft_config=lora_config(training.sft.lora),
        callbacks=lane.callbacks(PHASE),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
