"""τ²-bench: what is right is scored right, what is wrong is scored wrong, through the path of a model's answers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from curateevo.api.errors import SpecInvalid
from curateevo_jobs.agents.chat import Answer, Conversation, Generation, parse_call
from curateevo_jobs.agents.episode import Episode, Rules, State, play
from curateevo_jobs.agents.nothing import Nothing
from curateevo_jobs.agents.scripted import Scripted
from curateevo_jobs.benchmarks.base import Score, Task
from curateevo_jobs.benchmarks.tau2.gold import UNANSWERABLE, gold_answers
from curateevo_jobs.benchmarks.tau2.suite import Tau2Suite
from curateevo_jobs.training.environments import build_stages, stage_name
from curateevo_jobs.training.rows import RewardKind, RlRow
from tests.jobs.simulated_user import hello_and_stop, simulated_user

SUITE = Tau2Suite()
RULES = Rules(Generation(0.0, 64), max_turns=100)
PROVABLE = ("airline", "retail", "telecom-solo", "mock", "mock-solo")
"""Families whose gold actions are the agent's to make."""
FLOORS = {"airline": 19, "retail": 7, "telecom-solo": 0, "mock": 1, "mock-solo": 0}
COUNTS = {"airline": 50, "retail": 114, "telecom-solo": 114, "mock": 9, "mock-solo": 6}


@pytest.fixture(scope="module")
def user() -> Iterator[dict[str, Any]]:
    with simulated_user() as found:
        yield found


def tasks(user: dict[str, Any], *domains: str, count: int | None = None) -> list[Task]:
    return list(SUITE.tasks({"domains": list(domains), "perDomain": count, "user": user}))


def by_id(user: dict[str, Any], domain: str, name: str) -> Task:
    [task] = [t for t in tasks(user, domain) if t.id == f"tau2/{domain}/{name}"]
    return task


def run(task: Task, answers: Sequence[Answer]) -> Episode:
    before = sum(m["role"] == "assistant" for m in task.messages)

    def reply(conversation: Conversation) -> Answer:
        turn = sum(m["role"] == "assistant" for m in conversation.messages) - before
        return answers[turn] if turn < len(answers) else Answer()

    return play_out(Scripted(reply), task)


def play_out(model: Any, task: Task) -> Episode:
    episode = Episode(0, [dict(m) for m in task.messages], task.tools, SUITE.environment(task.state))
    play(model, [episode], RULES)
    return episode


def score(task: Task, answers: Sequence[Answer]) -> Score:
    episode = run(task, answers)
    assert episode.state is State.FINISHED, episode.error
    return episode.score()


def call(name: str, **arguments: Any) -> Answer:
    return Answer(calls=(parse_call(name, json.dumps(arguments)),))


def spoilt(task: Task) -> list[Answer]:
    """The gold answers with another value in every argument, and nothing told."""
    return [
        Answer(
            content="Done." if a.content else "",
            calls=tuple(parse_call(c.name, json.dumps(dict.fromkeys(c.arguments or {}, "zzz"))) for c in a.calls),
        )
        for a in gold_answers(task)
    ]


def test_the_package_has_the_tasks_that_are_documented(user: dict[str, Any]) -> None:
    assert Counter(t.family for t in tasks(user, *COUNTS, "telecom")) == {**COUNTS, "telecom": 114}


@pytest.mark.parametrize("domain", PROVABLE)
def test_the_reference_is_right_whatever_was_answered_before(user: dict[str, Any], domain: str) -> None:
    for task in tasks(user, domain, count=3):
        if task.id in UNANSWERABLE:
            continue
        right = score(task, gold_answers(task))
        assert right.success == 1.0, (task.id, right)
        idle = play_out(Nothing(), task).score().success
        if not idle:
            assert score(task, spoilt(task)).success == 0.0, task.id
        assert score(task, gold_answers(task)) == right, task.id


def test_without_a_user_a_text_is_no_end_and_scores_nothing(user: dict[str, Any]) -> None:
    [task] = tasks(user, "telecom-solo", count=1)
    made = gold_answers(task)
    assert score(task, made).checks["ended"]
    assert score(task, [*made[:-1], Answer(content="I am done.")]) == Score(0.0, 0.0, {"ended": False})


def test_the_user_speaks_first_and_ends_the_conversation(user: dict[str, Any]) -> None:
    [task] = tasks(user, "airline", count=1)
    episode = run(task, [Answer(content="What can I do?"), Answer(content="not asked any more")])
    assert [(m["role"], m["content"]) for m in episode.messages[1:]] == [
        ("assistant", "Hi! How can I help you today?"),
        ("user", "Hello, I need help."),
        ("assistant", "What can I do?"),
    ]


def test_a_user_with_tools_uses_them_unseen(user: dict[str, Any]) -> None:
    def say(messages: list[dict[str, Any]]) -> Any:
        if messages[-1]["role"] == "tool":
            return f"It says: {messages[-1]['content']}"
        if messages[-1]["content"] == "Look at the status bar.":
            return {"check_status_bar": {}}
        return hello_and_stop(messages)

    with simulated_user(say) as found:
        [task] = tasks(found, "telecom", count=1)
        episode = run(task, [Answer(content="Look at the status bar."), Answer(content="Thanks.")])
    assert "check_status_bar" not in {t["function"]["name"] for t in task.tools}
    assert any("It says: Status Bar" in str(m["content"]) for m in episode.messages)
    assert not [m for m in episode.messages if m["role"] == "tool"]


def test_a_user_who_never_stops_is_stopped(user: dict[str, Any]) -> None:
    with simulated_user(lambda messages: "And then?") as found:
        [task] = tasks(found, "airline", count=1)
        episode = run(task, [Answer(content="Well.")] * 300)
    assert episode.score() == Score(0.0, 0.0, {"ended": False, "max_steps": True})


def test_ten_failed_calls_end_a_conversation(user: dict[str, Any]) -> None:
    [task] = tasks(user, "mock-solo", count=1)
    episode = run(task, [call("no_such_tool")] * 50)
    assert episode.turns == 10
    assert episode.score().checks["too_many_errors"]


@pytest.mark.parametrize("answer", [500, "", "  "])
def test_a_simulator_that_does_not_answer_is_not_the_agents_fault(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curateevo_jobs.agents.endpoint.Backoff.waits", lambda self: [])
    with simulated_user(lambda messages: answer) as found:
        [task] = tasks(found, "airline", count=1)
        episode = run(task, [Answer(content="Hi")])
    assert episode.state is State.FAILED
    assert episode.error is not None and episode.error.transient
    assert "user simulator" in episode.error.message


@pytest.mark.slow
def test_a_sum_that_would_take_for_ever_is_stopped_and_harms_nobody(user: dict[str, Any]) -> None:
    """`calculate` evaluates text. It takes digits and signs alone, and 9**9**9 is made of these."""
    task = by_id(user, "airline", "0")
    began = time.monotonic()
    episode = run(task, [call("calculate", expression="9**9**9**9")])
    assert episode.score().checks == {"ended": False, "stopped": True}
    assert time.monotonic() - began < 120
    assert score(task, gold_answers(task)).success == 1.0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("calculate", {"expression": "__import__('os').getpid()"}),
        ("__class__", {}),
        ("_get_user", {"user_id": "x"}),
        ("use_tool", {"tool_name": "calculate"}),
        ("calculate", {"requestor": "user", "tool_name": "x", "self": 1}),
        ("get_user_details", {"user_id": {"$ne": 1}}),
    ],
)
def test_a_malicious_call_is_an_error_text(user: dict[str, Any], name: str, arguments: dict[str, Any]) -> None:
    task = by_id(user, "airline", "0")
    episode = run(task, [call(name, **arguments)])
    [result] = [m["content"] for m in episode.messages if m["role"] == "tool"]
    assert result.startswith("Error:")


def test_variants_of_a_problem_fall_into_one_split(user: dict[str, Any]) -> None:
    both = tasks(user, "telecom", "telecom-solo")
    assert {t.group for t in both if t.family == "telecom"} == {t.group for t in both if t.family == "telecom-solo"}
    assert all("PERSONA" not in t.group for t in both)


def test_what_is_sealed_is_in_no_prompt(user: dict[str, Any]) -> None:
    for task in tasks(user, *COUNTS):
        shown = json.dumps([task.messages, task.tools])
        assert "reward_basis" not in shown and "env_assertions" not in shown


def test_solo_tasks_are_environments_for_grpo(user: dict[str, Any]) -> None:
    [task] = tasks(user, "telecom-solo", count=1)
    row = RlRow("r", task.family, task.messages, task.tools, RewardKind.ENVIRONMENT, True, "tau2", task.state, ())
    world = build_stages([row], {"tau2": SUITE})[stage_name(row)].factory()
    world.reset(state=task.state)
    for answer in gold_answers(task):
        for made in answer.calls:
            getattr(world, made.name)(**(made.arguments or {}))
    assert world._score("Done.").reward == 1.0
    world.reset(state=task.state)
    assert world._score("Done.").reward == 0.0


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"domains": ["airline"], "user": {"endpoint": "nowhere", "model": "m"}},
        {"domains": ["airline"], "user": {"endpoint": "http://x/v1"}},
        {"domains": ["mars"]},
        {"domains": ["mock-solo"], "split": "nonsense"},
        {"domains": ["mock-solo"], "perCategory": 1},
    ],
)
def test_bad_params_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid):
        SUITE.tasks(params)


def test_no_program_that_uses_tau2_imports_its_code_and_none_litellm() -> None:
    check = (
        "import sys; from curateevo_jobs.benchmarks import registry; s = registry.suite('tau2');"
        "t = s.tasks({'domains': ['mock-solo'], 'perDomain': 1})[0]; e = s.environment(t.state);"
        "e.call('done', {}); e.score('');"
        "sys.exit(any(m.partition('.')[0] in ('tau2', 'litellm') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("domain", PROVABLE)
def test_every_reference_is_right_and_doing_nothing_scores_what_is_known(user: dict[str, Any], domain: str) -> None:
    found = tasks(user, domain)
    wrong = {t.id for t in found if score(t, gold_answers(t)).success != 1.0}
    assert wrong == {t.id for t in found} & set(UNANSWERABLE)
    assert sum(play_out(Nothing(), t).score().success for t in found) == FLOORS[domain]
