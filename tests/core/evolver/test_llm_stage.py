"""The propose program with an LLM: what is written, what is counted, how a refused round ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.errors import ContractBroken
from curateevo.api.evolution import Stage
from curateevo.api.spec import AgentProgram, Focus, LlmBudget, LlmEndpoint, Proposer, ProposerType
from curateevo.api.stage import Outcome, ProposeParams, StageRequest, StoreRef
from curateevo.evolution.pods import LLM_KEY_VARIABLE
from curateevo_jobs.checkpoints import FolderCheckpoints
from curateevo_jobs.propose import CONVERSATION, propose
from curateevo_jobs.stage import StageResult, StageRun
from tests.core.evolver.llmserver import ChatServer, chat_server, fails, says
from tests.core.evolver.test_agent import HEAD, SAY
from tests.core.evolver.test_llm import GOOD, KEY, REPLACE, SEARCH, STARTER
from tests.escape.world import write_corpus

Run = Callable[..., StageResult]


class Silent:
    def report(self, phase: str, done: int, total: int, **metrics: float) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """One attempt at the stage in `tmp_path`; `output` is fresh each time, checkpoints stay."""
    monkeypatch.setenv(LLM_KEY_VARIABLE, KEY)
    inputs = tmp_path / "inputs"
    (inputs / "diag").mkdir(parents=True)
    (inputs / "policy.py").write_text(STARTER)
    (inputs / "profile.json").write_text("{}")
    (inputs / "champion").mkdir()
    (inputs / "champion/profile.json").write_text('{"covered_tools": ["ship"]}')
    messages: list[dict[str, Any]] = [{"role": "user", "content": "ship it"}, {"role": "assistant", "content": "Done."}]
    row = {
        "subject": "seed-0",
        "task": "t",
        "family": "ship",
        "repeat": 0,
        "success": 0.0,
        "messages": messages,
        "tools": [],
    }
    (inputs / "diag/trajectories.jsonl").write_text(json.dumps(row) + "\n")
    (inputs / "diag/results.jsonl").write_text(json.dumps({**row, "checks": {}}) + "\n")
    (tmp_path / "checkpoints").mkdir()

    def attempt(
        server: ChatServer,
        output: str = "output",
        agent: AgentProgram | None = None,
        names: bool = False,
        **budget: Any,
    ) -> StageResult:
        (tmp_path / output).mkdir()
        endpoint = LlmEndpoint(base_url=server.url, model="m")
        kind, spent = ProposerType.AGENT if agent else ProposerType.LLM, LlmBudget(**budget)
        chosen = Proposer(type=kind, llm=endpoint, agent=agent, name_clusters=names, budget=spent)
        params = ProposeParams(number=1, focus=Focus.EFFECTIVENESS, proposer=chosen)
        store = StoreRef(uri=tmp_path.as_uri())
        request = StageRequest(
            evolution_uid="u", stage=Stage.PROPOSE, attempt=1, store=store, prefix="p", inputs={}, params=params
        )
        checkpoints = FolderCheckpoints(tmp_path / "checkpoints")
        scratch = tmp_path / f"scratch-{output}"
        scratch.mkdir()
        return propose(StageRun(request, inputs, tmp_path / output, scratch, checkpoints, Silent()), params)

    return attempt


def conversation(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / CONVERSATION).read_text().splitlines()]


def test_a_proposal_is_archived_with_its_conversation_and_is_never_reused(run: Run, tmp_path: Path) -> None:
    with chat_server(says("hm"), says(GOOD)) as server:
        result = run(server)
    assert (result.outcome, result.cache, result.calls, result.tokens) == (Outcome.OK, False, 2, 2000)
    assert not result.volatile
    assert [e["role"] for e in conversation(tmp_path / "output")] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert json.loads((tmp_path / "output/proposal.json").read_text())["method"] == "filter/keep-valid-rows"
    assert json.loads((tmp_path / "output/context.json").read_text())["covered_tools"] == ["ship"]
    assert all(KEY not in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_a_model_without_an_acceptable_answer_ends_its_round_and_not_the_run(run: Run, tmp_path: Path) -> None:
    with chat_server(says("hm")) as server:
        result = run(server)
    assert (result.outcome, result.reason, result.calls) == (Outcome.EXHAUSTED, "ProposalRefused", 4)
    assert "HYPOTHESIS is missing" in result.message
    assert conversation(tmp_path / "output")[-1]["role"] == "check"
    assert not (tmp_path / "output/policy.py").exists()


def test_what_an_earlier_version_did_is_not_proposed_again(run: Run, tmp_path: Path) -> None:
    (tmp_path / "inputs/tried").mkdir()
    (tmp_path / "inputs/tried/003.py").write_text(STARTER.replace(SEARCH, REPLACE))
    with chat_server(says(GOOD)) as server:
        result = run(server)
    assert result.outcome is Outcome.EXHAUSTED and "it does what version 3 did" in result.message


def test_a_spent_budget_is_a_normal_end(run: Run) -> None:
    with chat_server(says("hm")) as server:
        result = run(server, calls=1)
    assert (result.outcome, result.reason, result.calls) == (Outcome.EXHAUSTED, "BudgetSpent", 1)


def test_an_attempt_after_a_kill_pays_for_no_answer_twice(run: Run, tmp_path: Path) -> None:
    with chat_server(says("hm"), fails(400, "broken")) as server, pytest.raises(ContractBroken, match="broken"):
        run(server)
    with (tmp_path / "checkpoints" / CONVERSATION).open("a") as file:
        file.write('{"role": "assistant", "con')
    with chat_server(says(GOOD)) as server:
        result = run(server, "again")
    assert (len(server.requests), result.calls) == (1, 2)
    assert len(conversation(tmp_path / "again")) == 5


def test_a_key_that_is_not_needed_may_be_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LLM_KEY_VARIABLE)
    with chat_server(says(GOOD)) as server:
        assert run(server).outcome is Outcome.OK


NAMES = json.dumps({"groups": [{"name": "does not call", "clusters": ["no_call_where_needed"]}]})


def test_names_of_clusters_are_written_and_their_cost_is_counted(run: Run, tmp_path: Path) -> None:
    with chat_server(says(NAMES), says(GOOD)) as server:
        result = run(server, names=True)
        assert (result.outcome, result.calls, result.tokens) == (Outcome.OK, 2, 2000)
        again = run(server, output="after-a-kill", names=True)
        assert (again.calls, again.tokens, len(server.requests)) == (2, 2000, 2)
    found = json.loads((tmp_path / "output/diagnosis.json").read_text())
    assert (found["naming"], found["clusters"][0]["name"]) == ("names are those of the LLM", "does not call")
    assert len((tmp_path / "output/naming.jsonl").read_text().splitlines()) == 3
    assert "does not call" in server.requests[1]["messages"][1]["content"]


def test_names_take_of_the_budget_of_the_round(run: Run) -> None:
    with chat_server(says(NAMES), says(GOOD)) as server:
        result = run(server, names=True, calls=1)
    assert (result.outcome, result.reason, result.calls, len(server.requests)) == (
        Outcome.EXHAUSTED, "BudgetSpent", 1, 1,
    )  # fmt: skip


def test_what_an_agent_leaves_is_archived_when_it_is_refused_too(run: Run, tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", "sealed")
    for path in (tmp_path / "corpus").iterdir():
        path.rename(tmp_path / "inputs" / path.name)
    code = HEAD + "ask()\nopen('policy.py', 'a').write('SECRET = 2\\n')\nopen('archive/mine', 'w').write('kept')\n"
    agent = AgentProgram(command=(sys.executable, "-c", code + SAY))
    with chat_server(says("go on")) as server:
        result = run(server, agent=agent)
    output = tmp_path / "output"
    assert (result.outcome, result.reason, result.calls) == (Outcome.EXHAUSTED, "ProposalRefused", 1)
    assert (result.tokens, result.cache) == (1000, False)
    assert "outside the stage functions" in json.loads((output / "refused.json").read_text())["message"]
    assert (output / "refused.py").read_text() == STARTER + "SECRET = 2\n"
    assert (output / "agent/archive/mine").read_text() == "kept"
    assert result.volatile == {CONVERSATION, "agent/agent.log", "agent/archive/mine"}
    assert [e["role"] for e in conversation(output)] == ["user", "assistant", "check"]
    assert all(KEY not in path.read_text() for path in output.rglob("*") if path.is_file())
