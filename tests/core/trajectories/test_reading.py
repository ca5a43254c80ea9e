"""Rows to turns: what is legal, what is set aside with file, line and reason, and when the ingest gives up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.api.errors import CorpusInvalid
from curateevo.trajectories.corpus import read_trajectories, write_trajectories
from curateevo.trajectories.formats.atif_steps import conversation, read_record, unique_call_ids
from curateevo.trajectories.formats.detect import detect, parse_auto
from curateevo.trajectories.formats.documents import MAX_LINE_BYTES, documents
from curateevo.trajectories.formats.openai import parse_openai
from curateevo.trajectories.formats.plain_chat import read_plain
from curateevo.trajectories.model import RowInvalid, Trajectory, check
from curateevo.trajectories.reading import enforce_limit, source_files, unique_ids, write_set_aside
from tests.core.trajectories.sources import read_files

TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
]


def call(call_id: str = "c1", name: str = "f", arguments: Any = '{"a": 1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def row(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "t1", "messages": list(messages), "tools": TOOLS, **more}


USER = {"role": "user", "content": "do it"}
ASK = {"role": "assistant", "content": None, "tool_calls": [call()]}
ANSWER = {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "ok"}
DONE = {"role": "assistant", "content": "Done."}


def test_messages_become_turns_in_which_calls_and_results_stay_together() -> None:
    t = parse_openai(row({"role": "system", "content": "s"}, USER, ASK, ANSWER, DONE, success=True), "x:1")
    assert (t.system, t.head, len(t.turns)) == ("s", ("do it",), 2)
    assert t.turns[0].calls[0].parsed() == {"a": 1} and t.turns[0].results == ("ok",)
    assert t.outcome.success is True
    assert t.messages()[3] == {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "ok"}
    assert [m["role"] for m in t.messages([1])] == ["system", "user", "assistant"]


def test_half_of_a_surrogate_pair_costs_its_row_alone(tmp_path: Path) -> None:
    rows = [json.dumps(row(USER, {"role": "assistant", "content": text})) for text in ("a", "b \ud800", "c")]
    for name, text in (("x.jsonl", "\n".join(rows)), ("x.json", f"[{', '.join(rows)}]")):
        (tmp_path / name).write_text(text)
        problems = [document.problem for document in documents(tmp_path / name)]
        assert problems[0] is problems[2] is None and "half of a surrogate pair" in str(problems[1])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row(USER, DONE, ANSWER), "orphan tool result"),
        (row(ANSWER, USER, DONE), "before any call"),
        (row(USER, ASK, DONE), "has no result"),
        (row(USER, ASK, ANSWER, ANSWER, DONE), "two results"),
        (row(USER, ASK, ANSWER, {"role": "system", "content": "x"}, DONE), "system message after"),
        (row(USER), "no assistant message"),
        (row(DONE), "no user message"),
        (row(), "no assistant message|no user message"),
        (row(USER, DONE, success="yes"), "`success` must be"),
        (row(USER, DONE, reward="high"), "`reward` must be"),
        (row(USER, DONE, task=3), "`task` must be an object"),
        (row(USER, DONE, task={"id": "t", "state": {}}), "JSON text"),
        ({**row(USER, DONE), "tools": [{"a": 1}]}, "`tools` must be"),
        ({"messages": "hi"}, "list `messages`"),
        ({"messages": [1]}, "object with a role"),
        ([], "no known format"),
        ({"what": 1}, "no known format"),
    ],
)
def test_illegal_rows_say_why(bad: Any, reason: str) -> None:
    with pytest.raises(RowInvalid, match=reason):
        check(parse_auto(bad, "x:1"))


def test_call_ids_that_a_log_repeats_are_told_apart() -> None:
    t = parse_openai(row(USER, ASK, ANSWER, ASK, {**ANSWER, "content": "again"}, DONE), "x:1")
    check(t)
    assert [turn.results for turn in t.turns] == [("ok",), ("again",), ()]


def test_arguments_that_do_not_parse_are_kept_as_they_were() -> None:
    bad = {"role": "assistant", "content": "", "tool_calls": [call(arguments="{a: 1")]}
    t = parse_openai(row(USER, bad, ANSWER, DONE), "x:1")
    assert t.turns[0].calls[0].arguments == "{a: 1" and t.turns[0].calls[0].parsed() is None


def test_formats_are_told_by_content() -> None:
    assert detect(row(USER)) == "openai"
    assert detect({"task_id": 1, "traj": [], "reward": 1}) == "tau-bench"
    assert detect({"schema_version": "ATIF-v1.7", "steps": []}) == "atif"
    assert detect({"x": 1}) is None and detect(3) is None


def test_tau_bench_runs_and_their_observed_tools() -> None:
    t = parse_auto({"task_id": 7, "trial": 2, "reward": 1.0, "info": {}, "traj": [USER, ASK, ANSWER, DONE]}, "x:1")
    assert (t.id, t.task.id, t.outcome.success) == ("tau-bench/7/2", "tau-bench/7", True)
    assert t.tools[0]["function"]["parameters"]["properties"] == {"a": {"type": "integer"}}


def test_atif_records() -> None:
    import agentpile

    record = json.loads(next(iter(agentpile.load({"messages": [USER, ASK, ANSWER, DONE]}))).to_json())
    t = parse_auto(record, "x:1")
    assert [len(turn.calls) for turn in t.turns] == [1, 0] and t.head == ("do it",)


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)
turns = st.lists(st.tuples(st.booleans(), texts, st.integers(0, 2), texts), min_size=1, max_size=6)


@given(turns, texts)
@settings(max_examples=60)
def test_turns_to_messages_and_back_is_the_identity(shape: list[tuple[bool, str, int, str]], opening: str) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": opening}]
    for number, (user, content, calls, result) in enumerate(shape):
        if user and number:
            messages.append({"role": "user", "content": content})
        made = [call(f"c{number}-{k}") for k in range(calls)]
        messages.append({"role": "assistant", "content": content, **({"tool_calls": made} if made else {})})
        messages += [{"role": "tool", "tool_call_id": c["id"], "name": "f", "content": result} for c in made]
    first = parse_openai({"messages": messages, "tools": TOOLS}, "x")
    again = parse_openai({"messages": first.messages(), "tools": TOOLS}, "x")
    assert (again.turns, again.head, again.system) == (first.turns, first.head, first.system)
    assert len(first.messages()) == len(messages)


plain_calls = st.lists(st.sampled_from(["c1", "c2", "c3", "c4"]), max_size=2, unique=True)
odd_messages = st.sampled_from(
    [
        {"role": "assistant"},
        {"role": "assistant", "content": [{"type": "text", "text": "parts"}], "reasoning_content": "why"},
        {"role": "assistant", "content": "x", "reasoning_content": 3},
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c5", "function": {"name": "f"}}]},
        {"role": "assistant", "content": "", "tool_calls": [call("c6", arguments="[1]")]},
        {"role": "assistant", "content": "", "tool_calls": [call("", name="g")]},
        {"role": "assistant", "content": "", "tool_calls": ["f"]},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image_url"}], "name": "u"},
        {"role": "user", "content": None},
        {"role": "developer", "content": "be brief"},
        {"role": "system", "content": "s"},
        {"role": "tool", "tool_call_id": "c1", "content": ["late"]},
        {"role": "function", "name": "f", "content": "legacy"},
    ]
)


@st.composite
def chats(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Chats as most are, with some odd message now and then, and results that may be missing or out of order."""
    out: list[dict[str, Any]] = draw(st.sampled_from([[], [{"role": "system", "content": "s"}]]))[:]
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.integers(0, 9)) == 0:
            out.append(draw(odd_messages))
        if draw(st.booleans()):
            out.append({"role": "user", "content": draw(texts)})
        ids = draw(plain_calls)
        arguments = draw(
            st.sampled_from(['{"a": 1}', '{"a":1}', "{}", '{"é": "\\u00fc", "b": [1.50, null]}', {"a": 2}])
        )
        made = [call(name, arguments=arguments) for name in ids]
        more = draw(st.sampled_from([{}, {"reasoning_content": "hm"}, {"name": "bot"}]))
        out.append(
            {"role": "assistant", "content": draw(texts | st.none()), **({"tool_calls": made} if made else {}), **more}
        )
        results = [{"role": "tool", "tool_call_id": name, "name": "f", "content": draw(texts)} for name in ids]
        out += draw(st.permutations(results))[: len(results) - (draw(st.integers(0, 9)) == 0)]
    return out


@given(chats())
@settings(max_examples=400)
def test_plain_chats_are_read_as_agentpile_reads_them(messages: list[dict[str, Any]]) -> None:
    if (found := read_plain(messages)) is not None:
        read = conversation(read_record({"messages": unique_call_ids(messages)}, "openai-messages").steps)
        assert found == read


def test_chats_as_most_are_are_plain() -> None:
    system = {"role": "system", "content": "s"}
    assert read_plain([system, USER, ASK, ANSWER, DONE, USER]) is not None
    assert read_plain([USER, {**ASK, "tool_calls": [call(), call("c2")]}, {**ANSWER, "tool_call_id": "c2"}, ANSWER])
    assert read_plain([USER, ASK, DONE]) is None and read_plain([USER, ASK, ANSWER, ASK, ANSWER]) is None


def jsonl(path: Path, *lines: bytes | dict[str, Any]) -> Path:
    path.write_bytes(b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines) + b"\n")
    return path


def test_broken_lines_are_set_aside_with_file_line_and_reason(tmp_path: Path) -> None:
    good = row(USER, ASK, ANSWER, DONE)
    path = jsonl(
        tmp_path / "c.jsonl",
        good,
        b'{"messages": [',
        b"\xff\xfe{}",
        good,
        row(USER, DONE, ANSWER),
        b"[1, 2",
        good,
    )
    reading = read_files([(path, "auto")])
    assert len(reading.trajectories) == 3 and len(reading.set_aside) == 4
    assert [(s.line, s.reason.split(":")[0].split(" at ")[0]) for s in reading.set_aside][:2] == [
        (2, "not JSON"),
        (3, "not UTF-8"),
    ]
    assert str(reading.set_aside[0]).startswith(f"{path}:2: not JSON")
    ids = [t.id for t in reading.trajectories]
    used: dict[str, int] = {}
    assert unique_ids(ids[:2], used) + unique_ids(ids[2:], used) == ["t1", "t1#2", "t1#3"]
    with pytest.raises(CorpusInvalid) as caught:
        enforce_limit(3, reading.set_aside, 0.02)
    assert (
        "4 of 7 rows" in str(caught.value)
        and f"{path}:5" in str(caught.value)
        and "maxSetAsideFraction" in str(caught.value)
    )
    enforce_limit(3, reading.set_aside, 0.6)
    write_set_aside(reading.set_aside, tmp_path / "set_aside.jsonl")
    assert len((tmp_path / "set_aside.jsonl").read_text().splitlines()) == 4


def test_a_truncated_array_keeps_its_whole_items(tmp_path: Path) -> None:
    run = {"task_id": 1, "reward": 0.0, "traj": [USER, DONE]}
    text = json.dumps([run, run, run])
    (tmp_path / "cut.json").write_text(text[: len(text) - 40])
    reading = read_files([(tmp_path / "cut.json", "tau-bench")])
    assert len(reading.trajectories) == 2 and "not JSON from here on" in reading.set_aside[0].reason
    (tmp_path / "open.json").write_text(text[:-1])
    assert "cut off" in read_files([(tmp_path / "open.json", "auto")]).set_aside[0].reason


def test_a_line_of_200_mb_is_skipped_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("wb") as out:
        for _ in range(200):
            out.write(b"x" * 1_000_000)
        out.write(b"\n" + json.dumps(row(USER, DONE)).encode() + b"\n")
    reading = read_files([(path, "openai")])
    assert len(reading.trajectories) == 1
    assert (reading.set_aside[0].line, reading.set_aside[0].reason) == (
        1,
        f"line is longer than {MAX_LINE_BYTES >> 20} MiB",
    )


def test_deep_nesting_does_not_end_the_file(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "deep.jsonl", b"[" * 100_000, row(USER, DONE))
    assert [d.problem is None for d in documents(path)][-1] or path
    assert len(read_files([(path, "openai")]).trajectories) <= 1


def test_an_empty_corpus_and_a_missing_one_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(CorpusInvalid, match="corpus is empty"):
        enforce_limit(len(read_files([(tmp_path / "empty.jsonl", "auto")]).trajectories), [], 0.02)
    with pytest.raises(CorpusInvalid, match="no such file"):
        source_files("nothing/*.json", tmp_path)


def test_parquet_keeps_every_trajectory_and_no_null_arguments(tmp_path: Path) -> None:
    other = {"role": "assistant", "content": "", "tool_calls": [call("c1", "g", '{"b": "x", "n": null}')]}
    made: list[Trajectory] = [
        parse_openai(row(USER, ASK, ANSWER, DONE), "x:1"),
        parse_openai({**row(USER, other, ANSWER, DONE), "id": "t2"}, "x:2"),
    ]
    write_trajectories(made, tmp_path)
    assert list(read_trajectories(tmp_path).values()) == made
    assert list(read_trajectories(tmp_path, [1])) == [1]
    assert read_trajectories(tmp_path)[1].turns[0].calls[0].parsed() == {"b": "x", "n": None}
