"""Every format in: what is read, what is refused and why, and how `auto` tells them apart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import agentpile
import polars as pl
import pytest

from curateevo.api.spec import CorpusFormat
from curateevo.trajectories.formats.detect import FILE_READERS, PARSERS, detect, parse_auto
from curateevo.trajectories.model import RowInvalid, Trajectory, check
from curateevo.trajectories.reading import source_files
from tests.conftest import DATA
from tests.core.trajectories.sources import Reading, read_files

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
SHAREGPT = {
    "conversations": [
        {"from": "human", "value": "do it"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "ok"},
        {"from": "gpt", "value": "Done."},
    ],
    "system": "be brief",
    "tools": json.dumps([TOOL["function"]]),
    "license": "CC-BY-4.0",
}
TOUCAN = {
    "uuid": "u1",
    "subset_name": "single-turn-original",
    "question": "do it",
    "target_tools": "f",
    "available_tools": json.dumps([TOOL]),
    "response_quality_assessment": json.dumps({"overall_score": 4.5}),
    "messages": json.dumps(
        [
            {"role": "system", "content": "<|im_system|>tool_declare<|im_middle|>[]"},
            {"role": "user", "content": "do it"},
            {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": '{"a": 1}'}},
            {"role": "assistant", "content": "", "function_call": {"name": "g", "arguments": "{}"}},
            {"role": "function", "name": "g", "content": "from g"},
            {"role": "function", "name": "f", "content": "from f"},
            {"role": "assistant", "content": "Done.", "reasoning_content": "both answered"},
        ]
    ),
}
SWE_AGENT = {
    "history": [
        {"role": "user", "content": "another task", "is_demo": True, "agent": "main"},
        {"role": "system", "content": "s", "agent": "main", "message_type": "system_prompt"},
        {"role": "user", "content": "fix it", "agent": "main", "message_type": "observation"},
        {
            "role": "assistant",
            "content": "look",
            "thought": "look",
            "action": "ls",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
            ],
        },
        {"role": "tool", "content": "a.py", "tool_call_ids": ["c1"], "message_type": "observation"},
        {
            "role": "assistant",
            "content": "done",
            "tool_calls": [{"id": "c2", "type": "function", "function": {"name": "submit", "arguments": "{}"}}],
        },
    ],
    "info": {"exit_status": "submitted"},
}
BFCL = {
    "id": "multi_turn_base_0",
    "result": [[[{"mv": '{"source": "a"}'}], "Moved."]],
    "input_token_count": [[1, 1]],
    "inference_log": [
        [{"role": "state_info", "class_name": "GorillaFileSystem", "content": {}}],
        {
            "begin_of_turn_query": [{"role": "user", "content": "move a"}],
            "step_0": [
                {"role": "assistant", "content": [{"mv": '{"source": "a"}'}], "reasoning_content": "move"},
                {
                    "role": "handler_log",
                    "content": "Successfully decoded",
                    "model_response_decoded": ["mv(source='a')"],
                },
                {"role": "tool", "content": '{"result": "moved"}'},
            ],
            "step_1": [
                {"role": "assistant", "content": "Moved."},
                {"role": "handler_log", "content": "Error decoding the model response.", "error": "x"},
            ],
        },
    ],
}


def spans(*, messages: list[dict[str, Any]]) -> dict[str, Any]:
    return dict(json.loads(next(iter(agentpile.load({"messages": messages}))).to_otlp()))


CHAT = [
    {"role": "user", "content": "do it"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    {"role": "assistant", "content": "Done."},
]
RECORD = {"sessionId": "s1", "version": "2.1.0", "cwd": "/w", "isSidechain": False}
SESSION = [
    {"type": "summary", "summary": "x", "leafUuid": "u0"},
    {**RECORD, "type": "user", "uuid": "u1", "parentUuid": None, "message": {"role": "user", "content": "do it"}},
    {
        **RECORD,
        "type": "assistant",
        "uuid": "u2",
        "parentUuid": "u1",
        "message": {
            "id": "m1",
            "role": "assistant",
            "model": "claude",
            "content": [{"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "ls"}}],
        },
    },
    {
        **RECORD,
        "type": "user",
        "uuid": "u3",
        "parentUuid": "u2",
        "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "a.py"}]},
    },
    {
        **RECORD,
        "type": "system",
        "subtype": "compact_boundary",
        "uuid": "u4",
        "parentUuid": "u3",
        "content": "compacted",
    },
    {
        **RECORD,
        "type": "assistant",
        "uuid": "u5",
        "parentUuid": "u3",
        "message": {"id": "m2", "role": "assistant", "model": "claude", "content": [{"type": "text", "text": "Done."}]},
    },
]


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path, name: str = "auto") -> Reading:
    return read_files([(path, name)])


def only(reading: Reading) -> Trajectory:
    assert not reading.set_aside, reading.set_aside
    [trajectory] = reading.trajectories
    return trajectory


def test_the_spec_names_every_format_that_can_be_read() -> None:
    assert set(get_args(CorpusFormat)) == {"auto", *PARSERS, *FILE_READERS}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("sharegpt", SHAREGPT),
        ("toucan", TOUCAN),
        ("swe-agent", SWE_AGENT),
        ("bfcl", BFCL),
        ("openai", {"messages": CHAT}),
    ],
)
def test_rows_are_told_by_content_and_marked_with_their_format(name: str, row: Any, tmp_path: Path) -> None:
    assert detect(row) == name
    path = write(tmp_path / "rows.jsonl", row)
    auto = only(read(path))
    assert (auto.format, auto) == (name, only(read(path, name)))


def test_sharegpt_calls_and_observations_become_turns() -> None:
    t = parse_auto(SHAREGPT, "x:1")
    assert (t.system, t.head, [turn.content for turn in t.turns]) == ("be brief", ("do it",), ["", "Done."])
    assert t.turns[0].calls[0].parsed() == {"a": 1} and t.turns[0].results == ("ok",)
    assert t.licence == "CC-BY-4.0" and [x["name"] for x in t.tools] == ["f"]


@pytest.mark.parametrize("observations", [['["one", {"n": 2}]'], ["one", '{"n": 2}']])
def test_sharegpt_parallel_calls_take_a_list_or_one_observation_each(observations: list[str]) -> None:
    calls = json.dumps([{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 2}}])
    said = [("human", "x"), ("function_call", calls), *(("observation", o) for o in observations), ("gpt", "y")]
    t = parse_auto({"conversations": [{"from": who, "value": value} for who, value in said]}, "x:1")
    assert t.turns[0].results == ("one", '{"n": 2}') and len(t.turns[0].calls) == 2
    assert [x["function"]["name"] for x in t.tools] == ["f"]


def test_toucan_pairs_results_by_name_and_leaves_the_tool_preamble_out() -> None:
    t = parse_auto(TOUCAN, "x:1")
    assert t.system is None and t.turns[0].results == ("from f", "from g")
    assert t.turns[1].reasoning == "both answered" and t.outcome.success is None
    assert t.labels["judged"] == 4.5 and t.licence and t.licence.startswith("Apache-2.0")


@pytest.mark.parametrize("call", ['{"name": "f", "arguments": {"a": 1}}', "{'name': 'f', 'arguments': '{\"a\": 1}'}"])
def test_toucan_roles_of_its_sft_part(call: str) -> None:
    said = [("user", "x"), ("tool_call", call), ("tool_response", "ok"), ("assistant", "y")]
    messages = [{"role": role, "content": text} for role, text in said]
    t = parse_auto({"uuid": "u", "messages": messages, "tools": json.dumps([TOOL]), "target_tools": "f"}, "x:1")
    assert t.turns[0].calls[0].parsed() == {"a": 1} and t.turns[0].results == ("ok",)


def test_toucan_is_read_from_its_parquet_files(tmp_path: Path) -> None:
    pl.DataFrame([TOUCAN, {**TOUCAN, "messages": "[{"}]).write_parquet(tmp_path / "train.parquet")
    reading = read(tmp_path / "train.parquet")
    assert [t.id for t in reading.trajectories] == ["u1"]
    assert str(reading.set_aside[0]).startswith(f"{tmp_path}/train.parquet:2: `messages` is not JSON")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    assert read(tmp_path / "bad.parquet").set_aside[0].reason.startswith("not Parquet")


def test_swe_agent_leaves_demonstrations_out_and_keeps_the_last_call(tmp_path: Path) -> None:
    path = tmp_path / "django__django-1.traj"
    path.write_text(json.dumps(SWE_AGENT, indent=2))
    t = only(read(path))
    assert (t.task.id, t.head, t.labels["exit_status"]) == ("django__django-1", ("fix it",), "submitted")
    assert [c.name for turn in t.turns for c in turn.calls] == ["bash", "submit"] and t.turns[1].results == ("",)
    assert source_files(str(tmp_path), tmp_path) == [path]


def test_a_real_swe_agent_run() -> None:
    path = DATA / "swe-agent" / "function_calling_simple.traj"
    if not path.is_file():
        pytest.fail(f"{path}: not there. Put SWE-agent's demonstration there, or set CURATEEVO_TEST_DATA")
    t = only(read(path))
    names = [c.name for turn in t.turns for c in turn.calls]
    assert (t.format, names) == ("swe-agent", ["find_file", "open", "edit", "bash", "submit"])
    assert t.head[0].startswith("We're currently solving") and all(turn.results[0] for turn in t.turns)


def test_bfcl_logs_of_models_with_function_calling() -> None:
    t = parse_auto(BFCL, "x:1")
    assert (t.task.id, t.head, t.labels["category"]) == ("multi_turn_base_0", ("move a",), "multi_turn_base")
    assert t.turns[0].calls[0].parsed() == {"source": "a"} and t.turns[0].results == ('{"result": "moved"}',)
    assert (t.turns[0].reasoning, t.turns[1].content, t.turns[1].calls) == ("move", "Moved.", ())


def test_bfcl_logs_of_models_that_write_python() -> None:
    step = [
        {"role": "assistant", "content": "[mv(source='a', force=True)]"},
        {"role": "handler_log", "content": "x", "model_response_decoded": ["mv(source='a', force=True)"]},
        {"role": "tool", "content": "moved"},
    ]
    log = [{"begin_of_turn_query": [{"role": "user", "content": "move a"}], "step_0": step}]
    t = parse_auto({**BFCL, "inference_log": log}, "x:1")
    assert t.turns[0].calls[0].parsed() == {"source": "a", "force": True} and t.turns[0].content == ""


def test_a_claude_code_session_is_one_trajectory(tmp_path: Path) -> None:
    path = write(tmp_path / "s1.jsonl", *SESSION)
    t = only(read(path))
    assert (t.format, t.head, t.id) == ("claude-code", ("do it",), "s1")
    assert t.turns[0].calls[0].parsed() == {"command": "ls"} and t.turns[0].results == ("a.py",)
    assert [x["function"]["name"] for x in t.tools] == ["Bash"] and t.labels["model"] == "claude"
    path.write_text(path.read_text() + "{broken\n")
    reading = read(path, "claude-code")
    assert len(reading.trajectories) == 1 and reading.set_aside[0].line == 7


def test_otlp_traces_are_trajectories_and_foreign_spans_are_set_aside(tmp_path: Path) -> None:
    foreign = {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "a" * 32, "spanId": "b" * 16, "name": "x"}]}]}]}
    path = write(tmp_path / "traces.jsonl", spans(messages=CHAT), foreign)
    path.write_text(path.read_text() + "{broken\n")
    reading = read(path)
    [t] = reading.trajectories
    assert (t.format, t.head) == ("otlp", ("do it",)) and t.turns[0].results == ("ok",)
    assert sorted(s.line for s in reading.set_aside) == [2, 3]
    assert any("unsupported dialect" in s.reason for s in reading.set_aside)


def test_a_call_that_nothing_answers_may_only_end_the_log() -> None:
    t = parse_auto({"messages": CHAT[:2]}, "x:1")
    check(t)
    assert t.turns[-1].results == ("",)
    with pytest.raises(RowInvalid, match="has no result"):
        parse_auto({"messages": [*CHAT[:2], CHAT[3]]}, "x:1")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"conversations": "x"}, "list `conversations`"),
        ({"conversations": [{"from": "tool", "value": "x"}]}, "unknown speaker 'tool'"),
        ({"conversations": [{"from": "human"}]}, "text `value`"),
        ({"conversations": [{"from": "function_call", "value": "{"}]}, "`function_call` is not JSON"),
        ({"conversations": [{"from": "function_call", "value": "[1]"}]}, "a call must be an object"),
        ({"conversations": [{"from": "observation", "value": "x"}]}, "answers no call"),
        ({**TOUCAN, "messages": "{}"}, "a list or its JSON text"),
        ({**TOUCAN, "messages": [{"role": "robot"}]}, "unknown role 'robot'"),
        ({**TOUCAN, "messages": [{"role": "tool_call", "content": "f(1)"}]}, "neither JSON nor"),
        ({**TOUCAN, "available_tools": "[{}]"}, "`tools` must be"),
        ({"history": [1]}, "object with a role"),
        ({"history": [{"role": "tool", "content": "x"}]}, "tool_call_ids"),
        ({"id": "simple_python_0", "result": [{"f": "{}"}], "input_token_count": 1}, "single-turn results"),
        ({"id": "x", "result": "Error during inference: timeout", "traceback": "x"}, "could not run it: Error"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(row: Any, reason: str) -> None:
    with pytest.raises(RowInvalid, match=reason):
        parse_auto(row, "x:1")


def test_python_calls_are_read_but_never_run() -> None:
    step = [
        {"role": "assistant", "content": "[f(a=__import__('os').getpid())]"},
        {"role": "handler_log", "model_response_decoded": ["f(a=__import__('os').getpid())"]},
        {"role": "tool", "content": "x"},
    ]
    log = [{"begin_of_turn_query": [{"role": "user", "content": "x"}], "step_0": step}]
    with pytest.raises(RowInvalid, match="can't be read"):
        parse_auto({**BFCL, "inference_log": log}, "x:1")


def test_formats_and_licences_of_a_mixed_folder_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", SHAREGPT, TOUCAN, {"messages": CHAT}, {"messages": CHAT})
    write(tmp_path / "b.jsonl", *SESSION)
    reading = read_files([(p, "auto") for p in source_files(str(tmp_path), tmp_path)])
    formats = Counter(t.format for t in reading.trajectories)
    assert formats == {"openai": 2, "sharegpt": 1, "toucan": 1, "claude-code": 1}
    licences = Counter(t.licence for t in reading.trajectories)
    assert licences == {None: 3, "CC-BY-4.0": 1, "Apache-2.0 (Agent-Ark/Toucan-1.5M)": 1}
