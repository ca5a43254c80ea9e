"""What the tests of training and evaluation share: a tiny untrained model, toolworld rows, and stage runs."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curateevo.api.evolution import Stage
from curateevo.api.spec import BaseModelRef, Grpo, Lora, ReleaseGate, Sft, Training
from curateevo.api.stage import EvaluateParams, StageRequest, StoreRef, TrainParams
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.base import Score, Suite, Task
from curateevo_jobs.benchmarks.toolworld import world
from curateevo_jobs.benchmarks.toolworld.phrasing import Skill
from curateevo_jobs.stage import StageResult, StageRun

TOOLWORLD = Path(world.__file__).parent
BUILTIN_BASE = TOOLWORLD / "base"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

JsonObject = dict[str, Any]
Watch = Callable[[str, int], None]


@dataclass
class Seen:
    """Progress that remembers, and tells `watch`."""

    watch: Watch = lambda phase, done: None
    events: list[tuple[str, int]] = field(default_factory=list)

    def report(self, phase: str, done: int, total: int, **metrics: float) -> None:
        self.events.append((phase, done))
        self.watch(phase, done)


@dataclass
class Folder:
    """Checkpoints in a plain folder; counts how often they were made durable."""

    folder: Path
    saves: int = 0

    def save(self) -> None:
        self.saves += 1

    def discard(self) -> None:
        pass


def make_tiny_base(folder: Path, context: int = 1024) -> Path:
    """An untrained Qwen3 model of 12,000 parameters that speaks bytes under toolworld's chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = (TOOLWORLD / "template.jinja").read_text()
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def scenarios(count: int, seed: int, skills: Sequence[Skill] = tuple(Skill)) -> list[world.Scenario]:
    """Scenarios of the corpus side, skills in turn."""
    rng = random.Random(seed)
    return [world.draw_scenario(skills[n % len(skills)], rng, dev=False) for n in range(count)]


def demonstrate(scenario: world.Scenario) -> list[JsonObject]:
    """The messages of a flawless run."""
    run = world.World.from_state(scenario.state())
    messages: list[JsonObject] = [{"role": "user", "content": scenario.prompt}]
    for n, call in enumerate(world.reference_calls(scenario)):
        function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
        calls = [{"id": f"c{n}", "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        result = run.call(call.name, dict(call.arguments))
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "name": call.name, "content": result})
    return [*messages, {"role": "assistant", "content": "Done."}]


def sft_rows(count: int = 40, seed: int = 0, skills: Sequence[Skill] = tuple(Skill)) -> list[JsonObject]:
    return [
        {
            "id": f"sft-{n:04d}",
            "family": scenario.skill.value,
            "messages": demonstrate(scenario),
            "tools": list(world.tool_schemas()),
        }
        for n, scenario in enumerate(scenarios(count, seed, skills))
    ]


def rl_rows(count: int = 12, seed: int = 1, skills: Sequence[Skill] = tuple(Skill)) -> list[JsonObject]:
    """Environment rows; every other one is aimed at."""
    return [
        {
            "id": f"rl-{n:04d}",
            "family": scenario.skill.value,
            "messages": [{"role": "user", "content": scenario.prompt}],
            "tools": list(world.tool_schemas()),
            "aimed": n % 2 == 0,
            "reward": "environment",
            "suite": "toolworld",
            "state": scenario.state(),
            "reference": [],
        }
        for n, scenario in enumerate(scenarios(count, seed, skills))
    ]


def match_rows(count: int = 6, seed: int = 2) -> list[JsonObject]:
    """Next-action rows."""
    rows = []
    for row, scenario in zip(rl_rows(count, seed), scenarios(count, seed), strict=True):
        calls = [{"name": c.name, "arguments": dict(c.arguments)} for c in world.reference_calls(scenario)]
        extra = {"reward": "action_match", "suite": None, "state": None, "reference": calls[:1]}
        rows.append({**row, "id": row["id"].replace("rl", "match"), **extra})
    return rows


def train_params(base: Path, **changes: Any) -> TrainParams:
    """Eight SFT steps and four GRPO steps, a checkpoint every second one, and a gate that is open."""
    sft = Sft(
        max_steps=changes.pop("sft_steps", 8),
        learning_rate=1e-3,
        lora=changes.pop("lora", Lora(enabled=False)),
        args={"per_device_train_batch_size": 4, **changes.pop("sft_args", {})},
        enabled=changes.pop("sft_enabled", True),
    )
    grpo_args = {
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 24,
        "max_tool_calling_iterations": 2,
    }
    grpo = Grpo(
        max_steps=changes.pop("grpo_steps", 4),
        learning_rate=1e-3,
        args={**grpo_args, **changes.pop("grpo_args", {})},
        horizon=changes.pop("horizon", ()),
        enabled=changes.pop("grpo_enabled", True),
    )
    gate = changes.pop("gate", ReleaseGate(min_call_rate=0.0, max_dead_group_fraction=1.0, max_family_drop=1.0))
    training = Training(sft=sft, grpo=grpo, gate=gate, save_steps=2, **changes)
    return TrainParams(model=BaseModelRef(base=f"file://{base}"), training=training)


def make_run(root: Path, params: TrainParams | EvaluateParams, watch: Watch = lambda phase, done: None) -> StageRun:
    """A run in `root`: one with the same root goes on with its checkpoints; its output is fresh."""
    number = len(list(root.glob("output-*"))) if root.is_dir() else 0
    for name in ("inputs", f"output-{number}", "scratch", "checkpoints"):
        (root / name).mkdir(parents=True, exist_ok=True)
    request = StageRequest(
        evolution_uid="uid",
        version=0,
        stage=Stage(params.stage),
        attempt=number,
        store=StoreRef(uri="file:///nowhere"),
        prefix="prefix",
        inputs={},
        params=params,
    )
    output = root / f"output-{number}"
    return StageRun(request, root / "inputs", output, root / "scratch", Folder(root / "checkpoints"), Seen(watch))


class Letters:
    """A suite that likes letters: even an untrained model earns rewards that differ."""

    name = "letters"

    def tasks(self, params: Mapping[str, Any]) -> Sequence[Task]:
        return ()

    def environment(self, state: str) -> Letters:
        return self

    def tools(self) -> tuple[JsonObject, ...]:
        return world.tool_schemas()

    def call(self, name: str, arguments: JsonObject) -> str:
        return "ok"

    def score(self, final_text: str) -> Score:
        share = sum(c.isalpha() for c in final_text) / max(1, len(final_text))
        return Score(share, share, {})


def open_suite(name: str, inputs: Path) -> Suite:
    """The registry's suites, and Letters."""
    return Letters() if name == Letters.name else registry.suite(name, inputs)


def letter_rows(count: int = 12) -> list[JsonObject]:
    return [{**row, "suite": "letters"} for row in rl_rows(count)]


def write_rows(path: Path, rows: Sequence[JsonObject]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: Path) -> list[JsonObject]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class Ended:
    """How a program in a process of its own ended. `result` is None when it was killed."""

    exit_code: int | None
    run: StageRun
    result: StageResult | None
    events: list[tuple[str, int]]


def train_apart(
    root: Path,
    params: TrainParams,
    sft: Sequence[JsonObject],
    rl: Sequence[JsonObject] = (),
    kill_at: tuple[str, int] | None = None,
    by: signal.Signals = signal.SIGKILL,
) -> Ended:
    """Train in a forked process, which gets a signal once `kill_at` (phase, step) is reported."""

    def watch(phase: str, done: int) -> None:
        if (phase, done) == kill_at:
            os.kill(os.getpid(), by)

    from curateevo_jobs.train import train

    run = make_run(root, params, watch)
    write_rows(run.inputs / "sft.jsonl", sft)
    write_rows(run.inputs / "rl.jsonl", rl)
    record = root / "ended.pickle"
    record.unlink(missing_ok=True)

    def work() -> None:
        result = train(run, params, open_suite)
        assert isinstance(run.progress, Seen)
        record.write_bytes(pickle.dumps((result, run.progress.events)))

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(600)
    result, events = pickle.loads(record.read_bytes()) if record.is_file() else (None, [])
    return Ended(child.exitcode, run, result, events)
