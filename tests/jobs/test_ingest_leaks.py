"""Ingest keeps out what contains a dev task, and says which words gave it away."""

from __future__ import annotations

import json
import os
from pathlib import Path, PosixPath
from typing import Any

import polars as pl
import pytest

from curateevo.api.errors import CorpusInvalid, Transient
from curateevo.api.evolution import Stage
from curateevo.api.spec import BaseModelRef, Corpus, CorpusSource, Splits, SuiteRef
from curateevo.api.stage import IngestParams, Manifest, StageRequest, StoreRef
from curateevo.report.leaks import leaks_of
from curateevo.trajectories import corpus as layout
from curateevo.trajectories.formats.openai import parse_openai
from curateevo.trajectories.model import Trajectory
from curateevo.trajectories.reading import write_set_aside
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.toolworld.corpus import generate
from curateevo_jobs.ingest import held_runs
from curateevo_jobs.intake import Batch, file_batches, row_batches, take_in
from curateevo_jobs.program import run_stage
from tests.jobs.test_train_support import Seen


def talk(name: str, *said: str) -> Any:
    messages = [m for text in said for m in ({"role": "user", "content": text}, {"role": "assistant", "content": "ok"})]
    return parse_openai({"id": name, "messages": messages}, f"{name}:1")


def leaks(folder: Path, runs: list[Trajectory], prompts: dict[str, str]) -> tuple[list[str], list[str]]:
    """Ids of the runs that are kept, and why the others are not."""
    intake = take_in(row_batches(runs), folder, prompts, processes=1, on_rows=lambda rows: None)
    return intake.rows().collect()["id"].to_list(), [item.reason for item in intake.leaked]


def test_a_dev_task_is_found_wherever_the_user_says_it(tmp_path: Path) -> None:
    long = "please book the cheapest flight from new york to seattle on may twentieth for two people"
    kept, leaked = leaks(tmp_path, [talk("a", "hello"), talk("b", "hello", f"and now {long}")], {"dev/1": long})
    assert kept == ["a"]
    assert leaked == [f"b: it shares 13 words in a row with dev task dev/1: {' '.join(long.split()[:13])!r}"]


def test_tasks_of_a_real_suite_are_found_by_their_prompts(tmp_path: Path) -> None:
    tasks = registry.suite("toolworld").tasks({})[:20]
    prompts = {t.id: "\n".join(str(m["content"]) for m in t.messages if m["role"] == "user") for t in tasks}
    kept, leaked = leaks(tmp_path, [talk(f"run-{n}", p) for n, p in enumerate(prompts.values())], prompts)
    assert not kept and len(leaked) == 20
    assert all("dev task" in reason for reason in leaked)


def test_many_processes_read_what_one_does(tmp_path: Path) -> None:
    """Rows, features, names, what is set aside, and the bytes of the corpus."""
    rows, _ = generate(0)
    lines = [json.dumps(row) for row in rows[:1200]]
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join([*lines[:700], "{", *lines[700:], *lines[:3]]))
    prompt = next(str(m["content"]) for m in rows[5]["messages"] if m["role"] == "user")
    found = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        (folder / "out").mkdir(parents=True)
        batches = file_batches(source, "toolworld")
        intake = take_in(batches, folder, {"dev/5": prompt}, processes=processes, on_rows=lambda rows: None)
        layout.write_rows(intake.rows(), folder / "out")
        made = [(folder / "out" / name).read_bytes() for name in (layout.TRAJECTORIES, layout.SEALED_TASKS)]
        found.append((made, intake.features().collect().write_json(), intake.set_aside, intake.leaked, intake.formats))
    assert found[0] == found[1]
    ids = pl.read_parquet(tmp_path / "1" / "out" / layout.TRAJECTORIES)["id"].to_list()
    assert ids[-3:] == [f"{row['id']}#2" for row in rows[:3]]
    assert [item.line for item in found[0][2]] == [701] and found[0][3]


def test_a_reading_process_that_dies_is_named(tmp_path: Path) -> None:
    with pytest.raises(Transient, match="reads the corpus died"):
        take_in([Batch([], Fatal("x"))], tmp_path, {}, processes=2, on_rows=lambda rows: None)


class Fatal(PosixPath):
    """Ends the process that unpickles it."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def test_a_corpus_of_which_nothing_is_left_says_how_many_were_held_out_and_why(tmp_path: Path) -> None:
    """Before anything asks for dev tasks, or for scores of turns."""
    task = registry.suite("toolworld").tasks({})[0]
    prompt = next(str(m["content"]) for m in task.messages if m["role"] == "user")
    rows = [*generate(0)[0][:2], {"id": "copy", "messages": [{"role": "user", "content": prompt}, HELLO]}]
    talk_only = [{"id": "talk", "messages": [{"role": "user", "content": "hi"}, HELLO]}]
    everything = SuiteRef(name="corpus", params={"fraction": 1.0})
    for grace in (False, True):
        with pytest.raises(CorpusInvalid) as caught:
            ingest_rows(tmp_path / f"both-{grace}", rows, (everything, SuiteRef(name="toolworld")), grace=grace)
        first, why, *_ = str(caught.value).splitlines()
        assert "all 3 trajectories were held out" in first
        assert "2 of tasks that suite corpus holds out and 1 with a dev task in them" in first
        assert f"copy: its prompt equals that of dev task {task.id}" in why
        with pytest.raises(CorpusInvalid, match="all 1 trajectories were held out, 1 of tasks that suite corpus"):
            ingest_rows(tmp_path / f"talk-{grace}", talk_only, (everything,), grace=grace)


HELLO = {"role": "assistant", "content": "hello"}


def ingest_rows(folder: Path, rows: list[dict[str, Any]], suites: tuple[SuiteRef, ...], *, grace: bool) -> Manifest:
    folder.mkdir()
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    params = IngestParams(
        corpus=Corpus(sources=(CorpusSource(uri=str(source)),), grace=grace),
        suites=suites,
        splits=Splits(),
        model=BaseModelRef(base="builtin://toolworld") if grace else None,
    )
    request = StageRequest(
        evolution_uid="u", stage=Stage.INGEST, attempt=1, store=StoreRef(uri=(folder / "store").as_uri()), prefix="a",
        inputs={}, params=params,
    )  # fmt: skip
    return run_stage(request, Seen())


def test_the_report_reads_what_ingest_writes(tmp_path: Path) -> None:
    long = "please book the cheapest flight from new york to seattle on may twentieth for two people"
    prompts = {"flights/1": long, "cars/1: a red one": "a red car, please"}
    runs = [talk("a", f"Hi: {long}"), talk("b", long), talk("c", "a red car, please"), talk("d", "hello")]
    intake = take_in(row_batches(runs), tmp_path, prompts, processes=1, on_rows=lambda rows: None)
    write_set_aside([*intake.leaked, *held_runs(intake.rows())], tmp_path / "leaked.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "leaked.jsonl").read_text().splitlines()]
    cars, flights, held_out = leaks_of(rows, ["cars", "flights", "corpus"])
    assert (flights.suite, flights.count, flights.tasks) == ("flights", 2, 1)
    [first] = flights.examples
    assert (first.run, first.how) == ("a:1: a", "it shares 13 words in a row with dev task")
    assert first.quote == repr(" ".join(long.split()[:13]))
    assert [(e.task, e.how, e.quote) for e in cars.examples] == [
        ("cars/1: a red one", "its prompt equals that of dev task", "'a red car please'")
    ]
    assert (held_out.suite, held_out.count, held_out.tasks) == ("corpus", 1, 0)
