"""A model in this process, asked in batches. The only module of `agents` that imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList
from transformers.utils import logging

from curateevo_jobs.agents.chat import Answer, Conversation, Generation, parse_text

BATCH = 80
"""Conversations per call of `generate`, at most."""
ATTENTION_BYTES = 512 << 20
"""Attention scores of one layer per call, at most: padded prompts take rows * heads * length^2 * 4 bytes on a CPU."""
CACHE_SHARE = 0.5
"""Of a GPU's free memory, for the keys and values of one call."""

Fits: TypeAlias = Callable[[int, int], bool]
"""Whether so many prompts, the longest of so many tokens, fit into memory at once."""


class SeededNoise(LogitsProcessor):  # type: ignore[misc]
    """Sampling by the Gumbel trick: the largest of logits / T + noise is a draw from softmax(logits / T).

    Each row has a generator of its own, so a row's draw does not depend on what else is in the batch.
    """

    def __init__(self, temperature: float, seeds: Sequence[int]) -> None:
        self._temperature = temperature
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        uniform = torch.stack([torch.rand(scores.shape[1], generator=g) for g in self._generators])
        noise = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))
        return scores.float() / self._temperature + noise.to(scores.device)


class InProcess:
    """A transformers model and its tokenizer as a ChatModel."""

    concurrency = 0

    def __init__(
        self, model: Any, tokenizer: Any, batch: int = BATCH, template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """`template_kwargs`: what the chat template is told beside the conversation."""
        self._model = model
        self._template_kwargs = dict(template_kwargs or {})
        self._tokenizer = tokenizer
        self._batch = batch
        self._context = int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 30))
        self._ends = _end_tokens(model, tokenizer)

    def answer(
        self, conversations: Sequence[Conversation], generation: Generation, seeds: Sequence[int]
    ) -> Sequence[Answer]:
        prompts = [self._render(c) for c in conversations]
        answers = [Answer(context_full=True)] * len(prompts)
        fitting = [i for i, ids in enumerate(prompts) if len(ids) < self._context]
        was_training = self._model.training
        self._model.eval()
        for rows in batches(fitting, [len(ids) for ids in prompts], self._batch, self._fits(generation.max_tokens)):
            outputs = self._generate([prompts[i] for i in rows], generation, [seeds[i] for i in rows])
            for i, ids in zip(rows, outputs, strict=True):
                answers[i] = self._parse(ids, min(generation.max_tokens, self._context - len(prompts[i])))
        self._model.train(was_training)
        return answers

    def _fits(self, max_tokens: int) -> Fits:
        config = self._model.config.get_text_config()
        heads = int(getattr(config, "num_attention_heads", 1))
        if self._model.device.type == "cpu":
            return lambda count, longest: count * heads * longest**2 * 4 <= ATTENTION_BYTES
        size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        kept = 2 * config.num_hidden_layers * int(getattr(config, "num_key_value_heads", heads)) * size
        room = torch.cuda.mem_get_info()[0] * CACHE_SHARE / (kept * self._model.dtype.itemsize)
        return lambda count, longest: count * (longest + max_tokens) <= room

    def _render(self, conversation: Conversation) -> list[int]:
        ids: list[int] = self._tokenizer.apply_chat_template(
            list(conversation.messages),
            tools=list(conversation.tools) or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **self._template_kwargs,
        )["input_ids"]
        return ids

    @torch.no_grad()
    def _generate(self, prompts: Sequence[list[int]], generation: Generation, seeds: Sequence[int]) -> list[list[int]]:
        """Generated token ids, padding included. Prompts are padded on the left."""
        longest = max(map(len, prompts))
        pad = self._tokenizer.pad_token_id
        pad = self._ends[0] if pad is None else pad
        device = self._model.device
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
        noise = [SeededNoise(generation.temperature, seeds)] if generation.temperature > 0 else []
        output = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=min(generation.max_tokens, self._context - min(map(len, prompts))),
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            eos_token_id=self._ends,
            pad_token_id=pad,
            logits_processor=LogitsProcessorList(noise),
        )
        generated: list[list[int]] = output[:, longest:].tolist()
        return generated

    def _parse(self, ids: list[int], limit: int) -> Answer:
        """The answer in `ids`, up to the first end token, which counts, and at most `limit` tokens."""
        kept = ids[:limit]
        for i, token in enumerate(kept):
            if token in self._ends:
                return parse_text(self._tokenizer.decode(kept[:i]), i + 1)
        return parse_text(self._tokenizer.decode(kept), len(kept))


def batches(rows: Sequence[int], lengths: Sequence[int], most: int, fits: Fits) -> Iterator[list[int]]:
    """`rows` in order, cut so that no batch has more than `most` or does not fit; at least one row each."""
    batch: list[int] = []
    for row in rows:
        longest = max(lengths[i] for i in [*batch, row])
        if batch and (len(batch) == most or not fits(len(batch) + 1, longest)):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _end_tokens(model: Any, tokenizer: Any) -> list[int]:
    declared = model.generation_config.eos_token_id
    ends = declared if isinstance(declared, list) else [declared]
    return sorted({int(t) for t in [*ends, tokenizer.eos_token_id] if t is not None})


def load(folder: Path, chat_template: str | None = None, template_kwargs: Mapping[str, Any] | None = None) -> InProcess:
    """The model in `folder`, on a GPU when there is one. On a CPU one thread is used: more spin here."""
    logging.disable_progress_bar()
    gpu = torch.cuda.is_available()
    if not gpu:
        torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto" if gpu else torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return InProcess(model.to("cuda") if gpu else model, tokenizer, template_kwargs=template_kwargs)
