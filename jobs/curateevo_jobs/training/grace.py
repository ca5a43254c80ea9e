"""The signals that GRACE compares (`curateevo.trajectories.grace`): one forward pass for each trajectory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM

from curateevo.api.errors import ContractBroken
from curateevo.trajectories.grace import Signals
from curateevo.trajectories.model import Trajectory
from curateevo_jobs.training.fit import answer_spans, tokenize
from curateevo_jobs.training.rows import SftRow
from curateevo_jobs.training.weights import load_tokenizer, prepare_torch

CHUNK = 512
"""Tokens whose logits are held at a time: a vocabulary is large."""


class TurnSignals:
    """A base model and its tokenizer, asked for what each turn would have it learn."""

    def __init__(self, folder: Path, chat_template: str | None) -> None:
        prepare_torch()
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype: Any = "auto" if torch.cuda.is_available() else torch.float32
        self._tokenizer = load_tokenizer(folder, chat_template)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(self._device).eval()
        self._context = int(getattr(self._model.config.get_text_config(), "max_position_embeddings", 1 << 30))
        self._head = self._model.get_output_embeddings()
        self.width = int(self._head.weight.shape[1])

    def of(self, trajectory: Trajectory) -> Signals | None:
        """One unit vector per turn: the mean over the tokens that the assistant speaks of the loss's gradient at the
        last hidden state, W^T (softmax(logits) - one-hot(token)), W being the output embeddings.

        None where the trajectory is longer than the model's context, the chat template refuses it, or does not mark
        one span for each turn. Raises SpecInvalid where the template marks nothing at all and TRL knows no other.
        """
        row = SftRow(trajectory.id, "", tuple(trajectory.messages()), trajectory.tools)
        try:
            (tokens,) = tokenize([row], self._tokenizer)
        except (ContractBroken, TemplateError):
            return None
        spans = answer_spans(tokens.mask)
        if len(spans) != len(trajectory.turns) or len(tokens.tokens) > self._context or spans[0][0] == 0:
            return None
        with torch.inference_mode():
            ids = torch.tensor([tokens.tokens], device=self._device)
            hidden = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
            return np.stack([self._signal(hidden[start - 1 : end - 1], ids[0, start:end]) for start, end in spans])

    def _signal(self, hidden: torch.Tensor, spoken: torch.Tensor) -> Signals:
        total = torch.zeros(self.width, device=self._device)
        for states, tokens in zip(torch.split(hidden, CHUNK), torch.split(spoken, CHUNK), strict=True):
            upstream = self._head(states).float().softmax(-1)
            upstream[torch.arange(len(tokens), device=self._device), tokens] -= 1
            total += (upstream.sum(0).to(self._head.weight.dtype) @ self._head.weight).float()
        found: Signals = (total / total.norm().clamp_min(torch.finfo(torch.float32).tiny)).cpu().numpy()
        return found
