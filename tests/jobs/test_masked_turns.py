"""A masked turn, from the policy to the loss: it is shown, and nothing is learnt of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.errors import ContractBroken
from curateevo.policy.builtin import source_of
from curateevo.policy.gate import curate_with_gate
from curateevo.trajectories.corpus import FEATURES, write_trajectories
from curateevo.trajectories.features import features_of
from curateevo.trajectories.formats.openai import parse_openai
from curateevo_jobs.training import gate
from curateevo_jobs.training.rows import SftRow, read_sft
from tests.jobs import test_train_support as support

KEEP = "def refine(items, ctx):\n    return items"
MASK = "def refine(items, ctx):\n    return api.mask_failed_turns(items)"


def recovery() -> dict[str, Any]:
    """A run that fails once, recovers and answers."""

    def call(number: int, arguments: str) -> dict[str, Any]:
        made = {"id": f"c{number}", "type": "function", "function": {"name": "buy_item", "arguments": arguments}}
        return {"role": "assistant", "content": "", "tool_calls": [made]}

    def result(number: int, text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": f"c{number}", "name": "buy_item", "content": text}

    return {
        "id": "run",
        "messages": [
            {"role": "user", "content": "buy a lamp"},
            call(0, '{"item": "lump"}'),
            result(0, "error: no such item lump"),
            call(1, '{"item": "lamp"}'),
            result(1, "ok"),
            {"role": "assistant", "content": "Done."},
        ],
        "tools": [
            {"type": "function", "function": {"name": "buy_item", "parameters": {"type": "object", "properties": {}}}}
        ],
        "success": True,
    }


@pytest.fixture
def rows(tmp_path: Path) -> list[SftRow]:
    """What curation writes and training reads, of a policy that masks failures."""
    made = [parse_openai(recovery(), "x:1")]
    write_trajectories(made, tmp_path)
    features_of(made).write_parquet(tmp_path / FEATURES)
    policy = tmp_path / "policy.py"
    policy.write_text(source_of("keep-all").replace(KEEP, MASK))
    curated = curate_with_gate(policy, tmp_path, dev_prompts={})
    [entry] = [e for e in curated.material.lineage if e["resource"] == "sft"]
    assert (entry["turns"], entry["masked"], entry["operators"]) == ([0, 1, 2], [0], ["mask_failed_turns"])
    (tmp_path / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curated.material.sft))
    return read_sft(tmp_path / "sft.jsonl")


def test_a_masked_turn_is_context_of_the_row_that_training_reads(rows: list[SftRow]) -> None:
    [row] = rows
    assert row.masked == {0} and "lump" in json.dumps(row.messages)
    assert gate._prompt_of(row) is None, "the release gate would ask for an answer that is not learnt"


@pytest.mark.parametrize("masked", [[3], [-1], ["0"], [True], {}])
def test_a_mask_that_names_no_answer_is_refused(masked: Any, tmp_path: Path) -> None:
    row = {"id": "r", "family": "f", "messages": recovery()["messages"], "tools": [], "masked": masked}
    (tmp_path / "sft.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ContractBroken, match="masked"):
        read_sft(tmp_path / "sft.jsonl")


@pytest.mark.train
@pytest.mark.parametrize("assistant_only", [True, False])
def test_a_masked_turns_tokens_carry_no_loss(rows: list[SftRow], assistant_only: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from curateevo_jobs.training import fit
    from curateevo_jobs.training.lane import Lane
    from curateevo_jobs.training.metrics import MetricsLog
    from curateevo_jobs.training.sft import _build_trainer, as_dataset

    base = support.make_tiny_base(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokens = fit.tokenize(rows, tokenizer, assistant_only=assistant_only)
    params = support.train_params(base, sft_args={"assistant_only_loss": assistant_only})
    run = support.make_run(tmp_path / "run", params)
    lane = Lane(run, params, base, 0, MetricsLog(tmp_path / "metrics.jsonl"))
    [example] = list(_build_trainer(lane, as_dataset(tokens), 1024).train_dataset)
    shown = tokenizer.decode(example["input_ids"])
    learnt = tokenizer.decode([t for t in example["labels"] if t != -100])
    assert shown.count("lump") == 2
    if assistant_only:
        assert "lump" not in learnt
    else:
        assert learnt.count("lump") == 1 and "error: no such item lump" in learnt and '{"item": "lump"}' not in learnt
    assert '{"item": "lamp"}' in learnt and "Done." in learnt


@pytest.mark.train
def test_a_template_that_marks_answers_in_parts_is_refused_where_turns_are_masked(
    rows: list[SftRow], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    from curateevo_jobs.training import fit

    tokenizer = AutoTokenizer.from_pretrained(support.make_tiny_base(tmp_path / "base"))
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{- '<|im_end|>' }}\n{%- endgeneration %}",
        "{%- endgeneration %}{{- '|' }}{%- generation %}{{- '<|im_end|>' }}{%- endgeneration %}",
        1,
    )
    with pytest.raises(ContractBroken, match="6 spans for 3 answers"):
        fit.tokenize(rows, tokenizer)
