"""Rewards, the gate, the mix of prompts, checkpoints' markers, base models: each by itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from curateevo.api.errors import ContractBroken, Denied, SpecInvalid
from curateevo.api.spec import BaseModelRef, Grpo, Horizon, ReleaseGate
from curateevo_jobs.agents.chat import Answer, Conversation, Generation, parse_call
from curateevo_jobs.agents.episode import Rules
from curateevo_jobs.agents.nothing import Nothing
from curateevo_jobs.agents.scripted import Scripted
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.toolworld.world import reference_calls
from curateevo_jobs.train import train
from curateevo_jobs.training import gate
from curateevo_jobs.training.base_model import find_base
from curateevo_jobs.training.checkpoints import PhaseFolder, mark_complete, read_facts
from curateevo_jobs.training.environments import build_stages, stage_name
from curateevo_jobs.training.rewards import action_match, environment, final_text, match_first_call
from curateevo_jobs.training.rows import RlRow, read_rl, read_sft
from tests.jobs import test_train_support as support

REFERENCE = [{"name": "buy_item", "arguments": {"item": "lamp", "quantity": 2}}]
RIGHT = {"item": "lamp", "quantity": 2}
RULES = Rules(Generation(0.0, 8), 3)


@pytest.mark.parametrize(
    ("call", "reward"),
    [
        (("buy_item", RIGHT), 1.0),
        (("buy_item", {"item": "lamp", "quantity": "2"}), 0.5),
        (("buy_item", None), 0.5),
        (("check_stock", RIGHT), 0.0),
        (None, 0.0),
    ],
)
def test_a_first_call_is_matched_by_tool_and_arguments(call: tuple[str, Any] | None, reward: float) -> None:
    assert match_first_call(call, REFERENCE) == reward


def test_without_a_reference_call_the_right_thing_is_to_call_nothing() -> None:
    assert match_first_call(None, []) == 1.0
    assert match_first_call(("buy_item", RIGHT), []) == 0.0


def completion(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "buy_item", "arguments": arguments}
    return [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}]


def test_action_match_reads_arguments_as_objects_and_as_text() -> None:
    completions = [
        completion(RIGHT),
        completion(json.dumps(RIGHT)),
        completion("{"),
        [{"role": "assistant", "content": "no"}],
    ]
    assert action_match(completions, [json.dumps(REFERENCE)] * 4) == [1.0, 1.0, 0.5, 0.0]


def test_the_final_text_is_that_of_an_answer_without_a_call() -> None:
    assert final_text([{"role": "assistant", "content": "done"}]) == "done"
    assert final_text(completion(RIGHT)) == ""
    assert final_text([{"role": "tool", "content": "ok"}]) == ""
    assert final_text([]) == ""


def rows_of(tmp_path: Path, rows: list[dict[str, Any]]) -> list[RlRow]:
    support.write_rows(tmp_path / "rl.jsonl", rows)
    return read_rl(tmp_path / "rl.jsonl")


def test_an_environment_class_acts_in_the_suites_world(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, support.rl_rows(4))
    suites = {"toolworld": registry.suite("toolworld")}
    [(name, stage)] = build_stages(rows, suites).items()
    assert {stage_name(row) for row in rows} == {name}
    scenario = next(s for s in support.scenarios(4, 1) if reference_calls(s))
    worlds = [stage.factory(), stage.factory()]
    for world in worlds:
        world.reset(state=scenario.state(), prompt=[])
    for call in reference_calls(scenario):
        getattr(worlds[0], call.name)(**call.arguments)
    assert environment([[], []], worlds) == [1.0, 0.0]


def test_a_tool_with_a_name_that_trl_keeps_for_itself_is_refused(tmp_path: Path) -> None:
    [row, *_] = support.rl_rows(1)
    row["tools"] = [{"type": "function", "function": {"name": "reset", "parameters": {}}}]
    with pytest.raises(ContractBroken, match="reset"):
        build_stages(rows_of(tmp_path, [row]), {"toolworld": registry.suite("toolworld")})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"reward": "applause"}, "applause"),
        ({"state": None}, "state must be str"),
        ({"aimed": "yes"}, "aimed must be bool"),
        ({"messages": "hi"}, "messages must be list"),
    ],
)
def test_a_bad_rl_row_is_named(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    good, bad = support.rl_rows(2)
    with pytest.raises(ContractBroken, match=r"rl\.jsonl:2") as caught:
        rows_of(tmp_path, [good, {**bad, **change}])
    assert says in caught.value.message


def test_no_rl_file_holds_no_rows(tmp_path: Path) -> None:
    assert read_rl(tmp_path / "rl.jsonl") == []


def solver(rows: list[RlRow], unsolved: str = "") -> Scripted:
    """A model that solves toolworld's tasks by heart, but not those of one family."""
    by_prompt = {s.prompt: s for s in support.scenarios(44, 1)}

    def reply(conversation: Conversation) -> Answer:
        scenario = by_prompt[next(m["content"] for m in conversation.messages if m["role"] == "user")]
        turn = sum(m["role"] == "assistant" for m in conversation.messages)
        calls = reference_calls(scenario) if scenario.skill != unsolved else ()
        if turn >= len(calls):
            return Answer(content="Done.")
        return Answer(calls=(parse_call(calls[turn].name, json.dumps(dict(calls[turn].arguments))),))

    return Scripted(reply)


def test_families_are_measured_on_the_same_few_tasks(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [*support.rl_rows(44), *support.match_rows(4)])
    sample = gate.sample_families(rows)
    assert sample == gate.sample_families(rows[::-1])
    assert max(sum(r.family == f for r in sample) for f in {r.family for r in sample}) <= gate.FAMILY_TASKS
    acting = [r for r in sample if r.suite]
    suites = {"toolworld": registry.suite("toolworld")}
    before = gate.measure_families(solver(rows), acting, suites, RULES)
    after = gate.measure_families(solver(rows, unsolved="refund"), acting, suites, RULES)
    assert set(before.values()) == {1.0}
    assert after == {**before, "refund": 0.0}
    finding = gate.Finding(1.0, 0.2, before, after)
    [reason] = gate.reasons_against_grpo(finding, ReleaseGate(max_family_drop=0.5))
    assert "family refund fell from 1.00 to 0.00" in reason
    assert gate.reasons_against_grpo(finding, ReleaseGate(max_family_drop=1.0)) == []


def test_families_of_hardly_a_task_are_measured_together(tmp_path: Path) -> None:
    every = rows_of(tmp_path, support.rl_rows(44))
    rows = [r for n, r in enumerate(every) if n < 11 or r.family == "refund"]
    suites = {"toolworld": registry.suite("toolworld")}
    scores = gate.measure_families(solver(rows, unsolved="stock"), rows, suites, RULES)
    assert scores == {"refund": 1.0, gate.OTHERS: 0.9}


def test_what_is_released_renders_as_it_was_trained(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.chat_template_utils import qwen3_chat_template, qwen3_training_chat_template

    from curateevo_jobs.training.weights import save

    base = support.make_tiny_base(tmp_path / "base")
    model, how = AutoModelForCausalLM.from_pretrained(base), {"start": base, "base": base, "adapter": tmp_path / "a"}
    save(model, tmp_path / "same", chat_template=None, **how)
    save(model, tmp_path / "qwen", chat_template=qwen3_chat_template, **how)
    told = {name: AutoTokenizer.from_pretrained(tmp_path / name).chat_template for name in ("base", "same", "qwen")}
    assert told["same"] == told["base"] and told["qwen"] == qwen3_training_chat_template


def test_reference_rows_count_as_solved_when_the_first_call_is_right(tmp_path: Path) -> None:
    rows = [r for r in rows_of(tmp_path, support.match_rows(11)) if r.reference]
    assert set(gate.measure_families(Nothing(), rows, {}, RULES).values()) == {0.0}


def test_groups_without_variance_are_a_reason() -> None:
    assert gate.reasons_against_grpo(gate.Finding(1.0, 0.96), ReleaseGate())
    assert not gate.reasons_against_grpo(gate.Finding(1.0, 0.95), ReleaseGate())
    assert not gate.reasons_against_grpo(gate.Finding(None, None), ReleaseGate())


def test_the_call_rate_looks_at_prompts_that_show_a_call(tmp_path: Path) -> None:
    support.write_rows(tmp_path / "sft.jsonl", support.sft_rows(110))
    rows = read_sft(tmp_path / "sft.jsonl")
    model = Scripted(lambda _: Answer(calls=(parse_call("look", "{}"),)))
    assert gate.measure_call_rate(model, rows, 8) == 1.0
    assert 16 <= model.asked <= gate.CALL_PROMPTS
    assert gate.measure_call_rate(Nothing(), rows, 8) == 0.0
    chats = [r for r in rows if r.family == "chat"]
    assert gate.measure_call_rate(Nothing(), chats, 8) is None


def test_a_model_that_hardly_calls_is_not_released() -> None:
    gate.require_calls(0.05, ReleaseGate())
    gate.require_calls(None, ReleaseGate())
    with pytest.raises(gate.NotReleased, match="minCallRate"):
        gate.require_calls(0.04, ReleaseGate())


def write_some(folder: Path) -> None:
    (folder / "weights").write_bytes(b"1234")
    (folder / "sub").mkdir()
    (folder / "sub/more").write_bytes(b"5")


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "complete.json").unlink(),
        lambda folder: (folder / "complete.json").write_text("{"),
        lambda folder: (folder / "weights").unlink(),
        lambda folder: (folder / "sub/more").write_bytes(b""),
    ],
    ids=["no marker", "half a marker", "no weights", "cut off"],
)
def test_what_is_not_whole_never_happened(harm: Callable[[Path], Any], tmp_path: Path) -> None:
    phase = PhaseFolder(tmp_path / "sft-0")
    for step in (2, 10):
        folder = phase.root / f"checkpoint-{step}"
        folder.mkdir()
        write_some(folder)
        mark_complete(folder, {"step": step})
    assert phase.newest() == (phase.root / "checkpoint-10", 10)
    harm(phase.root / "checkpoint-10")
    assert phase.newest() == (phase.root / "checkpoint-2", 2)
    assert not (phase.root / "checkpoint-10").exists()


def test_a_result_is_put_in_place_as_a_whole(tmp_path: Path) -> None:
    phase = PhaseFolder(tmp_path / "sft-0")

    def fail(folder: Path) -> None:
        write_some(folder)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        phase.finish(fail, {})
    assert phase.facts() is None
    phase.finish(write_some, {"steps": 3})
    assert phase.facts() == {"steps": 3}
    assert read_facts(phase.finished) == {"steps": 3}


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("file:///no/such/folder", ContractBroken),
        ("builtin://no-such-suite", ContractBroken),
        ("pvc://claim/model", ContractBroken),
        ("ftp://somewhere/model", SpecInvalid),
    ],
)
def test_a_base_model_that_can_not_be_found_is_said_to_be(uri: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="base"):
        find_base(BaseModelRef(base=uri))


def test_a_folder_is_a_base_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_base(BaseModelRef(base=f"file://{tmp_path}")) == tmp_path
    assert find_base(BaseModelRef(base=str(tmp_path))) == tmp_path


@pytest.mark.train
class TestMix:
    """The order of GRPO's prompts. Imports TRL."""

    def test_replay_is_spread_evenly_and_repeats_by_seed(self, tmp_path: Path) -> None:
        from curateevo_jobs.training.grpo import schedule

        rows = rows_of(tmp_path, support.rl_rows(10))
        order = schedule(rows, 40, 0.25, 7)
        assert order == schedule(rows[::-1], 40, 0.25, 7)
        assert order != schedule(rows, 40, 0.25, 8)
        assert [sum(not r.aimed for r in order[n : n + 4]) for n in range(0, 40, 4)] == [1] * 10
        assert {r.id for r in order} == {r.id for r in rows}

    @pytest.mark.parametrize("aimed", [True, False])
    def test_where_one_pool_is_empty_the_other_fills_in(self, aimed: bool, tmp_path: Path) -> None:
        from curateevo_jobs.training.grpo import schedule

        rows = rows_of(tmp_path, [{**row, "aimed": aimed} for row in support.rl_rows(3)])
        assert len(schedule(rows, 7, 0.5, 0)) == 7

    def test_steps_are_shared_out_by_rows(self, tmp_path: Path) -> None:
        from curateevo_jobs.training.grpo import plan_legs

        acting, matching = rows_of(tmp_path, support.rl_rows(9)), rows_of(tmp_path, support.match_rows(3))
        assert [(leg.kind, leg.steps) for leg in plan_legs([*acting, *matching], 8)] == [
            ("action_match", 2),
            ("environment", 6),
        ]
        assert [leg.steps for leg in plan_legs(acting, 8)] == [8]
        assert [leg.steps for leg in plan_legs([*acting, *matching], 1)] == [1]
        assert plan_legs([], 8) == []

    def test_turns_grow_by_step_in_whatever_order_they_are_told(self) -> None:
        from curateevo_jobs.training.grpo import turns_at

        phases = (Horizon(from_step=20, max_turns=9), Horizon(from_step=5, max_turns=3))
        assert [turns_at(Grpo(horizon=phases), n) for n in (0, 5, 19, 20, 99)] == [3, 3, 3, 9, 9]
        assert turns_at(Grpo(), 5) == 10
        assert turns_at(Grpo(args={"max_tool_calling_iterations": 4}), 5) == 4


def test_training_without_trl_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(Any, sys.modules), "trl", None)
    with pytest.raises(Denied, match=r"training needs trl: not installed\n  hint: pip install 'curateevo\[train\]'"):
        train(cast(Any, None), cast(Any, None))
