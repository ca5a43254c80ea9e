"""What a person would write without this project: TRL's trainers on two files, then a greedy evaluation loop.

`python -m bench.bare train|evaluate WORK`; bench.loop times it against the loop doing the same work.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from trl.chat_template_utils import qwen3_template

from curateevo_jobs.benchmarks.toolworld.suite import ToolworldSuite
from curateevo_jobs.benchmarks.toolworld.world import TOOL_ARGUMENTS, World, tool_schemas

CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
MACHINE = {"use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": False}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Tools:
    """The world's tools as methods, as TRL's environment_factory wants them."""

    def reset(self, state: str = "", **row: Any) -> None:
        self._world = World.from_state(state)

    def get_reward(self) -> float:
        return self._world.score("").reward


def _add_tools() -> None:
    schemas = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tool_schemas()}
    for name, arguments in TOOL_ARGUMENTS.items():
        kinds = {a: "int" if schemas[name][a]["type"] == "integer" else "str" for a in arguments}
        head = ", ".join(f"{a}: {k}" for a, k in kinds.items())
        doc = f"{name}\n\n    Args:\n" + "".join(f"        {a}: {a}\n" for a in kinds)
        space: dict[str, Any] = {}
        body = f"return self._world.call({name!r}, {{{', '.join(f'{a!r}: {a}' for a in kinds)}}})"
        exec(f"def {name}(self, {head}) -> str:\n    {body}", space)
        space[name].__doc__ = doc
        setattr(Tools, name, space[name])


def train(work: Path, recipe: dict[str, Any]) -> None:
    """SFT, then GRPO, with the spec's arguments."""
    base, sft, grpo = recipe["base"], recipe["sft"], recipe["grpo"]
    tokenizer = AutoTokenizer.from_pretrained(base)
    data = Dataset.from_list(
        [{"messages": r["messages"], "tools": json.dumps(r["tools"])} for r in rows_of(work / "sft.jsonl")]
    )
    config = SFTConfig(
        output_dir=str(work / "bare-sft"),
        assistant_only_loss=True,
        save_strategy="steps",
        logging_steps=1,
        **MACHINE,
        **sft,
    )
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    trainer = SFTTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(str(work / "bare-model"))
    tokenizer.save_pretrained(work / "bare-model")
    tokenizer.padding_side, tokenizer.response_template = "left", qwen3_template
    _add_tools()
    prompts = [{"prompt": r["messages"], "state": r["state"]} for r in rows_of(work / "rl.jsonl")]
    settings = GRPOConfig(output_dir=str(work / "bare-grpo"), save_strategy="steps", logging_steps=1, **MACHINE, **grpo)
    practice = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(work / "bare-model", dtype=torch.float32),
        args=settings,
        train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer,
        environment_factory=Tools,
    )
    practice.train()
    practice.save_model(str(work / "bare-model"))


def evaluate(work: Path, recipe: dict[str, Any]) -> None:
    """Greedy episodes in batches of 80, without memory."""
    tokenizer = AutoTokenizer.from_pretrained(work / "bare-model", padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(work / "bare-model", dtype=torch.float32).eval()
    wanted = set(recipe["tasks"])
    tasks = [t for t in ToolworldSuite().tasks(recipe["suite"]) if t.id in wanted]
    worlds = [World.from_state(t.state) for t in tasks]
    talks: list[list[dict[str, Any]]] = [list(t.messages) for t in tasks]
    live = list(range(len(tasks)))
    for _ in range(recipe["maxTurns"]):
        going = []
        for start in range(0, len(live), 80):
            batch = live[start : start + 80]
            inputs = tokenizer.apply_chat_template(
                [talks[i] for i in batch],
                tools=list(tasks[0].tools),
                add_generation_prompt=True,
                return_dict=True,
                return_tensors="pt",
                padding=True,
            )
            with torch.no_grad():
                output = model.generate(**inputs, max_new_tokens=recipe["maxTokens"], do_sample=False)
            for i, tokens in zip(batch, output[:, inputs["input_ids"].shape[1] :], strict=True):
                found = CALL.search(tokenizer.decode(tokens).split("<|im_end|>")[0])
                try:
                    call = json.loads(found[1]) if found else None
                    result = worlds[i].call(call["name"], call["arguments"]) if call else None
                except (ValueError, KeyError, TypeError):
                    result = None
                if result is None:
                    continue
                arguments = json.dumps(call["arguments"])
                made = {"id": "c", "type": "function", "function": {"name": call["name"], "arguments": arguments}}
                talks[i] += [
                    {"role": "assistant", "content": "", "tool_calls": [made]},
                    {"role": "tool", "tool_call_id": "c", "name": call["name"], "content": result},
                ]
                going.append(i)
        live = going
    success = sum(w.score("").success for w in worlds) / len(worlds)
    (work / "bare-score.json").write_text(json.dumps({"p": success, "tasks": len(tasks)}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[2])
    {"train": train, "evaluate": evaluate}[sys.argv[1]](folder, json.loads((folder / "recipe.json").read_text()))
