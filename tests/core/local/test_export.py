"""The champion's resources for other trainers: what is written, and that it reads back as it was."""

from __future__ import annotations

import json
from pathlib import Path

import atif
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo.api.evolution import Stage
from curateevo.api.parse import parse_evolution
from curateevo.api.spec import Memory, Sandbox
from curateevo.api.stage import ChampionPointer, CurateParams, CurateSummary, StageRequest, StoreRef
from curateevo.evolution.names import attempt_prefix, champion_key
from curateevo.local.export import (
    TARGETS,
    export_champion,
    write_agentgym,
    write_atif,
    write_jsonl,
    write_slime,
    write_trl,
    write_verl,
)
from curateevo.store.artifacts import publish
from curateevo.store.local import LocalStore
from curateevo.trajectories.formats.atif import parse_atif, render_atif
from curateevo.trajectories.model import Call, JsonObject, RunOutcome, TaskRef, Trajectory, Turn, check
from tests.core.trajectories.sources import read_files

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {arg: {}}}}}
    for name, arg in (("f", "a"), ("g", "b"))
]
MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "do\u2028it"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "why",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "ok"},
    {"role": "assistant", "content": "Done."},
]
SFT = {"id": "sft-000000", "messages": MESSAGES, "tools": TOOLS, "family": "x", "turns": 2, "masked": []}
RL = {
    "id": "rl-000000",
    "task_id": "t",
    "messages": MESSAGES[:2],
    "tools": TOOLS,
    "family": "x",
    "aimed": False,
    "reward": "action_match",
    "suite": None,
    "reference": [{"name": "f", "arguments": {"a": 1}}],
    "turns": 1,
}
RESOURCES: dict[str, list[JsonObject]] = {"sft.jsonl": [SFT, SFT], "rl.jsonl": [RL], "memory.jsonl": [{"content": "n"}]}


@pytest.mark.parametrize("name", ["jsonl", "trl", "verl", "atif"])
def test_sft_rows_read_back_as_the_conversations_that_they_were(name: str, tmp_path: Path) -> None:
    path = next(p for p in TARGETS[name](RESOURCES, tmp_path) if p.name.startswith("sft."))
    reading = read_files([(path, "auto")])
    assert not reading.set_aside and len(reading.trajectories) == 2
    for t in reading.trajectories:
        assert t.messages() == MESSAGES and list(t.tools) == TOOLS
        assert t.format == ("atif" if name == "atif" else "openai")


def test_trl_rows_have_tools_as_text(tmp_path: Path) -> None:
    sft, rl, memory = write_trl(RESOURCES, tmp_path)
    row = json.loads(sft.read_text().split("\n")[0])
    assert set(row) == {"messages", "tools", "masked"} and json.loads(row["tools"]) == TOOLS
    assert json.loads(json.loads(rl.read_text())["reference"]) == RL["reference"]
    assert json.loads(memory.read_text()) == {"content": "n"}


def test_agentgym_takes_each_task_once_by_its_id(tmp_path: Path) -> None:
    rows = [{**RL, "task_id": task} for task in ("webshop_3", "webshop_1", "webshop_3")]
    write_agentgym({**RESOURCES, "rl.jsonl": rows}, tmp_path)
    assert json.loads((tmp_path / "rl.json").read_text()) == [{"item_id": "webshop_3"}, {"item_id": "webshop_1"}]


def test_slime_takes_prompts_with_what_a_rollout_needs(tmp_path: Path) -> None:
    write_slime(RESOURCES, tmp_path)
    row = json.loads((tmp_path / "rl.jsonl").read_text())
    assert set(row) == {"prompt", "label", "metadata"} and row["prompt"] == RL["messages"]
    assert json.loads(row["label"]) == RL["reference"]
    assert row["metadata"]["tools"] == TOOLS and row["metadata"]["task_id"] == "t"


def test_verl_rl_rows_have_the_columns_of_its_trainers(tmp_path: Path) -> None:
    write_verl(RESOURCES, tmp_path)
    [row] = pl.read_parquet(tmp_path / "rl.parquet").to_dicts()
    assert row["data_source"] == "curateevo" and row["ability"] == "x"
    assert row["prompt"][1]["content"] == "do\u2028it" and row["prompt"][1]["tool_calls"] is None
    assert json.loads(row["reward_model"]["ground_truth"]) == RL["reference"]
    assert row["extra_info"]["index"] == 0 and json.loads(row["extra_info"]["tools"]) == TOOLS
    compile((tmp_path / "verl_dataset.py").read_text(), "verl_dataset.py", "exec")


def test_verl_files_may_be_empty(tmp_path: Path) -> None:
    write_verl({"sft.jsonl": [], "rl.jsonl": [], "memory.jsonl": []}, tmp_path)
    assert pl.read_parquet(tmp_path / "rl.parquet").is_empty()


def test_atif_documents_are_valid_by_its_models(tmp_path: Path) -> None:
    [path] = write_atif(RESOURCES, tmp_path)
    documents = [json.loads(line) for line in path.read_text().split("\n") if line]
    assert {atif.Trajectory.model_validate(d).schema_version for d in documents} == {"ATIF-v1.8"}


def test_a_row_that_is_no_trajectory_is_named(tmp_path: Path) -> None:
    bad = {**SFT, "messages": MESSAGES[3:]}
    with pytest.raises(ContractBroken, match="no trajectory"):
        write_atif({**RESOURCES, "sft.jsonl": [bad]}, tmp_path)


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
arguments = st.one_of(
    st.dictionaries(texts, st.one_of(st.none(), st.integers(), texts, st.lists(texts, max_size=2)), max_size=3).map(
        json.dumps
    ),
    st.sampled_from(["{a: 1", "[1]", '{"a":1}', "", "null"]),
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    turns = []
    for number in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 2))
        calls = tuple(Call(f"c{number}-{k}", draw(st.sampled_from("fg")), draw(arguments)) for k in range(count))
        users = tuple(draw(st.lists(texts, max_size=2))) if number else ()
        results = tuple(draw(texts) for _ in calls)
        turns.append(Turn(users, draw(texts), calls, results, draw(st.one_of(st.none(), texts))))
    return Trajectory(
        id="t1",
        source="x:1",
        task=TaskRef("task", "prompt", draw(st.one_of(st.none(), st.just("toolworld"))), None, ("a", "b")),
        tools=tuple(TOOLS),
        system=draw(st.one_of(st.none(), texts)),
        head=tuple(draw(st.lists(texts, min_size=1, max_size=2))),
        turns=tuple(turns),
        tail=tuple(draw(st.lists(texts, max_size=1))),
        outcome=RunOutcome(draw(st.sampled_from([True, False, None])), draw(st.sampled_from([None, 0.0, 0.5]))),
        labels={"k": [1, None]},
        licence=draw(st.sampled_from([None, "MIT"])),
    )


@given(trajectories())
@settings(max_examples=80)
def test_a_trajectory_survives_atif(t: Trajectory) -> None:
    document = json.loads(json.dumps(render_atif(t)))
    atif.Trajectory.model_validate(document)
    again = parse_atif(document, "x:1")
    check(again)
    assert again == t


def test_the_champions_files_are_exported_without_sealed_states(tmp_path: Path) -> None:
    found = parse_evolution(Path("examples/toolworld.yaml").read_text(encoding="utf-8"), "examples/toolworld.yaml")
    storage = found.spec.storage.model_copy(update={"uri": (tmp_path / "store").as_uri()})
    spec = found.spec.model_copy(update={"storage": storage})
    evolution = found.model_copy(update={"spec": spec, "metadata": found.metadata.model_copy(update={"uid": "u"})})
    with pytest.raises(ContractBroken, match="no champion yet"):
        export_champion(evolution, "jsonl", tmp_path / "out")
    with pytest.raises(SpecInvalid, match="no target called 'csv'"):
        export_champion(evolution, "csv", tmp_path / "out")
    write_jsonl({**RESOURCES, "rl.jsonl": [{**RL, "state": "sealed"}]}, _made(tmp_path / "curated"))
    store = LocalStore(tmp_path / "store")
    request = StageRequest(
        evolution_uid="u",
        version=3,
        stage=Stage.CURATE,
        attempt=2,
        store=StoreRef(uri=storage.uri),
        prefix=attempt_prefix("u", Stage.CURATE, 3, 2),
        inputs={},
        params=CurateParams(sandbox=Sandbox(), memory=Memory(), seed=0),
    )
    publish(store, request, tmp_path / "curated", summary=CurateSummary())
    pointer = ChampionPointer(number=3, policy_digest="d", policy_key="k", p=0.5, c=1.0, j=0.5)
    store.swap(champion_key("u"), pointer.model_dump_json(by_alias=True).encode(), None)
    files = export_champion(evolution, "jsonl", tmp_path / "out")
    assert [p.name for p in files] == ["sft.jsonl", "rl.jsonl", "memory.jsonl"]
    assert json.loads(files[1].read_text()) == RL


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
