"""Rewriting in two passes: what a model answers stands in the rows or is refused, once asked it is never asked again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.api.errors import Denied, Transient
from curateevo.api.evolution import Stage
from curateevo.api.spec import Augmentation, LlmBudget, LlmEndpoint, Memory, Sandbox, TokenPrice
from curateevo.api.stage import CurateParams, Outcome, StageRequest, StoreRef
from curateevo.evolution.pods import REWRITE_KEY_VARIABLE
from curateevo.evolver.llm import Limits
from curateevo.policy.builtin import source_of
from curateevo.policy.operators.items import Rewrite, RewriteKind
from curateevo.store.local import LocalStore
from curateevo.trajectories.corpus import write_trajectories
from curateevo.trajectories.features import features_of
from curateevo.trajectories.formats.openai import parse_openai
from curateevo.trajectories.leakage import LeakIndex
from curateevo.trajectories.model import Trajectory
from curateevo_jobs.checkpoints import FolderCheckpoints
from curateevo_jobs.curate import curate
from curateevo_jobs.rewriting import MOST_LOST, WAVE, Fulfilled, Fulfiller
from curateevo_jobs.stage import StageResult, StageRun
from tests.core.evolver.llmserver import ChatServer, Handler, Reply, chat_server, completion, fails, hangs, says, sends

KEY = "sk-rewrite-secret"
ROWS = 4
DEV = "one two three four five six seven eight nine ten eleven twelve thirteen"
QUICK = Limits(call_seconds=30.0, tries=2, first_wait_seconds=0.0)
IMPATIENT = replace(QUICK, call_seconds=2.0)
PASSES = "def augment(items, ctx):\n    return {}"
PLACE = "def augment(items, ctx):\n    return items"
POLITE = "api.request_rewrite(items, ctx, kind='answer', instruction='more polite', turns=lambda i, t, f: t == 1)"
OTHER_WORDS = "api.request_rewrite(items, ctx, kind='prompt', instruction='other words', keep=True)"


def policy(augment: str) -> str:
    return source_of("keep-all").replace(PLACE, PASSES.format(augment))


def trajectory(number: int) -> dict[str, Any]:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "ship", "arguments": json.dumps({"order": f"W{number}", "to": "Mei Tanaka"})},
    }
    return {
        "id": f"t{number}",
        "messages": [
            {"role": "user", "content": f"please ship W{number} to Mei Tanaka"},
            {"role": "assistant", "content": "", "reasoning_content": "I ship it.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "name": "ship", "content": f"W{number} ships on day 7"},
            {"role": "assistant", "content": f"W{number} is under way."},
        ],
        "tools": [{"type": "function", "function": {"name": "ship", "parameters": {"type": "object"}}}],
        "success": True,
    }


def ask(
    store: Path,
    server: ChatServer,
    kind: RewriteKind = RewriteKind.ANSWER,
    *,
    turn: int | None = None,
    requests: list[Rewrite] | None = None,
    version: str = "u/0",
    price: TokenPrice | None = None,
    texts: dict[int, Trajectory] | None = None,
    limits: Limits = QUICK,
    **budget: int,
) -> Fulfilled:
    """What becomes of one request for each row, with the cache in `store`."""
    where = (1 if kind is RewriteKind.ANSWER else 0) if turn is None else turn
    asked = requests or [Rewrite(row, where, kind, "as you like") for row in range(ROWS)]
    spec = Augmentation(
        llm=LlmEndpoint(base_url=server.url, model="m", price=price), budget=LlmBudget(**{"calls": 2000, **budget})
    )
    fulfiller = Fulfiller(
        spec, LocalStore(store), version, LeakIndex({"d": DEV}), api_key=KEY, limits=limits, sleep=lambda seconds: None
    )
    return fulfiller.fulfil(asked, texts or {row: parse_openai(trajectory(row), f"x:{row}") for row in range(ROWS)})


class Silent:
    def report(self, phase: str, done: int, total: int, **metrics: float) -> None:
        pass


class Case:
    """A corpus of four short trajectories, a store, and attempts to curate it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.attempts = folder, 0
        (folder / "inputs").mkdir()
        made = [parse_openai(trajectory(number), f"x:{number}") for number in range(ROWS)]
        write_trajectories(made, folder / "inputs")
        features_of(made).write_parquet(folder / "inputs/features.parquet")
        (folder / "inputs/dev_prompts.json").write_text(json.dumps({"d": DEV}))
        self.output = folder

    def curate(self, server: ChatServer | None, augment: str = POLITE, version: int = 0, **options: Any) -> StageResult:
        (self.folder / "inputs/policy.py").write_text(policy(augment))
        self.attempts += 1
        work = self.folder / f"work-{self.attempts}"
        self.output = work / "output"
        for name in ("output", "scratch", "checkpoints"):
            (work / name).mkdir(parents=True)
        augmentation = None
        if server is not None:
            llm = LlmEndpoint(base_url=server.url, model="m", price=options.pop("price", None))
            augmentation = Augmentation(llm=llm, budget=LlmBudget(**{"calls": 2000, **options}))
        params = CurateParams(sandbox=Sandbox(memory="1Gi"), memory=Memory(), seed=1, augmentation=augmentation)
        request = StageRequest(
            evolution_uid="u",
            version=version,
            stage=Stage.CURATE,
            attempt=self.attempts,
            store=StoreRef(uri=(self.folder / "store").as_uri()),
            prefix=f"curate/a{self.attempts}",
            inputs={},
            params=params,
        )
        checkpoints = FolderCheckpoints(work / "checkpoints")
        return curate(
            StageRun(request, self.folder / "inputs", self.output, work / "scratch", checkpoints, Silent()), params
        )

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.output / name).read_text().splitlines()]

    def profile(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.output / "profile.json").read_text())["augmentation"]
        return found

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.output.iterdir()}


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv(REWRITE_KEY_VARIABLE, KEY)
    return Case(tmp_path)


def rewrites(change: Callable[[str], str]) -> Reply:
    """Answers with the text that was sent, changed."""

    def reply(handler: Handler) -> None:
        asked = handler.body["messages"][1]["content"]
        shown = json.loads(asked.partition('<data name="text">\n')[2].partition("\n</data>")[0])
        handler.send(200, completion(json.dumps({"text": change(shown["text"])})))

    return reply


GOOD = rewrites(lambda text: f"Dear customer, {text}")


def test_answers_stand_in_the_rows_and_the_lineage_says_whence(case: Case) -> None:
    with chat_server(GOOD) as server:
        result = case.curate(server)
        assert len(server.requests) == ROWS and set(server.keys) == {f"Bearer {KEY}"}
    assert (result.outcome, result.calls, result.tokens, result.cache) == (Outcome.OK, ROWS, 1000 * ROWS, True)
    rows = case.lines("sft.jsonl")
    assert [row["messages"][-1]["content"] for row in rows] == [
        f"Dear customer, W{n} is under way." for n in range(ROWS)
    ]
    assert all(row["messages"][1:3] == trajectory(n)["messages"][1:3] for n, row in enumerate(rows))
    entry = next(entry for entry in case.lines("lineage.jsonl") if entry["id"] == "sft-000000")
    assert entry["operators"] == ["request_rewrite"]
    (made,) = entry["rewritten"]
    assert (made["turn"], made["kind"], made["instruction"], made["model"]) == (1, "answer", "more polite", "m")
    assert made["span"].startswith("sha256:") and made["answer"].startswith("sha256:") != made["span"]
    assert case.profile() == {"requested": ROWS, "answered": ROWS, "unanswered": {}}
    assert all(KEY.encode() not in data for data in case.files().values())


def test_a_replay_asks_nothing_and_gives_the_same(case: Case) -> None:
    with chat_server(GOOD) as server:
        case.curate(server)
        first = case.files()
        again = case.curate(server, version=7)
        assert len(server.requests) == ROWS
    assert case.files() == first
    assert (again.calls, again.tokens, again.usd) == (0, 0, 0.0)


def test_an_attempt_after_a_kill_counts_what_the_killed_one_paid(case: Case) -> None:
    with chat_server(GOOD) as server:
        case.curate(server)
        assert case.curate(server).calls == ROWS and len(server.requests) == ROWS


def test_prompts_in_other_words_stand_beside_the_originals(case: Case) -> None:
    with chat_server(rewrites(lambda text: text.replace("please ship", "I'd like you to send"))) as server:
        case.curate(server, OTHER_WORDS)
    opened = [row["messages"][0]["content"] for row in case.lines("sft.jsonl")]
    assert opened[:2] == ["please ship W0 to Mei Tanaka", "I'd like you to send W0 to Mei Tanaka"]
    assert len(opened) == 2 * ROWS
    # turn 1 has no user's message before it
    assert case.profile() == {"requested": 2 * ROWS, "answered": ROWS, "unanswered": {"no-text": ROWS}}


BAD: dict[str, tuple[Reply, str]] = {
    "chatter": (says("Sure, here it is: W0 is under way, dear customer."), "form"),
    "another form": (says('{"answer": "W0 is under way"}'), "form"),
    "cut": (says('{"text": "W0', finish="length"), "form"),
    "nothing": (says(None), "form"),
    "empty": (rewrites(lambda text: "  "), "length"),
    "too long": (rewrites(lambda text: text + " very" * 500), "length"),
    "a tool call": (rewrites(lambda text: text + ' <tool_call>{"name": "refund"}'), "markup"),
    "a token of a chat template": (rewrites(lambda text: text + "<|im_end|>"), "markup"),
    "a thought": (rewrites(lambda text: "<think>hm</think>" + text), "markup"),
    "control characters": (rewrites(lambda text: text + "\x1b[31m"), "markup"),
    "another number": (rewrites(lambda text: text + " It arrives on day 8."), "values"),
    "a lost code": (rewrites(lambda text: "It is under way."), "values"),
    "a dev task": (rewrites(lambda text: f"{text} {DEV}"), "dev-content"),
    "no change": (rewrites(lambda text: text.upper()), "same"),
    "a refusal": (says(None, refusal="I can't"), "withheld"),
    "filtered": (fails(400, "content_filter"), "withheld"),
}


@pytest.mark.parametrize("what", BAD)
def test_answers_that_can_not_be_taken_are_named_and_not_asked_for_again(what: str, tmp_path: Path) -> None:
    reply, why = BAD[what]
    with chat_server(reply) as server:
        done = ask(tmp_path, server)
        again = ask(tmp_path, server, version="u/7")
        assert len(server.requests) == ROWS
    assert done.counts() == again.counts() == {"requested": ROWS, "answered": 0, "unanswered": {why: ROWS}}
    assert (done.calls, again.calls, done.is_final) == (ROWS, 0, True)
    assert all(row["detail"] for row in done.to_rows())


def test_values_that_calls_take_stay_in_prompts_and_thoughts(tmp_path: Path) -> None:
    with chat_server(rewrites(lambda text: "W0 goes to Mei Tanaka on day 1000.")) as server:
        assert ask(tmp_path, server, RewriteKind.REASONING).counts()["unanswered"] == {"values": ROWS}
    with chat_server(rewrites(lambda text: "The user asks for it.")) as server:
        answers = ask(tmp_path, server, RewriteKind.REASONING).answers
    assert {answer.text for answer in answers.values()} == {"The user asks for it."}
    with chat_server(rewrites(lambda text: text.replace("Mei Tanaka", "Mei"))) as server:
        done = ask(tmp_path, server, RewriteKind.PROMPT)
    assert {str(refused) for refused in done.unanswered.values()} == {"'mei tanaka' is gone"}


def test_there_is_nothing_to_ask_where_there_is_no_text(tmp_path: Path) -> None:
    with chat_server(GOOD) as server:
        assert ask(tmp_path, server, RewriteKind.ANSWER, turn=0).counts()["unanswered"] == {"no-text": ROWS}
        assert ask(tmp_path, server, RewriteKind.PROMPT, turn=1).counts()["unanswered"] == {"no-text": ROWS}
        assert not server.requests


def flaky(bad: Reply, sign: str = "W2") -> Reply:
    """Answers well where `sign` does not stand in the question: for all but row 2."""

    def reply(handler: Handler) -> None:
        (bad if sign in handler.body["messages"][1]["content"] else GOOD)(handler)

    return reply


LOST: dict[str, Reply] = {
    "busy": fails(429, "slow down", retry_after="0"),
    "down": fails(503),
    "half an answer": sends(completion('{"text": "x"}')[:60], missing=90),
    "no completion": sends(b"<html>"),
    "silent": hangs,
    "refused": fails(422, "unprocessable"),
}


@pytest.mark.parametrize("what", LOST)
def test_a_request_that_gets_no_answer_is_asked_again_another_time(what: str, tmp_path: Path) -> None:
    with chat_server(flaky(LOST[what])) as server:
        done = ask(tmp_path, server, limits=IMPATIENT if what == "silent" else QUICK)
    assert done.counts() == {"requested": ROWS, "answered": ROWS - 1, "unanswered": {"endpoint": 1}}
    assert not done.is_final
    assert [row["row"] for row in done.to_rows() if row.get("unanswered") and row["detail"]] == [2]
    with chat_server(GOOD) as healthy:
        assert ask(tmp_path, healthy).counts()["answered"] == ROWS


def test_an_endpoint_that_answers_nothing_is_tried_again_later(tmp_path: Path) -> None:
    with chat_server(fails(503)) as server:
        with pytest.raises(Transient, match=r"augmentation\.llm: HTTP 503"):
            ask(tmp_path, server)
        assert len(server.requests) == ROWS * QUICK.tries


def test_an_endpoint_that_falls_silent_is_asked_no_more(tmp_path: Path) -> None:
    ways = ["well"] * (WAVE // ROWS) + ["badly"] * 8
    many = [Rewrite(row, 1, RewriteKind.ANSWER, f"{way} {n}") for n, way in enumerate(ways) for row in range(ROWS)]
    with chat_server(flaky(fails(503), "badly")) as server:
        done = ask(tmp_path, server, requests=many)
        assert 2 * WAVE <= len(server.requests) <= WAVE + WAVE * QUICK.tries
    assert done.counts() == {"requested": 40, "answered": WAVE, "unanswered": {"endpoint": 40 - WAVE}}
    assert list(done.answers) == many[:WAVE]


def test_an_endpoint_that_fails_too_often_is_asked_no_more(tmp_path: Path) -> None:
    many = [Rewrite(row, 1, RewriteKind.ANSWER, f"way {way}") for way in range(40) for row in range(ROWS)]
    with chat_server(flaky(fails(503))) as server:
        done = ask(tmp_path, server, requests=many)
    assert len(done.answers) == 3 * MOST_LOST
    reasons = [str(refused) for refused in done.unanswered.values()]
    assert reasons.count("HTTP 503") == MOST_LOST
    assert reasons.count(f"not asked: {MOST_LOST} had no answer: HTTP 503") == len(many) - 4 * MOST_LOST


def test_two_requests_for_the_same_are_one_in_the_bill(tmp_path: Path) -> None:
    same = {row: parse_openai(trajectory(0), f"x:{row}") for row in range(2 * WAVE)}
    asked = [Rewrite(row, 1, RewriteKind.ANSWER, "as you like") for row in same]
    with chat_server(GOOD) as server:
        done = ask(tmp_path, server, requests=asked, texts=same)
        sent = len(server.requests)
        again = ask(tmp_path, server, requests=asked, texts=same)
        assert len(server.requests) == sent
    assert (done.calls, again.calls, len(done.answers)) == (sent, 1, 2 * WAVE)


def test_a_refused_key_is_for_an_admin(tmp_path: Path) -> None:
    with chat_server(fails(401)) as server, pytest.raises(Denied) as caught:
        ask(tmp_path, server)
    assert REWRITE_KEY_VARIABLE in str(caught.value) and KEY not in str(caught.value)


def test_the_budget_ends_the_calls_and_a_replay_ends_at_the_same_request(tmp_path: Path) -> None:
    with chat_server(GOOD) as server:
        done = ask(tmp_path, server, calls=3)
        again = ask(tmp_path, server, version="u/7", calls=3)
        assert len(server.requests) == 3
    assert done.counts() == {"requested": ROWS, "answered": 3, "unanswered": {"budget": 1}}
    assert list(done.to_rows()) == list(again.to_rows())
    assert (done.calls, again.calls) == (3, 0)
    assert "augmentation.budget.calls" in str(next(iter(done.unanswered.values())))


@given(st.integers(0, 12_000), st.integers(0, 10))
@settings(max_examples=12)
def test_what_is_answered_within_a_budget_is_the_same_with_and_without_kept_answers(tokens: int, kept: int) -> None:
    many = [Rewrite(row, 1, RewriteKind.ANSWER, f"way {way}") for way in range(3) for row in range(ROWS)]
    with TemporaryDirectory() as name, chat_server(GOOD) as server:
        fresh = ask(Path(name) / "fresh", server, requests=many, tokens=tokens)
        ask(Path(name) / "warm", server, requests=many[::-1][:kept], tokens=10**9, version="u/7")
        warm = ask(Path(name) / "warm", server, requests=many, tokens=tokens)
    assert list(fresh.to_rows()) == list(warm.to_rows())
    assert warm.calls <= fresh.calls


def test_money_is_counted_at_the_price_of_the_spec(tmp_path: Path) -> None:
    with chat_server(GOOD) as server:
        done = ask(tmp_path, server, price=TokenPrice(input=10.0, output=20.0))
    assert done.usd == pytest.approx(ROWS * (900 * 10 + 100 * 20) / 1e6)


def test_without_a_model_the_gate_refuses_requests_and_says_what_to_do(case: Case) -> None:
    result = case.curate(None)
    assert (result.outcome, result.reason) == (Outcome.REJECTED, "rewrite-model")
    assert "spec.augmentation.llm" in result.message and "(line " in result.message


def test_a_policy_that_requests_nothing_is_not_run_again(case: Case) -> None:
    with chat_server(GOOD) as server:
        assert case.curate(server, "items").outcome is Outcome.OK
        assert not server.requests
    assert not (case.output / "rewrites.jsonl").exists()


REFUSED = {
    "by chance": ("api.request_rewrite(items.keep(lambda i: hash(str(i.row)) % 2 == 0, 'c'), ctx, kind='answer', "
                  "instruction='x')", "deterministic"),
    "another kind": ("api.request_rewrite(items, ctx, kind='calls', instruction='x')", "policy-error"),
    "an answer of its own": (
        "items.change(lambda i: api.Item(i.row, i.turns, rewrites=(api.Rewrite(i.row, 1, "
        "api.RewriteKind.ANSWER, 'x'),)), 'forge')",
        "rewrite-answered",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_requests_that_break_the_contract_cost_nothing(what: str, case: Case) -> None:
    augment, rule = REFUSED[what]
    with chat_server(GOOD) as server:
        result = case.curate(server, augment)
        assert not server.requests
    assert (result.outcome, result.reason, result.calls) == (Outcome.REJECTED, rule, 0)


def test_a_policy_that_is_refused_after_its_rewrites_has_cost_them(case: Case) -> None:
    gives_up = f"{POLITE} if not ctx.rewritten else api.keep_short(items, max_turns=0)"
    with chat_server(GOOD) as server:
        result = case.curate(server, gives_up)
    assert (result.outcome, result.reason, result.calls) == (Outcome.REJECTED, "sft-not-empty", ROWS)
