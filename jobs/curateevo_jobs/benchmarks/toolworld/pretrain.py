"""Makes the base model in `base/`: a tokenizer, and a 0.7M-parameter Qwen3 trained from scratch in one run.

`python -m curateevo_jobs.benchmarks.toolworld pretrain OUT` repeats it: about a quarter of an hour on one
core. What it is trained on is in `pretraining.py`.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from curateevo_jobs.benchmarks.toolworld import pretraining, pretraining_words
from curateevo_jobs.benchmarks.toolworld.pretraining import Lesson, LessonKind
from curateevo_jobs.benchmarks.toolworld.values import NUMBER_ARGUMENTS, WORDS_BY_ARGUMENT

_log = logging.getLogger(__name__)

TEMPLATE = Path(__file__).parent / "template.jinja"
CONTEXT_TOKENS = 32768
LESSON_TOKENS = 352
IGNORED = -100

STEPS = 1400
BATCH_SIZE = 24
LEARNING_RATE = 2e-3
WARMUP_STEPS = 50

PUNCTUATION = ('{"', '":', ' "', '",', '"}', '"}}', "}}", ' {"', " {", "():", "),")
CONTROL_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
ROLES = ("system", "user", "assistant", "name", "arguments")


def words() -> list[str]:
    """Every word that is one token: values, argument names, and the pretraining text's own words."""
    stock = {word for drawn in WORDS_BY_ARGUMENT.values() for word in drawn}
    stock |= {*WORDS_BY_ARGUMENT, *NUMBER_ARGUMENTS, *map(str, range(100)), *ROLES}
    stock |= {*pretraining_words.FILLERS, *pretraining_words.NONSENSE, *pretraining_words.RESULT_WORDS}
    stock |= {word for drawn in pretraining_words.STRANGERS.values() for word in drawn}
    for verbs, nouns in pretraining_words.NAME_FAMILIES:
        stock |= {*verbs, *nouns, *(f"_{noun}" for noun in nouns)}
    return sorted(stock)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer in which listed words are one token and everything else falls apart into bytes.

    A word is the same token wherever it stands: spaces are tokens of their own, so that a value in a request
    is the very token that the arguments need. A tool's name is two tokens, the second with the underscore.
    """
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    for text in [*PUNCTUATION, *words()]:
        token = "".join(piece for piece, _ in byte_level.pre_tokenize_str(text))
        if token not in tokens:
            tokens.append(token)
    model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[], ignore_merges=True)
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(r"\d{1,2}|_?[A-Za-z]+|_| ?[^\sA-Za-z_\d]+|\s"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        model_max_length=CONTEXT_TOKENS,
    )
    wrapped.add_tokens([AddedToken(token, special=False, normalized=False) for token in CONTROL_TOKENS])
    wrapped.chat_template = TEMPLATE.read_text()
    return wrapped


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained model. A head of 32 is the smallest that vLLM's CPU attention takes."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=-(-len(tokenizer) // 64) * 64,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT_TOKENS,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def encode(lesson: Lesson, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Token ids and labels of a lesson, cut at `LESSON_TOKENS`; what isn't learnt is `IGNORED`."""
    ids: list[int] = []
    labels: list[int] = []
    for piece in lesson.pieces:
        tokens = tokenizer(piece.text)["input_ids"]
        ids += tokens
        labels += tokens if piece.learnt else [IGNORED] * len(tokens)
    return ids[:LESSON_TOKENS], labels[:LESSON_TOKENS]


def collate(encoded: Sequence[tuple[list[int], list[int]]], pad: int) -> dict[str, torch.Tensor]:
    """A right-padded batch."""
    longest = max(len(ids) for ids, _ in encoded)
    return {
        "input_ids": torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in encoded]),
        "labels": torch.tensor([labels + [IGNORED] * (longest - len(labels)) for _, labels in encoded]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in encoded]),
    }


def pretrain(out: Path, *, steps: int = STEPS, seed: int = 0) -> None:
    """Train and save the base model, logging the accuracy on the training batches by kind of lesson."""
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    _check_rendering(tokenizer)
    model = build_model(tokenizer)
    model.train()
    _log.info("%d parameters, %d tokens", model.num_parameters(), len(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    hits: dict[LessonKind, list[torch.Tensor]] = defaultdict(list)
    started = time.monotonic()
    for step, batch in enumerate(pretraining.lessons(seed, steps, BATCH_SIZE), start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        loss = _train_on(model, optimizer, tokenizer, batch, hits)
        if step % 50 == 0:
            shares = {kind.value: round(torch.cat(seen).float().mean().item(), 3) for kind, seen in hits.items()}
            _log.info("%d loss %.3f %s %.0fs", step, loss, shares, time.monotonic() - started)
            hits.clear()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then linearly down to a twentieth."""
    return LEARNING_RATE * min(step / WARMUP_STEPS, 1) * max(0.05, 1 - step / steps)


def _train_on(
    model: Qwen3ForCausalLM,
    optimizer: torch.optim.Optimizer,
    tokenizer: PreTrainedTokenizerFast,
    batch: Sequence[Lesson],
    hits: dict[LessonKind, list[torch.Tensor]],
) -> float:
    """One step; adds whether each learnt token was predicted to `hits`, and returns the loss."""
    tensors = collate([encode(lesson, tokenizer) for lesson in batch], tokenizer.pad_token_id)
    labels = tensors.pop("labels")[:, 1:]
    logits = model(**tensors).logits[:, :-1]
    learnt = labels != IGNORED
    loss = F.cross_entropy(logits[learnt], labels[learnt])
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    right = logits.detach().argmax(-1) == labels
    for lesson, row, mask in zip(batch, right, learnt, strict=True):
        hits[lesson.kind].append(row[mask])
    return float(loss.item())


def _check_rendering(tokenizer: PreTrainedTokenizerFast) -> None:
    """Raise ValueError if the pretraining text isn't what the chat template would make of it."""
    for messages, tools, lesson in _samples():
        templated = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        if templated.rstrip("\n") != lesson.text:
            raise ValueError(f"the template says\n{templated}\nthe pretraining text\n{lesson.text}")


def _samples() -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]], Lesson]]:
    """A conversation with every kind of message, as OpenAI messages and as a lesson."""
    tool = pretraining.MadeUpTool("move_table", {"city": "Milan", "quantity": 7})
    messages = [
        pretraining.Message("system", "notes:\nMilan code amber"),
        pretraining.Message("user", "move zib Milan 7."),
        pretraining.Message("assistant", "", tool),
        pretraining.Message("tool", "ok"),
        pretraining.Message("assistant", "Done."),
    ]
    yield (
        [_openai(message) for message in messages],
        [_schema(tool)],
        Lesson(LessonKind.CONVERSATION, pretraining.render(messages, [tool])),
    )


def _openai(message: pretraining.Message) -> dict[str, Any]:
    if message.call is None:
        return {"role": message.role, "content": message.content}
    function = {"name": message.call.name, "arguments": json.dumps(message.call.arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def _schema(tool: pretraining.MadeUpTool) -> dict[str, Any]:
    properties: dict[str, Any] = {argument: {} for argument in tool.arguments}
    return {"type": "function", "function": {"name": tool.name, "parameters": {"properties": properties}}}
