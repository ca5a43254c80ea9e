"""The evaluate program on the tiny untrained model, and the arithmetic of scores and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.errors import ContractBroken, Transient
from curateevo.api.spec import (
    Acceptance,
    AcceptanceRule,
    BaseModelRef,
    Evaluation,
    Focus,
    Memory,
    Sampling,
    Serving,
    SuiteRef,
)
from curateevo.api.stage import Against, EvaluateParams, EvaluateSummary, ScoreTable, Subject, SubjectKind
from curateevo.evolution.acceptance import Measured, compare
from curateevo_jobs.agents.chat import AnswerError
from curateevo_jobs.agents.episode import Episode
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.base import Task
from curateevo_jobs.evaluate import Trial, check_errors, evaluate, score_split, tabulate
from tests.jobs import test_train_support as support

SUITES = (SuiteRef(name="toolworld", params={"perSkill": 2}),)
SUBJECTS = (
    Subject(name="champion", kind=SubjectKind.MODEL),
    Subject(name="base", kind=SubjectKind.BASE),
    Subject(name="nothing", kind=SubjectKind.NOTHING),
)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.make_tiny_base(tmp_path_factory.mktemp("base"))


def params_for(base: Path, *subjects: Subject, temperature: float = 0.0, **changes: Any) -> EvaluateParams:
    sampling = Sampling(temperature=temperature, max_turns=3, max_tokens=6)
    fields: dict[str, Any] = {
        "subjects": subjects or SUBJECTS,
        "splits": ("sel", "test"),
        "model": BaseModelRef(base=f"file://{base}"),
        "evaluation": Evaluation(suites=SUITES, sampling=sampling, repeats=2),
        "memory": Memory(k=1),
        "serving": Serving(engine="transformers"),
        "serve_start_seconds": 60,
        "seed": 3,
    }
    return EvaluateParams(**{**fields, **changes})


def lay_in(inputs: Path, base: Path) -> list[Task]:
    """A champion that is the base, with a memory, and all tasks split in two."""
    champion = inputs / "champion"
    champion.mkdir(parents=True, exist_ok=True)
    if not (champion / "model").exists():
        (champion / "model").symlink_to(base)
    tasks = list(registry.suite("toolworld").tasks(SUITES[0].params))
    note = f"zebra {tasks[1].messages[0]['content']}"
    item = {"title": "", "content": note, "scope": "", "evidence": []}
    support.write_rows(champion / "memory.jsonl", [item])
    ids = [t.id for t in tasks]
    (inputs / "splits.json").write_text(json.dumps({"diag": [], "sel": ids[::2], "test": ids[1::2]}))
    return tasks


@pytest.mark.train
def test_scores_results_and_trajectories_come_out_in_order(base: Path, tmp_path: Path) -> None:
    params = params_for(base)
    run = support.make_run(tmp_path, params)
    tasks = lay_in(run.inputs, base)
    result = evaluate(run, params)
    assert result.volatile == {"timings.jsonl"}
    table = ScoreTable.model_validate_json((run.output / "sel/scores.json").read_text())
    assert list(table.tasks) == sorted(t.id for t in tasks[::2])
    assert set(table.scores) == {"champion", "base", "nothing"}
    assert all(len(repeats) == 1 for rows in table.scores.values() for repeats in rows)
    results = support.read_rows(run.output / "sel/results.jsonl")
    order = [(row["subject"], row["task"]) for row in results]
    assert order == [(s.name, i) for s in SUBJECTS for i in table.tasks]
    summary = result.summary
    assert isinstance(summary, EvaluateSummary)
    assert summary.scores["nothing"]["sel"].families["chat"] == 1.0
    assert summary.scores["nothing"]["sel"].tokens == 0
    assert summary.scores["base"]["test"].tokens > 0
    trajectories = support.read_rows(run.output / "test/trajectories.jsonl")
    with_notes = [t for t in trajectories if "zebra" in json.dumps(t["messages"])]
    assert with_notes
    assert {t["subject"] for t in with_notes} == {"champion"}
    assert all(t["messages"][0]["content"].startswith("notes:\nzebra ") for t in with_notes)


@pytest.mark.train
def test_equal_inputs_give_equal_files_when_sampled(base: Path, tmp_path: Path) -> None:
    params = params_for(base, SUBJECTS[0], temperature=1.0)
    written = []
    for name in ("one", "two"):
        run = support.make_run(tmp_path / name, params)
        lay_in(run.inputs, base)
        evaluate(run, params)
        kept = [p for p in sorted(run.output.rglob("*")) if p.is_file() and p.name != "timings.jsonl"]
        written.append([p.read_bytes() for p in kept])
    assert len(written[0]) == 6
    assert written[0] == written[1]
    rows = support.read_rows(tmp_path / "one/output-0/sel/trajectories.jsonl")
    assert [row["repeat"] for row in rows[:2]] == [0, 1]
    assert rows[0]["messages"] != rows[1]["messages"]


@pytest.mark.train
def test_a_rows_draw_does_not_depend_on_its_batch(base: Path) -> None:
    from curateevo_jobs.agents import inprocess
    from curateevo_jobs.agents.chat import Conversation, Generation

    model = inprocess.load(base)
    asked = [Conversation([{"role": "user", "content": "go " * n}], []) for n in range(1, 6)]
    together = model.answer(asked, Generation(1.0, 5), [10, 11, 12, 13, 14])
    alone = [model.answer([c], Generation(1.0, 5), [10 + n])[0] for n, c in enumerate(asked)]
    assert list(together) == alone


def test_batches_hold_what_fits_and_a_prompt_at_least() -> None:
    from curateevo_jobs.agents.inprocess import batches

    lengths = [3, 1, 5, 9, 2]
    assert list(batches(range(5), lengths, 4, lambda count, longest: True)) == [[0, 1, 2, 3], [4]]
    assert list(batches(range(5), lengths, 4, lambda count, longest: count * longest <= 6)) == [[0, 1], [2], [3], [4]]
    assert list(batches([], lengths, 4, lambda count, longest: False)) == []


@pytest.mark.train
def test_what_the_chat_template_is_told_shows_in_the_prompt(base: Path) -> None:
    from curateevo_jobs.agents import inprocess
    from curateevo_jobs.agents.chat import Conversation

    template = "{{ messages[0].content }}{{ ' no thinking' if enable_thinking is false }}"
    asked = Conversation([{"role": "user", "content": "go"}], [])
    plain, told = (inprocess.load(base, template, kwargs) for kwargs in (None, {"enable_thinking": False}))
    assert (plain._tokenizer.decode(plain._render(asked)), told._tokenizer.decode(told._render(asked))) == (
        "go",
        "go no thinking",
    )


@pytest.mark.train
def test_a_prompt_beyond_the_context_generates_nothing(base: Path) -> None:
    from curateevo_jobs.agents import inprocess
    from curateevo_jobs.agents.chat import Conversation, Generation

    model = inprocess.load(base)
    asked = [Conversation([{"role": "user", "content": "x" * n}], []) for n in (2000, 990, 3)]
    answers = model.answer(asked, Generation(0.0, 50), [0, 0, 0])
    assert [a.context_full for a in answers] == [True, False, False]
    assert 0 < answers[1].tokens < 34


def test_an_unknown_task_breaks_the_contract(base: Path, tmp_path: Path) -> None:
    params = params_for(base, SUBJECTS[2])
    run = support.make_run(tmp_path, params)
    (run.inputs / "splits.json").write_text(json.dumps({"sel": ["toolworld/none"], "test": []}))
    with pytest.raises(ContractBroken, match="toolworld/none"):
        evaluate(run, params)


@pytest.mark.parametrize("broken", ["model", "memory"])
def test_a_subject_without_its_files_breaks_the_contract(broken: str, base: Path, tmp_path: Path) -> None:
    params = params_for(base, SUBJECTS[0])
    run = support.make_run(tmp_path, params)
    lay_in(run.inputs, base)
    if broken == "model":
        (run.inputs / "champion/model").unlink()
    else:
        (run.inputs / "champion/memory.jsonl").write_text('{"title": "no content"}\n')
    with pytest.raises(ContractBroken, match="champion"):
        evaluate(run, params)


def test_a_run_of_nothing_needs_no_torch_and_no_model(base: Path, tmp_path: Path) -> None:
    params = params_for(base, SUBJECTS[2])
    run = support.make_run(tmp_path, params)
    lay_in(run.inputs, base)
    summary = evaluate(run, params).summary
    assert isinstance(summary, EvaluateSummary)
    assert 0 < summary.scores["nothing"]["sel"].p < 0.2


def test_tasks_with_prerequisites_are_scored_and_the_prerequisites_are_not(base: Path, tmp_path: Path) -> None:
    suites = (SuiteRef(name="bfcl", params={"categories": ["memory_kv"], "perCategory": 4}),)
    params = params_for(base, SUBJECTS[2], evaluation=Evaluation(suites=suites, repeats=1))
    run = support.make_run(tmp_path, params)
    ids = [t.id for t in registry.suite("bfcl").tasks(suites[0].params)]
    (run.inputs / "splits.json").write_text(json.dumps({"diag": [], "sel": ids, "test": []}))
    evaluate(run, params)
    rows = [json.loads(line) for line in (run.output / "sel" / "results.jsonl").read_text().splitlines()]
    assert [(row["task"], row["success"], row["error"]) for row in rows] == [(i, 0.0, None) for i in sorted(ids)]


def against_a_champion(inputs: Path, tasks: list[Task], solved: float) -> Against:
    """A champion that solves this share of sel and all of chat, the only skill of an agent that does nothing."""
    sel = sorted(tasks[::2], key=lambda t: t.id)
    rows = tuple((float(t.family == "chat" or n < solved * len(sel)),) for n, t in enumerate(sel))
    champion = ScoreTable(
        tasks=tuple(t.id for t in sel), families=tuple(t.family for t in sel), scores={"seed-0": rows}
    )
    (inputs / "against").mkdir()
    text = json.dumps(champion.model_dump(mode="json", by_alias=True))
    (inputs / "against/scores.json").write_text(text)
    return Against(focus=Focus.EFFECTIVENESS, acceptance=Acceptance(), lambda_=0.3, champion_c=0.5, c=0.5, seed=1)


@pytest.mark.parametrize("focus", [Focus.EFFECTIVENESS, Focus.EFFICIENCY])
def test_a_bad_versions_evaluation_ends_early_with_the_verdict_of_a_full_one(
    focus: Focus, base: Path, tmp_path: Path
) -> None:
    suites = (SuiteRef(name="toolworld", params={"perSkill": 8}),)
    params = params_for(base, SUBJECTS[2], splits=("diag", "sel"), evaluation=Evaluation(suites=suites, repeats=2))
    tasks = list(registry.suite("toolworld").tasks(suites[0].params))
    ids = [t.id for t in tasks]
    found = {}
    for name in ("early", "full"):
        run = support.make_run(tmp_path / name, params)
        (run.inputs / "splits.json").write_text(json.dumps({"diag": ids[1::2], "sel": ids[::2]}))
        against = against_a_champion(run.inputs, tasks, 0.4).model_copy(update={"focus": focus, "c": 0.4})
        given = params.model_copy(update={"against": against if name == "early" else None})
        summary = evaluate(run, given).summary
        assert isinstance(summary, EvaluateSummary)
        champion = ScoreTable.model_validate_json((run.inputs / "against/scores.json").read_text())
        table = ScoreTable.model_validate_json((run.output / "sel/scores.json").read_text())
        found[name] = (summary, table, run.output)
    stopped = found["early"][0].stopped
    assert stopped is not None and 0 < stopped.episodes < stopped.of_episodes
    print(f"{focus}: {stopped.episodes} of {stopped.of_episodes} episodes of sel, none of {len(ids[1::2])} of diag")
    old, new = Measured(champion, 0.5), Measured(found["full"][1], 0.4)
    verdict = compare(old, new, focus, against.acceptance, 0.3, 1)
    assert (verdict.commit, verdict.reason) == (False, stopped.reason)
    assert found["full"][0].scores["nothing"]["sel"].p <= stopped.p_at_most
    rows = dict(zip(found["full"][1].tasks, found["full"][1].scores["nothing"], strict=True))
    early = dict(zip(found["early"][1].tasks, found["early"][1].scores["nothing"], strict=True))
    assert sum(map(len, early.values())) == stopped.episodes
    assert all(row in ((), rows[task]) for task, row in early.items())
    assert not (found["early"][2] / "diag").exists() and (found["full"][2] / "diag/scores.json").exists()


def test_a_version_that_could_win_is_evaluated_in_full(base: Path, tmp_path: Path) -> None:
    params = params_for(base, SUBJECTS[2], splits=("diag", "sel"))
    written = []
    for name in ("against", "full"):
        run = support.make_run(tmp_path / name, params)
        tasks = lay_in(run.inputs, base)
        ids = [t.id for t in tasks]
        (run.inputs / "splits.json").write_text(json.dumps({"diag": ids[1::2], "sel": ids[::2]}))
        against = against_a_champion(run.inputs, tasks, 0.0).model_copy(
            update={"c": 0.4, "acceptance": Acceptance(rule=AcceptanceRule.PAPER)}
        )
        given = params.model_copy(update={"against": against if name == "against" else None})
        summary = evaluate(run, given).summary
        assert isinstance(summary, EvaluateSummary) and summary.stopped is None
        kept = [p for p in sorted(run.output.rglob("*")) if p.is_file() and p.name != "timings.jsonl"]
        written.append([p.read_bytes() for p in kept])
    assert len(written[0]) == 6 and written[0] == written[1]


def test_a_version_that_costs_too_much_to_win_runs_nothing(base: Path, tmp_path: Path) -> None:
    params = params_for(base, SUBJECTS[0], splits=("diag", "sel"))
    run = support.make_run(tmp_path, params)
    tasks = lay_in(run.inputs, base)
    (run.inputs / "splits.json").write_text(json.dumps({"diag": [], "sel": [t.id for t in tasks[::2]]}))
    (run.inputs / "champion/model").unlink()
    against = against_a_champion(run.inputs, tasks, 1.0).model_copy(update={"c": 0.9})
    summary = evaluate(run, params.model_copy(update={"against": against})).summary
    assert isinstance(summary, EvaluateSummary) and summary.stopped is not None
    assert (summary.stopped.episodes, summary.stopped.p_so_far, summary.scores) == (0, None, {})


def trial(task: str, success: float | None, transient: bool = True, repeat: int = 0) -> Trial:
    environment = registry.suite("toolworld").environment(registry.suite("toolworld").tasks({"perSkill": 1})[0].state)
    episode = Episode(0, [], [], environment, tokens=3)
    if success is None:
        episode.error = AnswerError(f"failure of {task}", transient)
    return Trial("s", "sel", repeat, Task(task, task[0], (), (), ""), episode, success, success, {})


def test_what_was_not_measured_is_none_and_no_zero() -> None:
    trials = [trial("a1", 1.0), trial("a1", None, repeat=1), trial("b1", None), trial("b1", None, repeat=1)]
    tasks = [trials[0].task, trials[2].task]
    table = tabulate([Subject(name="s", kind=SubjectKind.MODEL)], tasks, trials)
    assert table.scores["s"] == ((1.0, None), (None, None))
    score = score_split(trials)
    assert (score.p, score.tasks, score.errors, score.tokens) == (1.0, 2, 3, 12)
    assert score.families == {"a": 1.0}


def test_passing_errors_are_tried_again_and_others_are_not(base: Path) -> None:
    params = params_for(base)
    fine = [trial(f"t{n}", 1.0) for n in range(97)]
    check_errors("s", [*fine, trial("x1", None)], params)
    with pytest.raises(Transient, match="TooManyErrors: 3 of 100"):
        check_errors("s", [*fine, *(trial(f"x{n}", None) for n in range(3))], params)
    with pytest.raises(ContractBroken, match="failure of x1") as caught:
        check_errors("s", [*fine, trial("x1", None, transient=False), trial("x2", None), trial("x3", None)], params)
    assert "maxErrorFraction" in caught.value.hint
