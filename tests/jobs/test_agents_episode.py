"""The tool-calling loop, driven by scripted answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from curateevo.api.errors import Transient
from curateevo_jobs.agents.chat import Answer, AnswerError, Call, Generation, parse_call, parse_text
from curateevo_jobs.agents.episode import Checks, Episode, Rules, State, play, seed_of
from curateevo_jobs.agents.nothing import Nothing
from curateevo_jobs.agents.prerequisites import Planned, play_prerequisites
from curateevo_jobs.agents.scripted import Scripted, in_turn
from curateevo_jobs.benchmarks.base import Score, Task, UserTurn

RULES = Rules(Generation(0.0, 16), max_turns=3)


class Diary:
    """An environment that writes down what happens."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.final_text: str | None = None

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        self.calls.append((name, arguments))
        return "error tool" if name == "unknown" else "ok"

    def score(self, final_text: str) -> Score:
        self.final_text = final_text
        return Score(1.0, 1.0, {"asked": bool(self.calls)})


def call(name: str = "look", raw: str = '{"at": 1}') -> Answer:
    return Answer(calls=(parse_call(name, raw),), tokens=5)


def start(seed: int = 0) -> tuple[Episode, Diary]:
    diary = Diary()
    return Episode(seed, [{"role": "user", "content": "go"}], [], diary), diary


@pytest.mark.parametrize("concurrency", [0, 4])
def test_calls_are_run_until_an_answer_without_one(concurrency: int) -> None:
    started = [start(n) for n in range(5)]
    model = Scripted(in_turn(call(), Answer(content="done", tokens=2)), concurrency)
    over: list[int] = []
    play(model, [e for e, _ in started], RULES, over.append)
    for episode, diary in started:
        assert episode.state is State.FINISHED
        assert (episode.turns, episode.tokens) == (2, 7)
        assert diary.calls == [("look", {"at": 1})]
        assert episode.score().checks == {"asked": True}
        assert diary.final_text == "done"
        assert [m["role"] for m in episode.messages] == ["user", "assistant", "tool", "assistant"]
        assert json.loads(episode.messages[1]["tool_calls"][0]["function"]["arguments"]) == {"at": 1}
        assert episode.messages[2]["tool_call_id"] == episode.messages[1]["tool_calls"][0]["id"]
    assert over[-1] == 5
    assert len(set(model.seeds)) == 10, "each turn of each episode has a seed of its own"


def test_several_calls_of_one_answer_are_run_in_order() -> None:
    episode, diary = start()
    both = Answer(calls=(parse_call("a", "{}"), parse_call("b", "{}")))
    play(Scripted(in_turn(both)), [episode], RULES)
    assert [name for name, _ in diary.calls] == ["a", "b"]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(content="<tool_call>{", tokens=3, malformed=True),
        Answer(calls=(Call("look", None, "[1]"),), tokens=3),
        Answer(calls=(parse_call("look", '{"at": 1}'), parse_call("look", "nonsense")), tokens=3),
    ],
    ids=["unreadable", "not an object", "one of two"],
)
def test_a_malformed_call_ends_the_episode_and_nothing_is_run(answer: Answer) -> None:
    episode, diary = start()
    play(Scripted(in_turn(answer)), [episode], RULES)
    assert episode.state is State.FINISHED
    assert diary.calls == []
    assert episode.score().checks["malformed_call"]
    assert episode.messages[-1]["content"]


def test_an_unknown_tool_is_the_environments_to_answer() -> None:
    episode, diary = start()
    play(Scripted(in_turn(call("unknown"), Answer(content="sorry"))), [episode], RULES)
    assert episode.messages[2]["content"] == "error tool"
    assert diary.final_text is None
    assert episode.state is State.FINISHED


def test_the_last_turns_calls_are_run_and_then_it_is_over() -> None:
    episode, diary = start()
    play(Scripted(lambda _: call()), [episode], RULES)
    assert episode.turns == len(diary.calls) == 3
    assert episode.score().checks["out_of_turns"]
    assert diary.final_text == ""


def test_a_full_context_ends_the_episode_as_it_stands() -> None:
    episode, diary = start()
    play(Scripted(in_turn(call(), Answer(context_full=True))), [episode], RULES)
    assert episode.score().checks["context_full"]
    assert len(diary.calls) == 1


def test_an_error_is_no_score() -> None:
    episode, _ = start()
    play(Scripted(in_turn(call(), Answer(error=AnswerError("HTTP 500", True)))), [episode], RULES)
    assert episode.state is State.FAILED
    assert episode.error == AnswerError("HTTP 500", True)


def test_doing_nothing_takes_one_turn() -> None:
    episode, diary = start()
    play(Nothing(), [episode], RULES)
    assert (episode.turns, episode.tokens, diary.calls) == (1, 0, [])


def test_no_episodes_are_over_at_once() -> None:
    play(Nothing(), [], RULES)


def test_seeds_depend_on_every_part() -> None:
    assert len({seed_of(0, "a", 1), seed_of(0, "a", 2), seed_of(1, "a", 1), seed_of(0, "b", 1)}) == 4
    assert seed_of(0, "a", 1) == seed_of(0, "a", 1)
    assert 0 <= seed_of("x") < 2**31


@pytest.mark.parametrize(
    ("text", "names", "malformed"),
    [
        ('<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>', ["a"], False),
        ('<tool_call>{"name": "a", "arguments": {}}', ["a"], False),
        (
            '<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{"name": "b", "arguments": {}}',
            ["a", "b"],
            False,
        ),
        ("just text", [], False),
        ("<tool_call>{", [], True),
        ('<tool_call>{"name": "a"}</tool_call>', [], True),
        ('<tool_call>["a"]</tool_call>', [], True),
        ('<tool_call>{"name": 7, "arguments": {}}</tool_call>', [], True),
    ],
)
def test_text_is_read_as_vllms_hermes_parser_reads_it(text: str, names: list[str], malformed: bool) -> None:
    answer = parse_text(text, 1)
    assert [c.name for c in answer.calls] == names
    assert answer.malformed is malformed
    assert answer.content == ("" if names else text)


class Interview(Diary):
    """A user who asks three things, the last with another tool, and who reads the transcript at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.transcript: list[dict[str, Any]] = []

    def reply(self, text: str) -> UserTurn | None:
        self.heard.append(text)
        if len(self.heard) == 3:
            return None
        said = ({"role": "user", "content": f"question {len(self.heard)}"},)
        return UserTurn(said, (TOOL,) if len(self.heard) == 2 else None)

    def read(self, messages: Sequence[dict[str, Any]]) -> None:
        self.transcript = list(messages)


TOOL = {"type": "function", "function": {"name": "late", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("concurrency", [0, 4])
def test_a_user_goes_on_talking_and_turns_are_counted_from_each_time(concurrency: int) -> None:
    interview = Interview()
    episode = Episode(0, [{"role": "user", "content": "go"}], [], interview)
    shown: list[int] = []

    def reply(conversation: Any) -> Answer:
        shown.append(len(conversation.tools))
        return Answer(content="fine") if conversation.messages[-1]["role"] == "tool" else call()

    play(Scripted(reply, concurrency), [episode], RULES)
    assert (episode.state, episode.turns) == (State.FINISHED, 6), "more than max_turns in all, less between users"
    assert [m["role"] for m in episode.messages] == ["user", "assistant", "tool", "assistant"] * 3
    assert shown == [0, 0, 0, 0, 1, 1]
    assert "out_of_turns" not in episode.score().checks
    assert interview.transcript == episode.messages


def test_a_user_is_told_of_a_call_that_cannot_be_read_and_may_go_on() -> None:
    interview = Interview()
    episode = Episode(0, [{"role": "user", "content": "go"}], [], interview)
    play(Scripted(lambda _: Answer(content="<tool_call>{", malformed=True)), [episode], RULES)
    assert interview.heard == ["<tool_call>{"] * 3
    assert episode.score().checks["malformed_call"]


def test_an_environment_that_is_closed_after_a_call_is_asked_no_more() -> None:
    class Once(Diary):
        def closed(self) -> bool:
            return True

    episode = Episode(0, [{"role": "user", "content": "go"}], [], Once())
    both = Answer(content="so", calls=(parse_call("a", "{}"), parse_call("b", "{}")))
    model = Scripted(lambda _: both)
    play(model, [episode], RULES)
    assert model.asked == 1
    assert (episode.state, episode.final_text, episode.environment.calls) == (
        State.FINISHED,
        "so",
        [("a", {}), ("b", {})],
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", ["call", "reply"])
def test_an_environment_that_fails_for_a_passing_reason_is_not_measured(where: str) -> None:
    class Away(Interview):
        def call(self, name: str, arguments: dict[str, Any]) -> str:
            raise Transient("the simulator is away")

        def reply(self, text: str) -> UserTurn | None:
            raise Transient("the simulator is away")

    episode = Episode(0, [{"role": "user", "content": "go"}], [], Away())
    play(Scripted(lambda _: call() if where == "call" else Answer(content="hm")), [episode], RULES)
    assert episode.state is State.FAILED
    assert episode.error == AnswerError("the environment: the simulator is away", transient=True)


def test_tasks_after_a_prerequisite_that_was_not_measured_are_not_measured_either() -> None:
    class Notes(Diary):
        def carry(self, following: Task) -> Task:
            raise AssertionError("there is nothing to carry")

    class Only:
        name = "only"

        def environment(self, state: str) -> Notes:
            return Notes()

    def open_episode(planned: Planned) -> Episode:
        return Episode(0, list(planned.task.messages), (), Notes(), error=planned.error)

    before = Task("before", "f", ({"role": "user", "content": "note this"},), (), "{}")
    task = Task("after", "f", ({"role": "user", "content": "what?"},), (), "{}", prerequisites=(before, before))
    broken = Scripted(lambda _: Answer(error=AnswerError("HTTP 500", transient=True)))
    [ready] = play_prerequisites(broken, [Planned(task, Only(), 0)], RULES, open_episode)  # type: ignore[arg-type]
    assert broken.asked == 1
    assert ready.error is not None and ready.error.transient
    assert open_episode(ready).state is State.FAILED


@pytest.mark.parametrize("concurrency", [0, 4])
def test_episodes_end_where_the_first_are_enough_however_many_run_at_once(concurrency: int) -> None:
    started = [start(n) for n in range(20)]
    model = Scripted(in_turn(call(), Answer(content="done")), concurrency)
    looked: list[int] = []
    checks = Checks(3, lambda over: looked.append(over) or over >= 6)  # type: ignore[func-returns-value]
    assert play(model, [e for e, _ in started], RULES, checks=checks) == 6
    assert looked == [3, 6]
    assert all(e.state is State.FINISHED for e, _ in started[:6])
    assert model.asked < 40 and any(e.state is State.ASKING for e, _ in started[6:])


@pytest.mark.parametrize("concurrency", [0, 4])
def test_what_is_never_enough_is_played_to_its_end(concurrency: int) -> None:
    started = [start(n) for n in range(7)]
    looked: list[int] = []
    checks = Checks(3, lambda over: bool(looked.append(over)))  # type: ignore[func-returns-value]
    model = Scripted(in_turn(Answer(content="done")), concurrency)
    assert play(model, [e for e, _ in started], RULES, checks=checks) == 7
    assert looked == [3, 6, 7]
