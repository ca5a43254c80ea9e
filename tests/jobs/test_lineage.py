"""One lineage three ways: by a model's answers, by a coding agent's commands, and recorded. All come to one champion.

The runs share a store: what is equal to the byte in what it is made of is taken from the cache, so the recorded run trains
and the others do not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from curateevo.api.evolution import EvolutionPhase, Verdict
from curateevo.local.objects import RunFolder
from curateevo.store.local import LocalStore
from tests.core.evolver.llmserver import COMPLETION_TOKENS, PROMPT_TOKENS, ChatServer, Reply, chat_server, says
from tests.jobs.minirun import facts, manifests, start

LINEAGE = Path(__file__).parent / "lineage"
LIMIT_SECONDS = 600
CALL = PROMPT_TOKENS + COMPLETION_TOKENS
PRICE = {"input": 1.0, "output": 2.0}
DOLLARS = (PROMPT_TOKENS + 2 * COMPLETION_TOKENS) / 1e6
EXAMPLE = Path(__file__).parents[2] / "examples/toolworld-agent.yaml"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lineage") / "store"


def run_by(proposer: dict[str, Any], run: Path, store: Path) -> dict[str, Any]:
    """Run the lineage's evolution by a proposer. Returns what runs of one lineage must agree on."""
    store.mkdir(exist_ok=True)
    run.mkdir()
    (run / "store").symlink_to(store)
    spec = yaml.safe_load((LINEAGE / "evolution.yaml").read_text())
    spec["spec"]["proposer"] = proposer
    path = run.parent / f"{run.name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    code = start(path, run).wait(timeout=LIMIT_SECONDS)
    assert code == 0, (run.parent / f"{run.name}.log").read_text()[-3000:]
    found = facts(run)
    digests = {k: v for k, v in found.pop("digests").items() if k[0] != "propose"}  # type: ignore[attr-defined]
    return {**found, "digests": digests}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, store: Path) -> dict[str, Any]:
    """The lineage by `replay`."""
    run = tmp_path_factory.mktemp("replay") / "run"
    found = run_by({"type": "replay", "replay": str(LINEAGE / "policies")}, run, store)
    status = RunFolder(run).evolution().status
    assert (status.phase, status.spent.tokens, status.spent.usd) == (EvolutionPhase.COMPLETE, 0, 0.0)
    verdicts = [v.status.verdict for _, v in sorted(RunFolder(run).versions().items())]
    assert verdicts == [Verdict.COMMITTED] * 3
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def proposal_file(run: Path, number: int, name: str) -> str:
    manifest = manifests(run)["propose", number]
    return (LocalStore(run / "store").root / manifest.file(name).key).read_text()


def assert_nothing_was_trained(run: Path) -> None:
    """Every training was taken from the recorded run: its inputs were the same to the byte."""
    trained = {key: manifest.cached_from for key, manifest in manifests(run).items() if key[0] == "train"}
    assert len(trained) == 3 and all(trained.values())


def endpoint(server: ChatServer) -> dict[str, Any]:
    return {"baseURL": server.url, "model": "stand-in", "price": PRICE}


@pytest.mark.train
@pytest.mark.slow
def test_a_models_answers_make_the_recorded_lineage(recorded: dict[str, Any], run: Path, store: Path) -> None:
    answers = [says(path.read_text()) for path in sorted((LINEAGE / "llm").glob("*.md"))]
    with chat_server(*answers) as server:
        found = run_by({"type": "llm", "llm": endpoint(server)}, run, store)
    assert found == recorded
    assert_nothing_was_trained(run)
    spent = RunFolder(run).evolution().status.spent
    assert (spent.calls, spent.tokens, spent.usd) == (3, 3 * CALL, pytest.approx(3 * DOLLARS))
    assert "SEARCH does not stand" in proposal_file(run, 1, "conversation.jsonl")
    assert '"verdict": "Committed"' in server.requests[2]["messages"][1]["content"], "round 2 knows round 1"


def commands(number: int) -> list[Reply]:
    """The commands of one round, as a model's tool calls."""
    out = []
    for index, step in enumerate(json.loads((LINEAGE / f"agent/{number:03d}.json").read_text())):
        call = {
            "id": f"call-{number}-{index}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": step["command"]})},
        }
        out.append(says(step["says"], "tool_calls", tool_calls=[call]))
    return out


@pytest.mark.train
@pytest.mark.slow
def test_a_coding_agents_commands_make_the_recorded_lineage(recorded: dict[str, Any], run: Path, store: Path) -> None:
    """mini-swe-agent itself, as the example runs it, with a model that says what is written down."""
    agent = yaml.safe_load(EXAMPLE.read_text())["spec"]["proposer"]["agent"]
    assert agent["command"][0] == "mini"
    rounds = [commands(1), commands(2)]
    with chat_server(*rounds[0], *rounds[1]) as server:
        found = run_by({"type": "agent", "llm": endpoint(server), "agent": agent}, run, store)
    assert found == recorded
    assert_nothing_was_trained(run)
    spent = RunFolder(run).evolution().status.spent
    assert (spent.calls, spent.tokens, spent.usd) == (8, 8 * CALL, pytest.approx(8 * DOLLARS))
    for number in (1, 2):
        assert "contract: passed" in proposal_file(run, number, "conversation.jsonl"), "the gate ran in the workspace"
        trajectory = json.loads(proposal_file(run, number, "agent/archive/trajectory.json"))
        assert trajectory["info"]["exit_status"] == "Submitted"
