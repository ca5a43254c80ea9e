"""Real GRPO steps in τ²'s environments without a user: the rewards are those of the package's evaluators."""

from __future__ import annotations

from pathlib import Path

import pytest

from curateevo.api.spec import Horizon
from curateevo.api.stage import TrainSummary
from curateevo_jobs.benchmarks.base import JsonObject, Task
from curateevo_jobs.benchmarks.tau2.gold import gold_answers
from tests.jobs import test_train_support as support
from tests.jobs.test_tau2 import SUITE, run

COPIES = 8
"""A model that can't do anything learns two calls by heart, so that its rewards are not all the same."""


def row(task: Task, name: str) -> JsonObject:
    """A task without its policy, and with the tools of its reference alone: the model is a tiny one."""
    used = {call.name for answer in gold_answers(task) for call in answer.calls}
    tools = [tool for tool in task.tools if tool["function"]["name"] in used]
    return {"id": name, "family": task.family, "messages": [dict(task.messages[-1])], "tools": tools}


def demonstrated(task: Task, name: str) -> JsonObject:
    played = run(task, gold_answers(task))
    return {**row(task, name), "messages": played.messages[len(task.messages) - 1 :]}


def acted(task: Task, name: str) -> JsonObject:
    return {
        **row(task, name),
        "aimed": False,
        "reward": "environment",
        "suite": "tau2",
        "state": task.state,
        "reference": [],
    }


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.parametrize("domain", ["mock-solo", "telecom-solo"])
def test_grpo_acts_and_is_rewarded_in_the_packages_world(domain: str, tmp_path: Path) -> None:
    task = min(SUITE.tasks({"domains": [domain]}), key=lambda t: len(gold_answers(t)))
    params = support.train_params(
        support.BUILTIN_BASE,
        sft_steps=100,
        sft_args={"max_length": 2048, "lr_scheduler_type": "constant", "per_device_train_batch_size": 1},
        grpo_args={"max_completion_length": 512, "temperature": 1.0},
        horizon=(Horizon(from_step=0, max_turns=1), Horizon(from_step=2, max_turns=4)),
    )
    sft = [demonstrated(task, f"sft-{n}") for n in range(COPIES)]
    ended = support.train_apart(tmp_path, params, sft, [acted(task, f"rl-{n}") for n in range(4)])
    assert ended.exit_code == 0
    assert ended.result is not None and isinstance(ended.result.summary, TrainSummary)
    assert (ended.result.summary.grpo_steps, ended.result.summary.grpo_skipped) == (4, "")
    rewards = [r["reward"] for r in support.read_rows(ended.run.output / "metrics-0.jsonl") if "reward" in r]
    assert rewards[:2] == [0.0, 0.0], "cut short, a rollout never comes to say that it is done"
    assert max(rewards[2:]) > 0.0, "the package's evaluator found a rollout right"
