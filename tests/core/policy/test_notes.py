"""Notes say what their references hold, in names where values belong to another case, and always fit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.api.errors import PolicyRejected
from curateevo.policy import api
from curateevo.policy.gate import check_contract
from curateevo.policy.materialise import Material, Source, materialise
from curateevo.policy.notes import MAX_NOTE_CHARS, TITLE_CHARS, render_note
from curateevo.policy.operators.items import Corpus, MemoryItem, NoteKind
from curateevo.policy.recipe import Recipe, decode, encode
from curateevo.policy.source import STAGES
from curateevo.trajectories.features import features_of
from curateevo.trajectories.formats.openai import parse_openai
from curateevo.trajectories.model import Call, RunOutcome, TaskRef, Trajectory, Turn

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "ship",
            "description": "Send a parcel.",
            "parameters": {
                "type": "object",
                "properties": {"to": {"type": "string"}, "code": {"type": "string"}},
                "required": ["to"],
            },
        },
    },
    {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}},
]
LINES = dict.fromkeys(STAGES, 1)
Step = tuple[str, dict[str, str], str]


def run(number: int, steps: list[Step], *, success: bool | None = True, tag: str | None = "ship") -> Trajectory:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"please ship parcel {number}"}]
    for n, (name, arguments, result) in enumerate(steps):
        made = {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": f"c{n}", "name": name, "content": result},
        ]
    messages.append({"role": "assistant", "content": "Done."})
    task = {"id": f"task{number // 2}", "tags": [tag] if tag else []}
    return parse_openai(
        {"id": f"t{number}", "messages": messages, "tools": TOOLS, "success": success, "task": task}, "x"
    )


def corpus_of(made: list[Trajectory]) -> Corpus:
    frame = features_of(made)
    return Corpus({c: frame[c].to_list() for c in frame.columns}, lambda wanted: {n: made[n] for n in wanted})


def source_of_rows(corpus: Corpus) -> Source:
    columns = (corpus.column(name) for name in ("id", "family", "turns"))
    return Source(corpus.trajectories(range(len(corpus))), *columns)


def texts(corpus: Corpus, notes: tuple[MemoryItem, ...]) -> list[str]:
    """Contents as curation writes them, after the way out of the sandbox."""
    answer = {**encode(api.Resources(corpus.items(), (), notes)), "logs": [], "metrics": {}}
    recipe = decode(json.loads(json.dumps(answer)), corpus.column("turns"))
    assert recipe.memory == notes
    material = materialise(recipe, source_of_rows(corpus))
    check_contract(material, LINES, dev_prompts={})
    return [row["content"] for row in material.memory]


GOOD: list[Step] = [("look_up", {"name": "Ana"}, "ok Ana code willow"), ("ship", {"to": "Ana", "code": "willow"}, "ok")]
BAD: list[Step] = [("ship", {"to": "Ana"}, "error: code missing for order 17")]
MENDED: list[Step] = [*BAD, *GOOD]
RETRIED: list[Step] = [
    ("ship", {"to": "Bob", "code": "elm"}, "error: wrong code 3"),
    ("ship", {"to": "Bob", "code": "oak"}, "ok"),
]


def test_tools_are_described_by_their_schema_the_most_called_first() -> None:
    corpus = corpus_of([run(0, GOOD), run(1, RETRIED)])
    notes = api.memory_tools(corpus.items(), limit=5)
    assert texts(corpus, notes) == ["ship(to: string, code?: string): Send a parcel.", "look_up()"]
    assert api.memory_tools(corpus.items(), limit=1) == notes[:1]


def test_constraints_are_errors_that_differ_in_more_than_numbers_and_own_values() -> None:
    other = [("ship", {"to": "Eve"}, "error: code missing for order 99")]
    corpus = corpus_of([run(0, BAD), run(1, other), run(2, RETRIED)])
    assert texts(corpus, api.memory_constraints(corpus.items(), limit=9)) == [
        "ship may answer: error: code missing for order 17",
        "ship may answer: error: wrong code 3",
    ]


def test_recoveries_say_in_names_what_the_next_good_call_does() -> None:
    corpus = corpus_of([run(0, MENDED), run(1, RETRIED), run(2, BAD)])
    assert texts(corpus, api.memory_recoveries(corpus.items(), limit=9)) == [
        'When ship answers "error: code missing for order 17", call look_up(name).',
        'When ship answers "error: wrong code 3", call it again with another code.',
    ]


@pytest.mark.parametrize(("tag", "head"), [("ship", "ship"), (None, "such a task")])
def test_rules_hold_what_succeeds_against_what_fails(tag: str | None, head: str) -> None:
    made = [run(0, GOOD, tag=tag), run(1, BAD, success=False, tag=tag)]
    corpus = corpus_of(made)
    notes = api.memory_rules(corpus.items(), limit=9)
    assert texts(corpus, notes) == [f"For {head}: look_up, then ship. Not: ship."]
    assert [(n.row, n.against) for n in notes] == [(0, 1)]
    assert api.memory_rules(corpus_of([made[1]]).items(), limit=9) == (), "nothing succeeds here"


@pytest.mark.parametrize(
    "note",
    [
        MemoryItem(0, 2, 0, 0, 1, "ship", (), NoteKind.RECOVERY),
        MemoryItem(0, 0, 0, 0, 1, "ship", (), NoteKind.RECOVERY),
        MemoryItem(0, 0, 0, 0, 1, "ship", (), NoteKind.CONSTRAINT),
        MemoryItem(0, 0, 1, 0, 1, "ship", (), NoteKind.TOOL),
        MemoryItem(1, 0, 0, 0, 1, "ship", (), NoteKind.RULE),
        MemoryItem(0, 0, 0, 0, 1, "ship", (), NoteKind.RULE, against=0),
        MemoryItem(1, 0, 0, 0, 1, "ship", (), NoteKind.RECOVERY),
    ],
    ids=["no call", "no error", "no error to warn of", "no such call", "no success", "no failure", "no recovery"],
)
def test_a_note_that_its_reference_does_not_bear_out_is_refused(note: MemoryItem) -> None:
    corpus = corpus_of([run(0, GOOD), run(1, BAD, success=False)])
    material = materialise(Recipe((), (), (note,), (), {}), source_of_rows(corpus))
    assert [row["content"] for row in material.memory] == [""]
    with pytest.raises(PolicyRejected, match="^memory-size"):
        check_contract(material, LINES, dev_prompts={})


def test_a_title_may_hold_no_dev_task_either() -> None:
    prompt = " ".join(f"word{n}" for n in range(20))
    row = {"title": prompt, "content": "fine", "scope": "s", "evidence": [["t0", 0]]}
    with pytest.raises(PolicyRejected, match="^no-dev-content"):
        check_contract(Material([], [], [row], [], 0, 0), LINES, dev_prompts={"d": prompt})


LONG = st.text("ab {}\"',.\n", max_size=2000)


@given(name=LONG, result=LONG, prompt=LONG, count=st.integers(1, 40))
@settings(max_examples=60)
def test_notes_that_are_written_fit_whatever_the_corpus_holds(name: str, result: str, prompt: str, count: int) -> None:
    tool = {"type": "function", "function": {"name": name, "description": prompt, "parameters": {}}}
    failed = Turn((), "", (Call("a", name, "{}"),), ("error " + result,))
    fine = tuple(Turn((), "", (Call(f"b{n}", f"{name}{n}", "{}"),), ("ok",)) for n in range(count))
    task = TaskRef("t", prompt, tags=(name,))
    source = Trajectory("t", "x", task, (tool,), None, (prompt,), (failed, *fine), outcome=RunOutcome(True))
    lost = replace(source, outcome=RunOutcome(False))
    for kind in NoteKind:
        if kind is not NoteKind.FACT:
            note = MemoryItem(0, 0, 0, 0, 2000, "s", (), kind, 1 if kind is NoteKind.RULE else None)
            title, content = render_note(note, {0: source, 1: lost}, name)
            assert 0 < len(content) <= MAX_NOTE_CHARS and len(title) <= TITLE_CHARS
