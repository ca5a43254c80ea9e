"""An evolution on BFCL: the paper's settings as trainers take them, and a real one of a few steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.parse import parse_evolution
from curateevo.api.stage import EvaluateSummary, TrainSummary
from curateevo.store.local import LocalStore
from curateevo_jobs.agents.episode import Episode, play_one
from curateevo_jobs.agents.scripted import Scripted, in_turn
from curateevo_jobs.benchmarks.base import Task
from curateevo_jobs.benchmarks.bfcl.gold import gold_answers
from curateevo_jobs.benchmarks.bfcl.suite import BfclSuite
from tests.jobs.minirun import YAML, manifests, start
from tests.jobs.test_bfcl import RULES

EXAMPLE = Path(__file__).parents[2] / "examples/qwen3-4b-bfcl.yaml"
SUITE = BfclSuite()
DEV = 8
LEARNT = 10


@pytest.mark.train
def test_the_papers_settings_are_what_the_trainers_are_given(tmp_path: Path) -> None:
    from curateevo_jobs.training.options import grpo_config, sft_config
    from curateevo_jobs.training.weights import lora_config

    training = parse_evolution(EXAMPLE.read_text(), str(EXAMPLE)).spec.training
    # TRL refuses to checkpoint activations only where there is a GPU to save; bf16 it takes by the machine.
    sft = sft_config(training.sft, tmp_path, 0, training.save_steps, 1024)
    assert (sft.learning_rate, sft.max_steps, sft.max_length) == (2.5e-5, 140, 16384)
    grpo = grpo_config(training.grpo, tmp_path, 0, training.save_steps, training.grpo.max_steps, {})
    assert (grpo.learning_rate, grpo.beta, grpo.epsilon) == (5e-6, 0.14, 0.05)
    assert grpo.generation_batch_size % grpo.num_generations == 0
    lora = lora_config(training.sft.lora)
    assert lora is not None and (lora.r, lora.lora_alpha, lora.lora_dropout) == (16, 32, 0.05)


def demonstration(task: Task, tools: list[Any], turns: int) -> dict[str, Any]:
    """The reference's conversation on a task, as a row of a corpus, up to a number of answers."""
    episode = Episode(0, [dict(m) for m in task.messages], tools, SUITE.environment(task.state))
    play_one(Scripted(in_turn(*gold_answers(task)[:turns])), episode, RULES)
    last = next(n for n, m in enumerate(episode.messages) if m["role"] == "assistant" and not m.get("tool_calls"))
    return {
        "id": task.id,
        "messages": episode.messages[: last + 1],
        "tools": tools,
        "task": {"id": task.id, "env": "bfcl", "state": task.state, "tags": [task.family]},
        "outcome": {"success": True},
    }


def single(task: Task) -> dict[str, Any]:
    [answer] = gold_answers(task)
    row = demonstration(task, list(task.tools), 0)
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": c.name, "arguments": c.raw}}
        for n, c in enumerate(answer.calls)
    ]
    results = [{"role": "tool", "tool_call_id": c["id"], "name": c["function"]["name"], "content": "ok"} for c in calls]
    made = [*task.messages, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    return {**row, "messages": [*made, {"role": "assistant", "content": "Done."}]}


def used(task: Task) -> list[Any]:
    """The tools of the first turn's reference: few enough for a model of a few hundred tokens."""
    names = {call.name for call in gold_answers(task)[0].calls}
    return [tool for tool in task.tools if tool["function"]["name"] in names]


def corpus() -> list[dict[str, Any]]:
    """Short demonstrations: of tasks with one answer, and of the first turn of scenarios."""
    short = sorted(SUITE.tasks({"categories": ["simple_python"]}), key=lambda t: len(json.dumps(t.tools)))
    dev = {t.id for t in SUITE.tasks(PARAMS)}
    scenarios = [
        t for t in SUITE.tasks({"categories": ["multi_turn_base"]}) if t.id not in dev and gold_answers(t)[0].calls
    ]
    scenarios.sort(key=lambda t: len(json.dumps(used(t))))
    rows = [single(task) for task in short if task.id not in dev][:LEARNT]
    return rows + [demonstration(task, used(task), 2) for task in scenarios[:LEARNT]]


PARAMS = {"categories": ["simple_python", "irrelevance"], "perCategory": DEV}


@pytest.mark.train
@pytest.mark.slow
def test_an_evolution_on_bfcl_runs_to_its_end_and_grpo_acts_in_its_environments(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus()))
    text = YAML.replace('{uri: "toolworld://corpus?seed=3", format: toolworld}', "{uri: corpus.jsonl, format: openai}")
    text = text.replace("{name: toolworld, params: {perSkill: 6}}", json.dumps({"name": "bfcl", "params": PARAMS}))
    text = text.replace("initial: {uri: policies/000.py}", "initial: {builtin: keep-all}")
    text = text.replace("{type: replay, replay: policies}", "{type: rules}").replace(
        "rounds: {max: 2", "rounds: {max: 0"
    )
    text = text.replace("max_length: 384", "max_length: 2048").replace(
        "max_completion_length: 32", "max_completion_length: 64"
    )
    yaml = tmp_path / "bfcl.yaml"
    yaml.write_text(text)
    assert start(yaml, tmp_path / "run").wait() == 0, (tmp_path / "run.log").read_text()[-3000:]
    made = manifests(tmp_path / "run")
    store = LocalStore(tmp_path / "run" / "store")
    acted = [json.loads(line) for line in store.read(made["curate", 0].file("rl.jsonl").ref).decode().splitlines()]
    assert {(row["reward"], row["suite"]) for row in acted} == {("environment", "bfcl")}
    trained, evaluated = made["train", 0].summary, made["evaluate", 0].summary
    assert isinstance(trained, TrainSummary) and isinstance(evaluated, EvaluateSummary)
    assert (trained.grpo_steps, trained.grpo_skipped) == (4, "")
    [score] = [s for splits in evaluated.scores.values() for name, s in splits.items() if name == "sel"]
    assert score.tasks >= DEV // 2
    assert set(score.families) <= {"simple_python", "irrelevance"}
