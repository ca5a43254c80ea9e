"""BFCL-V4: what is right is scored right, what is wrong is scored wrong, through the path of a model's answers."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from curateevo.api.errors import SpecInvalid
from curateevo_jobs.agents.chat import Answer, ChatModel, Generation, parse_call
from curateevo_jobs.agents.episode import Episode, Rules, State, play
from curateevo_jobs.agents.nothing import Nothing
from curateevo_jobs.agents.prerequisites import Planned, play_prerequisites
from curateevo_jobs.agents.scripted import Scripted, in_turn
from curateevo_jobs.benchmarks.base import Score, Task
from curateevo_jobs.benchmarks.bfcl.categories import GROUPS, REFUSED, SUPPORTED
from curateevo_jobs.benchmarks.bfcl.gold import UNANSWERABLE, gold_answers
from curateevo_jobs.benchmarks.bfcl.suite import BfclSuite

SUITE = BfclSuite()
RULES = Rules(Generation(0.0, 64), max_turns=20)
NO_CALL_WANTED = {"irrelevance", "live_irrelevance"}


def some(count: int, *categories: str, seed: int = 0) -> list[Task]:
    params = {"categories": list(categories or GROUPS), "perCategory": count, "seed": seed}
    return list(SUITE.tasks(params))


def episode_of(task: Task) -> Episode:
    return Episode(0, [dict(m) for m in task.messages], task.tools, SUITE.environment(task.state))


def run(model: ChatModel, task: Task) -> Episode:
    episode = episode_of(task)
    play(model, [episode], RULES)
    assert episode.state is State.FINISHED
    return episode


def scores(tasks: Iterable[Task], answers: Any) -> dict[str, Score]:
    return {task.id: run(Scripted(in_turn(*answers(task))), task).score() for task in tasks}


def test_the_package_has_the_items_that_its_paper_counts() -> None:
    counts = Counter(task.family for task in SUITE.tasks({}))
    assert set(counts) == set(SUPPORTED)
    assert sum(counts[c] for c in GROUPS["non_live"]) == 1390
    assert sum(counts[c] for c in GROUPS["live"]) == 2251
    assert sum(counts[c] for c in GROUPS["multi_turn"]) == 800
    assert sum(counts[c] for c in GROUPS["memory"]) == 310


@pytest.mark.parametrize("category", SUPPORTED)
def test_the_reference_is_right(category: str) -> None:
    tasks = [task for task in some(4, category) if task.id not in UNANSWERABLE]
    assert {s.success for s in scores(tasks, gold_answers).values()} == {1.0}


def test_a_task_twice_in_one_program_has_one_score_whatever_was_answered_before() -> None:
    for task in some(1):
        right = scores([task], gold_answers)[task.id]
        wrong = scores([task], spoilt)[task.id]
        assert wrong.success == 0.0, task.id
        assert scores([task], gold_answers)[task.id] == right, task.id


def spoilt(task: Task) -> list[Answer]:
    """The reference's answers with another value in every argument, no call where one is wanted, or one where none is."""
    if task.family in NO_CALL_WANTED:
        return [Answer(calls=(parse_call(task.tools[0]["function"]["name"], "{}"),))]
    if task.family == "live_relevance":
        return [Answer(content="I can't.")]
    if task.family in GROUPS["memory"]:
        return [Answer(content="I do not know.")]
    return [
        Answer(content=a.content, calls=tuple(parse_call(c.name, '{"zzz": 1}') for c in a.calls))
        for a in gold_answers(task)
    ]


def test_an_agent_that_does_nothing_is_right_where_no_call_is_wanted_and_nowhere_else() -> None:
    for task in some(5):
        assert run(Nothing(), task).score().success == float(task.family in NO_CALL_WANTED), task.id


def test_an_agent_that_calls_at_random_is_right_where_any_call_is() -> None:
    rng = random.Random(0)

    def calls(task: Task) -> list[Answer]:
        return [Answer(calls=(parse_call(rng.choice(task.tools)["function"]["name"], "{}"),))] if task.tools else []

    found = [(task, scores([task], calls)[task.id].success) for task in some(5) if task.tools]
    assert {s for task, s in found if task.family == "live_relevance"} == {1.0}
    assert {s for task, s in found if task.family != "live_relevance"} == {0.0}


EVIL = ["__import__('os').getpid", "os.system", "ls(a=True) or exit", "getattr", "_load_scenario", "ls;import os", ""]


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize("family", ["multi_turn_base", "simple_python", "memory_kv"])
def test_a_call_of_no_tool_is_told_so_and_is_never_evaluated(family: str, name: str) -> None:
    [task] = some(1, family)
    evil = Answer(calls=(parse_call(name, '{"command": "touch /tmp/owned"}'),))
    episode = run(Scripted(in_turn(evil, Answer(content="done"))), task)
    assert episode.score().success == 0.0
    if family != "simple_python":
        assert "is not defined" in episode.messages[len(task.messages) + 1]["content"]


@pytest.mark.parametrize("key", ["a=__import__('os').system('true'),b", "a)+exit(", "lambda", "a b", ""])
def test_the_name_of_an_argument_is_never_evaluated(key: str) -> None:
    [task] = some(1, "multi_turn_base")
    made = gold_answers(task)
    evil = Answer(calls=(parse_call(made[0].calls[0].name, json.dumps({key: 1})),))
    score = scores([task], lambda _: [evil, *made])[task.id]
    assert score.success == 1.0, "a call that does nothing does no harm, as in the package"


def test_a_value_that_looks_like_code_stays_a_value() -> None:
    [task] = [t for t in some(200, "multi_turn_base") if t.id == "bfcl/multi_turn_base_0"]
    text = "__import__('os').system('touch x')"
    call = Answer(calls=(parse_call("mkdir", json.dumps({"dir_name": text})),))
    look = Answer(calls=(parse_call("ls", "{}"),))
    episode = run(Scripted(in_turn(call, look)), task)
    assert any(text in str(m["content"]) for m in episode.messages if m["role"] == "tool")


def test_the_user_goes_on_and_new_functions_come_when_they_are_said_to() -> None:
    [task] = [t for t in some(200, "multi_turn_miss_func") if t.id == "bfcl/multi_turn_miss_func_0"]
    names = {t["function"]["name"] for t in task.tools}
    assert "sort" not in names
    episode = run(Scripted(in_turn(*gold_answers(task))), task)
    assert "sort" in {t["function"]["name"] for t in episode.tools}
    users = [m["content"] for m in episode.messages if m["role"] == "user"]
    assert users[1:] == list(task.later_prompts)
    assert any("more functions" in text for text in users)


def test_the_reward_of_turns_is_the_share_that_is_right_from_the_first_on() -> None:
    [task] = [t for t in some(200, "multi_turn_base") if t.id == "bfcl/multi_turn_base_0"]
    made = gold_answers(task)
    total = 1 + len(task.later_prompts)
    first = run(Scripted(in_turn(*made[:2])), task).score()
    assert (first.success, first.reward) == (0.0, 1 / total)
    alone = SUITE.environment(task.state)
    for call in made[0].calls:
        alone.call(call.name, call.arguments or {})
    assert alone.score("Done.").reward == 1 / total, "as GRPO sees it: the user has not gone on"


def test_calls_that_cannot_be_read_end_a_turn_and_not_the_conversation() -> None:
    [task] = some(1, "multi_turn_base")
    broken = Answer(content="<tool_call>{", malformed=True)
    episode = run(Scripted(lambda conversation: broken), task)
    assert sum(m["role"] == "user" for m in episode.messages) == 1 + len(task.later_prompts)
    assert episode.score().checks == {"called": False, "all_turns": True, "malformed_call": True}


@pytest.mark.parametrize("category", GROUPS["memory"])
def test_what_an_agent_notes_in_earlier_conversations_it_sees_in_later_ones(category: str) -> None:
    task = next(t for t in SUITE.tasks({"categories": [category]}) if "customer-0" in t.id)
    tool, field = ("core_memory_add", "value") if category == "memory_kv" else ("memory_append", "text")
    note = {field: "The user is called Michael.", **({"key": "user"} if category == "memory_kv" else {})}

    def reply(conversation: Any) -> Answer:
        said = "".join(str(m["content"]) for m in conversation.messages if m["role"] == "system")
        if "called Michael" in said:
            return Answer(content="{'answer': 'Michael', 'context': 'my notes'}")
        if conversation.messages[-1]["role"] == "user":
            return Answer(calls=(parse_call(tool, json.dumps(note)),))
        return Answer(content="Noted.")

    opened: list[Episode] = []

    def open_episode(planned: Planned) -> Episode:
        opened.append(episode_of(planned.task))
        return opened[-1]

    other = next(t for t in SUITE.tasks({"categories": [category]}) if "customer-1" in t.id)
    model = Scripted(reply)
    ready = play_prerequisites(model, [Planned(t, SUITE, 0) for t in (task, other)], RULES, open_episode)
    assert len(opened) == len(task.prerequisites) == 10, "one chain for both questions"
    found = [run(model, planned.task).score().success for planned in ready]
    assert found == [1.0, 0.0]


def test_tasks_of_one_scenario_fall_into_one_split() -> None:
    groups: dict[str, set[str]] = {}
    for task in SUITE.tasks({"categories": ["multi_turn", "memory"]}):
        groups.setdefault(task.group, set()).add(task.family)
    assert {len(v) for k, v in groups.items() if "multi_turn" in k} == {4}
    assert {len(v) for k, v in groups.items() if "memory" in k} == {2}


def test_samples_are_steady_and_a_larger_one_holds_a_smaller_one() -> None:
    few, more, other = ({t.id for t in some(n, "multiple", seed=s)} for n, s in ((5, 0), (20, 0), (5, 1)))
    assert few < more
    assert few != other


@pytest.mark.parametrize("category", REFUSED)
def test_a_category_that_cannot_be_run_is_refused_with_its_reason(category: str) -> None:
    with pytest.raises(SpecInvalid, match=REFUSED[category]):
        SUITE.tasks({"categories": [category]})


@pytest.mark.parametrize(
    "params", [{"categories": "live"}, {"categories": []}, {"categories": ["nonsense"]}, {"perCategory": -1}, {"n": 1}]
)
def test_bad_params_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid):
        SUITE.tasks(params)


@pytest.mark.slow
@pytest.mark.parametrize("category", SUPPORTED)
def test_every_reference_is_right_but_for_the_named_ones(category: str) -> None:
    tasks = list(SUITE.tasks({"categories": [category]}))
    wrong = {name for name, score in scores(tasks, gold_answers).items() if score.success != 1.0}
    assert wrong == {task.id for task in tasks} & set(UNANSWERABLE)
