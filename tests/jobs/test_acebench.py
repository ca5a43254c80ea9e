"""ACEBench-Agent: what is right is scored right, what is wrong is scored wrong, through the path of a model's answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curateevo.api.errors import ContractBroken, CurateEvoError, SpecInvalid
from curateevo_jobs.agents.chat import Answer, Generation, parse_call
from curateevo_jobs.agents.episode import Episode, Rules, State, play_one
from curateevo_jobs.agents.scripted import Scripted, in_turn
from curateevo_jobs.benchmarks.acebench.gold import UNANSWERABLE, gold_answers
from curateevo_jobs.benchmarks.acebench.milestones import reached, read_calls, read_milestones
from curateevo_jobs.benchmarks.acebench.suite import FAMILIES, AcebenchSuite
from curateevo_jobs.benchmarks.base import Score, Task
from tests.conftest import ACEBENCH
from tests.jobs.simulated_user import hello_and_stop, simulated_user

SUITE = AcebenchSuite()
RULES = Rules(Generation(0.0, 64), max_turns=40)
COUNTS = {"multi_step-en": 20, "multi_step-zh": 20, "multi_turn-en": 30, "multi_turn-zh": 30}
NOBODY = {"endpoint": "http://nobody/v1", "model": "m"}


@pytest.fixture(scope="module")
def user() -> Iterator[dict[str, Any]]:
    with simulated_user() as found:
        yield found


def tasks(user: dict[str, Any], *families: str, folder: Path = ACEBENCH) -> list[Task]:
    if not ACEBENCH.is_dir():
        pytest.fail(f"{ACEBENCH}: not there. Put ACEBench's data_all there, or set CURATEEVO_TEST_DATA")
    return list(SUITE.tasks({"folder": str(folder), "families": list(families or FAMILIES), "user": user}))


def by_number(user: dict[str, Any], family: str, number: int) -> Task:
    [task] = [t for t in tasks(user, family) if t.id.endswith(f"_{number}")]
    return task


def run(task: Task, answers: Sequence[Answer]) -> Episode:
    episode = Episode(0, [dict(m) for m in task.messages], task.tools, SUITE.environment(task.state))
    play_one(Scripted(in_turn(*answers)), episode, RULES)
    return episode


def score(task: Task, answers: Sequence[Answer]) -> Score:
    episode = run(task, answers)
    assert episode.state is State.FINISHED, episode.error
    return episode.score()


def call(name: str, **arguments: Any) -> Answer:
    return Answer(calls=(parse_call(name, json.dumps(arguments)),))


def spoilt(task: Task) -> list[Answer]:
    """The gold answers with another value in every argument."""
    return [
        Answer(
            a.content, tuple(parse_call(c.name, json.dumps(dict.fromkeys(c.arguments or {}, "zzz"))) for c in a.calls)
        )
        for a in gold_answers(task)
    ]


def test_the_data_has_the_tasks_that_are_documented(user: dict[str, Any]) -> None:
    found = tasks(user)
    assert Counter(t.family for t in found) == COUNTS
    assert len({t.id for t in found}) == 100


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_a_task_is_solved_by_its_gold_and_by_nothing_else(user: dict[str, Any], every: int) -> None:
    """Gold, then wrong values, then gold again: nothing of one episode is left in the next."""
    found = tasks(user)
    assert {t.id for t in found} >= set(UNANSWERABLE)
    for task in found[::every]:
        right = score(task, gold_answers(task))
        assert right.success == (task.id not in UNANSWERABLE), (task.id, right)
        assert score(task, spoilt(task)).success == 0.0, task.id
        assert score(task, []) == Score(0.0, 0.0, {**right.checks, "end_state": False, "milestones": False}), task.id
        assert score(task, gold_answers(task)) == right, task.id


def test_misspelt_class_names_are_corrected_and_said(user: dict[str, Any]) -> None:
    said = {t.id.removeprefix("acebench/") for t in tasks(user) if score(t, []).checks["corrected_class_name"]}
    numbers = {"multi_step": (0, 1), "multi_turn": (7, 9)}
    assert said == {
        f"{kind}-{language}/agent_{kind}_{n}" for language in ("en", "zh") for kind, of in numbers.items() for n in of
    } | {"multi_turn-zh/agent_multi_turn_12"}


def test_a_wrong_value_is_seen_in_a_class_that_was_misspelt(user: dict[str, Any]) -> None:
    task = by_number(user, "multi_turn-en", 7)
    late = [
        call(c.name, **{**(c.arguments or {}), "time": "2030-01-01 00:00"}) if c.name == "add_reminder" else a
        for a in gold_answers(task)
        for c in a.calls or (parse_call("", "{}"),)
    ]
    assert score(task, gold_answers(task)).success == 1.0
    assert score(task, late).success == 0.0


def test_half_of_the_way_is_rewarded_and_no_success(user: dict[str, Any]) -> None:
    task = by_number(user, "multi_step-en", 5)
    milestones = json.loads(task.state)["milestones"][0]
    got = score(task, gold_answers(task)[:2])
    assert got.success == 0.0
    assert got.reward == pytest.approx(2 / len(milestones))
    assert not got.checks["milestones"]


def test_calls_of_one_answer_act_as_if_made_one_by_one(user: dict[str, Any]) -> None:
    task = by_number(user, "multi_turn-en", 22)
    at_once = Answer(calls=tuple(c for a in gold_answers(task) for c in a.calls))
    assert score(task, [at_once]).success == 1.0


def test_an_agent_without_a_user_is_told_not_to_ask(user: dict[str, Any]) -> None:
    task = by_number(user, "multi_step-zh", 3)
    episode = run(task, [Answer(content="Which one?"), *gold_answers(task)])
    assert "do not ask me" in episode.messages[3]["content"]
    assert episode.score().success == 1.0


@pytest.mark.parametrize("answer", [Answer(content="Hm?"), call("turn_on_wifi"), call("no_such_function")])
def test_forty_messages_end_an_episode(user: dict[str, Any], answer: Answer) -> None:
    episode = run(by_number(user, "multi_step-en", 3), [answer] * 100)
    assert episode.turns == 20
    assert not episode.score().checks["finished"]


def test_a_user_who_never_stops_is_stopped(user: dict[str, Any]) -> None:
    with simulated_user(lambda messages: "And then?") as found:
        episode = run(by_number(found, "multi_turn-en", 0), [Answer(content="Well.")] * 100)
    assert episode.turns == 20


def test_the_user_speaks_first_sees_no_calls_and_may_end(user: dict[str, Any]) -> None:
    seen: list[list[dict[str, Any]]] = []

    def say(messages: list[dict[str, Any]]) -> str:
        seen.append(messages)
        return hello_and_stop(messages).replace("###STOP###", "finish conversation")

    with simulated_user(say) as found:
        task = by_number(found, "multi_turn-zh", 0)
        episode = run(
            task, [*gold_answers(task)[:-1], Answer(content="做好了。"), Answer(content="not asked any more")]
        )
    assert [m["content"] for m in seen[-1][1:]] == ["今天有什么需要帮助的吗？", "Hello, I need help.", "做好了。"]
    assert "Grace" in seen[-1][0]["content"]
    assert episode.messages[1]["content"] == "Hello, I need help."
    assert episode.score().success == 1.0
    assert episode.score().checks["finished"]


def test_a_simulator_that_does_not_answer_is_not_the_agents_fault(
    user: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("curateevo_jobs.agents.endpoint.Backoff.waits", lambda self: [])
    with simulated_user(lambda messages: 500) as found:
        episode = run(by_number(found, "multi_turn-en", 0), [])
    assert episode.error is not None and episode.error.transient


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("__class__", {}),
        ("_load_scenario", {"scenario": {"wifi": True}}),
        ("inbox", {}),
        ("send_message", {"self": 1}),
        ("view_messages_between_users", {"sender_name": ["__import__('os')"], "receiver_name": {}}),
        ("delete_message", {"message_id": {"$ne": 1}}),
        ("turn_on_wifi", {"not a name": 1, "__class__": 2}),
    ],
)
def test_a_malicious_call_is_an_error_text_and_harms_nobody(
    user: dict[str, Any], name: str, arguments: dict[str, Any]
) -> None:
    task = by_number(user, "multi_step-en", 5)
    episode = run(task, [call(name, **arguments), *gold_answers(task)])
    assert next(m["content"] for m in episode.messages if m["role"] == "tool").startswith("Error during execution")
    assert episode.score().success == 1.0


def test_a_function_of_the_classes_that_the_task_does_not_have_is_none(user: dict[str, Any]) -> None:
    task = by_number(user, "multi_turn-en", 20)
    episode = run(task, [call("update_balance", user={"cash_balance": 0}, payment_method="cash", amount=1)])
    assert "is not defined" in episode.messages[3]["content"]


def test_what_is_sealed_is_in_no_prompt_of_a_talk(user: dict[str, Any]) -> None:
    for task in tasks(user, "multi_turn-en", "multi_turn-zh"):
        [told] = task.later_prompts
        assert told not in json.dumps(task.messages, ensure_ascii=False)
        assert "ApiName" not in str(task.messages)


def test_variants_of_a_scenario_fall_into_one_split(user: dict[str, Any]) -> None:
    found = tasks(user)
    groups = {t.id: t.group for t in found}
    assert len(set(groups.values())) == 19
    assert all(group == groups[i.replace("-en/", "-zh/")] for i, group in groups.items())


def test_tools_are_of_openais_types(user: dict[str, Any]) -> None:
    def types(schema: dict[str, Any]) -> set[str]:
        inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
        return {schema["type"]}.union(*map(types, inner))

    known = {"object", "array", "string", "integer"}
    assert {kind for t in tasks(user) for tool in t.tools for kind in types(tool["function"]["parameters"])} == known


@pytest.mark.parametrize(
    "params",
    [
        {"user": NOBODY},
        {"folder": 7, "user": NOBODY},
        {"folder": "x"},
        {"folder": "x", "families": ["multi_step-fr"]},
        {"folder": "x", "perDomain": 1},
    ],
)
def test_bad_params_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid):
        SUITE.tasks(params)


@pytest.mark.parametrize("broken", ["gone", "no JSON", "{}", "7", "other ids", "no milestones"])
def test_broken_data_is_said_where_it_is_and_how_to_mend_it(tmp_path: Path, broken: str, user: dict[str, Any]) -> None:
    folder = tmp_path / "data"
    shutil.copytree(ACEBENCH, folder)
    answers = folder / "data_en/possible_answer/data_agent_multi_step.json"
    if broken == "gone":
        answers.unlink()
    elif broken == "other ids":
        answers.write_text(answers.read_text().replace("agent_multi_step_3", "agent_multi_step_33"))
    elif broken == "no milestones":
        answers.write_text(answers.read_text().replace("[turn_on_wifi()]", "turn on the wifi!"))
    else:
        answers.write_text(broken + "\n")
    with pytest.raises(ContractBroken) as caught:
        tasks(user, "multi_step-en", folder=folder)
    error: CurateEvoError = caught.value
    assert "data_agent_multi_step.json" in str(error)
    assert "data_all" in str(error)


QUOTING = st.text(st.sampled_from("ab 'é\"."), min_size=1).filter(lambda t: t.strip("'\" ") == t)


@given(st.dictionaries(st.sampled_from("xyz"), QUOTING | st.integers() | st.lists(QUOTING)))
def test_calls_are_read_whatever_quotes_their_texts_hold(arguments: dict[str, Any]) -> None:
    def shown(value: Any) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(shown, value))}]"
        return f"'{value}'" if isinstance(value, str) else repr(value)

    text = f"[f({', '.join(f'{k}={shown(v)}' for k, v in arguments.items())}), g()]"
    assert read_calls(text) == [("f", arguments), ("g", {})]


def test_milestones_are_found_in_their_order() -> None:
    a, b, c = ((name, {}) for name in "abc")
    way = [[a], [b, c]]
    assert reached([a, b, c], [way]) == 1.0
    assert reached([c, a, a, b, c], [way]) == 1.0
    assert reached([b, c, a], [way]) == 0.5
    assert reached([a, b, a, c], [way]) == 0.5
    assert reached([b, c], [way]) == 0.0, "what comes before a missing milestone is used up"
    assert reached([b], [way, [[b]]]) == 1.0
    assert read_milestones([["[a()]"], ["[b(), c()]"]]) == [[[a]], [[b, c]]]


def test_no_program_that_uses_acebench_imports_its_code(user: dict[str, Any]) -> None:
    check = (
        "import sys; from curateevo_jobs.benchmarks import registry; s = registry.suite('acebench');"
        f"t = s.tasks({{'families': ['multi_step-en'], 'folder': {str(ACEBENCH)!r}}})[0]; e = s.environment(t.state);"
        "e.call('turn_on_wifi', {}); e.score('');"
        "sys.exit(any(m.partition('.')[0] == 'evalscope' for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
