"""Training in several processes, as on several GPUs: the weights, what a SIGKILL costs, and how failures come back."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from curateevo.api.spec import Lora
from curateevo.api.stage import Outcome
from curateevo_jobs.training import processes
from tests.jobs import test_train_support as support

pytestmark = pytest.mark.train
WEIGHTS = "model-0/model.safetensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import curateevo_jobs.training.grpo
    import curateevo_jobs.training.sft  # noqa: F401

    return support.make_tiny_base(tmp_path_factory.mktemp("base"))


def weights(ended: support.Ended) -> dict[str, torch.Tensor]:
    assert ended.result is not None and ended.result.outcome is Outcome.OK, ended
    return load_file(ended.run.output / WEIGHTS)


def test_two_with_half_the_batch_learn_what_one_learns(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = support.train_params(base, grpo_enabled=False, sft_args={"per_device_train_batch_size": 4})
    alone = weights(support.train_apart(tmp_path / "alone", whole, support.sft_rows()))
    monkeypatch.setattr(processes, "count_processes", lambda: 2)
    half = support.train_params(base, grpo_enabled=False, sft_args={"per_device_train_batch_size": 2})
    ended = support.train_apart(tmp_path / "two", half, support.sft_rows())
    together, before = weights(ended), load_file(base / "model.safetensors")
    assert together.keys() == alone.keys()
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor, rtol=0, atol=1e-4)
    assert max(float((alone[n] - before[n]).abs().max()) for n in alone) > 3e-3, "training moved the weights"
    steps = [(r["phase"], r["step"]) for r in support.read_rows(ended.run.output / "metrics-0.jsonl")]
    assert steps == [("sft", n) for n in range(1, 9)]
    assert [e for e in ended.events if e[0] == "sft"] == [("sft", n) for n in range(1, 9)]


def test_killed_and_resumed_the_weights_are_the_same(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "count_processes", lambda: 2)
    monkeypatch.setenv("CURATEEVO_TEST_MARK", str(tmp_path))
    params = support.train_params(base, sft_enabled=False, lora=Lora(r=4, alpha=8, dropout=0.1))
    rows = support.sft_rows(), support.letter_rows()
    calm = support.train_apart(tmp_path / "calm", params, *rows)
    killed = support.train_apart(tmp_path / "killed", params, *rows, kill_at=("grpo", 3))
    assert killed.exit_code == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while left := _started_with(str(tmp_path)):
        assert time.monotonic() < deadline, f"{left} outlived the program"
        time.sleep(0.1)
    resumed = support.train_apart(tmp_path / "killed", params, *rows)
    for name, tensor in weights(calm).items():
        assert torch.equal(weights(resumed)[name], tensor), name
    steps = [(r["phase"], r["step"]) for r in support.read_rows(resumed.run.output / "metrics-0.jsonl")]
    assert steps == [("grpo-environment", n) for n in (1, 2, 3, 4)]


def test_a_polite_end_costs_no_step_in_any_of_them(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "count_processes", lambda: 2)
    params = support.train_params(base, grpo_enabled=False)
    calm = support.train_apart(tmp_path / "calm", params, support.sft_rows())
    ended = support.train_apart(tmp_path / "told", params, support.sft_rows(), kill_at=("sft", 5), by=signal.SIGTERM)
    assert ended.exit_code == 128 + signal.SIGTERM
    resumed = support.train_apart(tmp_path / "told", params, support.sft_rows())
    assert next(step for phase, step in resumed.events if phase == "sft") > 6, "the step under way was kept"
    for name, tensor in weights(calm).items():
        assert torch.equal(weights(resumed)[name], tensor), name


def _started_with(text: str) -> list[int]:
    """Processes that were started with this text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_loss_that_is_not_finite_is_the_same_refusal_from_the_process_of_one_gpu(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "count_processes", lambda: 1)
    params = support.train_params(base, sft_args={"max_grad_norm": 0.0, "optim": "sgd", "weight_decay": 0.0})
    training = params.training.model_copy(
        update={"sft": params.training.sft.model_copy(update={"learning_rate": 1e30})}
    )
    params = params.model_copy(update={"training": training})
    ended = support.train_apart(tmp_path, params, support.sft_rows())
    assert ended.result is not None
    assert (ended.result.outcome, ended.result.reason) == (Outcome.REJECTED, "ReleaseGate")
    assert "step" in ended.result.message
