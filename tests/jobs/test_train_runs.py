"""Real training of a tiny model: what comes out, what is refused, and what a SIGKILL costs."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo.api.spec import Horizon, Lora, ReleaseGate
from curateevo.api.stage import Outcome, TrainSummary
from tests.jobs import test_train_support as support

pytestmark = pytest.mark.train


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Imported before the first fork, so that no child has to.
    import curateevo_jobs.training.grpo
    import curateevo_jobs.training.sft  # noqa: F401

    return support.make_tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def undisturbed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> support.Ended:
    """SFT and GRPO from beginning to end."""
    root = tmp_path_factory.mktemp("undisturbed")
    return support.train_apart(root, support.train_params(base), support.sft_rows(), support.letter_rows())


def test_a_model_metrics_and_facts_come_out(undisturbed: support.Ended) -> None:
    assert undisturbed.result is not None
    summary = undisturbed.result.summary
    assert isinstance(summary, TrainSummary)
    assert (summary.sft_steps, summary.grpo_steps, summary.released) == (8, 4, "grpo")
    assert undisturbed.result.outcome is Outcome.OK
    assert undisturbed.result.volatile == {"metrics-0.jsonl"}
    names = {p.name for p in (undisturbed.run.output / "model-0").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert not any("complete" in name or name == "adapter" for name in names)
    facts = json.loads((undisturbed.run.output / "training.json").read_text())
    assert facts["models"][0]["callRate"] == 0.0
    assert "seconds" not in json.dumps(facts)


def test_every_step_is_reported_and_measured_once(undisturbed: support.Ended) -> None:
    rows = support.read_rows(undisturbed.run.output / "metrics-0.jsonl")
    steps = [(row["phase"], row["step"]) for row in rows]
    assert steps == [*(("sft", n) for n in range(1, 9)), *(("grpo-environment", n) for n in range(1, 5))]
    assert any(row["reward_std"] > 0 for row in rows if "reward_std" in row), "GRPO has something to learn"
    assert all({"loss", "grad_norm", "learning_rate", "seconds"} <= row.keys() for row in rows)
    assert [e for e in undisturbed.events if e[0] == "sft"] == [("sft", n) for n in range(1, 9)]


def test_killed_in_sft_and_again_in_grpo_the_weights_are_the_same(
    undisturbed: support.Ended, base: Path, tmp_path: Path
) -> None:
    params, sft, rl = support.train_params(base), support.sft_rows(), support.letter_rows()
    first = support.train_apart(tmp_path, params, sft, rl, kill_at=("sft", 5))
    assert first.exit_code == -signal.SIGKILL
    # What a kill in the middle of a save leaves behind, and one that lost bytes on its way.
    half = tmp_path / "checkpoints/sft-0/checkpoint-6"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    second = support.train_apart(tmp_path, params, sft, rl, kill_at=("grpo", 3))
    assert second.exit_code == -signal.SIGKILL
    third = support.train_apart(tmp_path, params, sft, rl)
    assert third.result is not None
    assert not [e for e in third.events if e[0] == "sft"], "a finished phase is not run again"
    ours = (third.run.output / "model-0/model.safetensors").read_bytes()
    assert ours == (undisturbed.run.output / "model-0/model.safetensors").read_bytes()
    assert (third.run.output / "training.json").read_text() == (undisturbed.run.output / "training.json").read_text()
    steps = [(r["phase"], r["step"]) for r in support.read_rows(third.run.output / "metrics-0.jsonl")]
    assert steps == sorted(set(steps), key=steps.index)
    assert len(steps) == 12


def test_a_polite_end_costs_no_step(undisturbed: support.Ended, base: Path, tmp_path: Path) -> None:
    params, sft, rl = support.train_params(base), support.sft_rows(), support.letter_rows()
    first = support.train_apart(tmp_path, params, sft, rl, kill_at=("sft", 5), by=signal.SIGTERM)
    assert first.exit_code == 128 + signal.SIGTERM
    second = support.train_apart(tmp_path, params, sft, rl, kill_at=("grpo", 2), by=signal.SIGTERM)  # told in step 3
    assert second.exit_code == 128 + signal.SIGTERM
    third = support.train_apart(tmp_path, params, sft, rl)
    assert third.result is not None
    assert [e for e in third.events if e[0] == "grpo"] == [("grpo", 4)], "three steps were kept"
    ours = (third.run.output / "model-0/model.safetensors").read_bytes()
    assert ours == (undisturbed.run.output / "model-0/model.safetensors").read_bytes()


def test_without_rl_rows_grpo_is_skipped_and_lora_is_merged(base: Path, tmp_path: Path) -> None:
    params = support.train_params(base, lora=Lora(r=4, alpha=8, dropout=0.0), sft_steps=2, repeats=2)
    ended = support.train_apart(tmp_path, params, support.sft_rows())
    assert ended.result is not None
    summary = ended.result.summary
    assert isinstance(summary, TrainSummary)
    assert (summary.released, summary.grpo_steps, summary.seeds) == ("sft", 0, (0, 1))
    assert "no RL rows" in summary.grpo_skipped
    models = [ended.run.output / f"model-{i}/model.safetensors" for i in (0, 1)]
    from safetensors import safe_open

    with safe_open(models[0], "pt") as merged, safe_open(base / "model.safetensors", "pt") as plain:
        assert set(merged.keys()) == set(plain.keys())
    assert models[0].read_bytes() != models[1].read_bytes(), "each seed trains a model of its own"
    assert_merged(base, ended.run.output / "adapter-0/sft", ended.run.output / "model-0")


def test_what_a_phase_changed_is_rounded_once_for_a_base_in_bfloat16(base: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rounded = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(rounded)
    AutoTokenizer.from_pretrained(base).save_pretrained(rounded)
    params = support.train_params(rounded, sft_steps=2, grpo_steps=2, lora=Lora(r=4, alpha=8, dropout=0.0))
    ended = support.train_apart(tmp_path / "run", params, support.sft_rows(), support.letter_rows())
    assert ended.result is not None
    phases = [load_file(tmp_path / f"run/checkpoints/{name}-0/finished/model.safetensors")
              for name in ("sft", "grpo-environment")]  # fmt: skip
    published = load_file(ended.run.output / "model-0/model.safetensors")
    assert {t.dtype for phase in phases for t in phase.values()} == {torch.float32}
    assert {t.dtype for t in published.values()} == {torch.bfloat16}
    assert all(torch.equal(published[name], tensor.to(torch.bfloat16)) for name, tensor in phases[1].items())
    assert any(not torch.equal(phases[0][name], tensor) for name, tensor in phases[1].items())
    config = json.loads((ended.run.output / "model-0/config.json").read_text())
    assert config["dtype"] == "bfloat16" and (ended.run.output / "model-0/tokenizer.json").is_file()


def assert_merged(base: Path, adapter: Path, model: Path) -> None:
    """The model computes what the base with the adapter computes, and not what the base does."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    plain, merged = (AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (base, model))
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        before, after = plain(ids).logits, merged(ids).logits
        adapted = PeftModel.from_pretrained(plain, adapter).eval()(ids).logits
    torch.testing.assert_close(after, adapted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before, after, rtol=1e-4, atol=1e-5)


def test_rows_with_a_reference_call_train_before_those_with_an_environment(base: Path, tmp_path: Path) -> None:
    rl = [*support.rl_rows(4), *support.match_rows(4)]
    lora = Lora(r=4, alpha=8, dropout=0.0)
    params = support.train_params(base, sft_steps=2, grpo_steps=2, lora=lora)
    ended = support.train_apart(tmp_path, params, support.sft_rows(), rl)
    assert ended.result is not None
    phases = [row["phase"] for row in support.read_rows(ended.run.output / "metrics-0.jsonl")]
    assert phases == ["sft", "sft", "grpo-action_match", "grpo-environment"]
    adapters = {p.name for p in (ended.run.output / "adapter-0").iterdir()}
    assert adapters == {"sft", "grpo-action_match", "grpo-environment"}


def test_a_model_that_calls_nothing_is_not_released(base: Path, tmp_path: Path) -> None:
    params = support.train_params(base, sft_steps=2, gate=ReleaseGate(min_call_rate=0.05))
    ended = support.train_apart(tmp_path, params, support.sft_rows(), support.rl_rows())
    assert ended.result is not None
    assert (ended.result.outcome, ended.result.reason) == (Outcome.REJECTED, "ReleaseGate")
    assert "minCallRate" in ended.result.message
    assert [p.name for p in ended.run.output.iterdir()] == ["metrics-0.jsonl"]


def test_a_loss_that_is_not_finite_is_not_released(base: Path, tmp_path: Path) -> None:
    params = support.train_params(base, sft_args={"max_grad_norm": 0.0, "optim": "sgd", "weight_decay": 0.0})
    params = params.model_copy(
        update={
            "training": params.training.model_copy(
                update={"sft": params.training.sft.model_copy(update={"learning_rate": 1e30})}
            )
        }
    )
    ended = support.train_apart(tmp_path, params, support.sft_rows())
    assert ended.result is not None
    assert (ended.result.outcome, ended.result.reason) == (Outcome.REJECTED, "ReleaseGate")
    assert "at step" in ended.result.message


def test_groups_without_variance_release_the_sft_model(base: Path, tmp_path: Path) -> None:
    gate = ReleaseGate(min_call_rate=0.0, max_dead_group_fraction=0.5)
    params = support.train_params(base, sft_steps=2, grpo_steps=1, gate=gate)
    rl = [row for row in support.rl_rows() if row["family"] != "chat"]
    ended = support.train_apart(tmp_path, params, support.sft_rows(), rl)
    assert ended.result is not None
    summary = ended.result.summary
    assert isinstance(summary, TrainSummary)
    assert summary.released == "sft"
    assert "no reward variance" in summary.notes[0]
    from curateevo_jobs.agents.identity import digest_model

    facts = json.loads((ended.run.output / "training.json").read_text())
    assert facts["models"][0]["digest"] == f"sha256:{digest_model(ended.run.output / 'model-0')}"


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_row_that_does_not_fit_is_named_before_anything_is_trained(kind: str, base: Path, tmp_path: Path) -> None:
    from curateevo_jobs.train import train

    sft, rl = support.sft_rows(4), support.rl_rows(4)
    long = (sft if kind == "sft" else rl)[2]
    long["messages"][0]["content"] += " and so on" * 200
    params = support.train_params(base)
    run = support.make_run(tmp_path, params)
    support.write_rows(run.inputs / "sft.jsonl", sft)
    support.write_rows(run.inputs / "rl.jsonl", rl)
    result = train(run, params)
    assert (result.outcome, result.reason) == (Outcome.REJECTED, "row-fits-context")
    assert long["id"] in result.message
    assert "tokens" in result.message
    assert not list(run.checkpoints.folder.glob("*-0"))


def test_a_window_smaller_than_the_tools_is_said_to_be(base: Path, tmp_path: Path) -> None:
    from curateevo_jobs.train import train

    params = support.train_params(base, sft_args={"max_length": 64})
    run = support.make_run(tmp_path, params)
    support.write_rows(run.inputs / "sft.jsonl", support.sft_rows(4))
    result = train(run, params)
    assert "4 rows in all" in result.message
    assert "tools alone take" in result.message


def test_arguments_that_can_not_be_are_refused_together(base: Path, tmp_path: Path) -> None:
    from curateevo_jobs.train import train

    args = {"per_device_train_batchsize": 4, "output_dir": "x", "learning_rate": 1.0}
    params = support.train_params(base, sft_args=args)
    with pytest.raises(SpecInvalid) as caught:
        train(support.make_run(tmp_path, params), params)
    assert "near: per_device_train_batch_size" in caught.value.message
    assert "output_dir: the train stage sets this" in caught.value.message
    assert "set training.sft.learningRate" in caught.value.message


def test_no_sft_rows_break_the_contract(base: Path, tmp_path: Path) -> None:
    from curateevo_jobs.train import train

    params = support.train_params(base)
    run = support.make_run(tmp_path, params)
    support.write_rows(run.inputs / "sft.jsonl", [])
    with pytest.raises(ContractBroken, match="holds no rows"):
        train(run, params)


def test_a_base_that_is_not_there_breaks_the_contract(tmp_path: Path) -> None:
    from curateevo_jobs.train import train

    params = support.train_params(tmp_path / "nowhere")
    with pytest.raises(ContractBroken, match=r"config\.json"):
        train(support.make_run(tmp_path, params), params)


def test_a_growing_horizon_is_the_same_after_a_kill(base: Path, tmp_path: Path) -> None:
    horizon = (Horizon(from_step=0, max_turns=1), Horizon(from_step=2, max_turns=3))
    params = support.train_params(base, sft_steps=2, horizon=horizon)
    sft, rl = support.sft_rows(), support.letter_rows()
    whole = support.train_apart(tmp_path / "whole", params, sft, rl)
    killed = support.train_apart(tmp_path / "killed", params, sft, rl, kill_at=("grpo", 3))
    assert killed.exit_code == -signal.SIGKILL
    resumed = support.train_apart(tmp_path / "killed", params, sft, rl)
    for ended in (whole, resumed):
        rows = support.read_rows(ended.run.output / "metrics-0.jsonl")
        assert [row["horizon"] for row in rows if row["phase"] == "grpo-environment"] == [1, 1, 3, 3]
    weights = [(e.run.output / "model-0" / "model.safetensors").read_bytes() for e in (whole, resumed)]
    assert weights[0] == weights[1]
