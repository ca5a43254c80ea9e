"""Clusters: counted, ordered, with a quote that stands in its turn or no claim at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curateevo.evolver.diagnosis import Diagnosis, Mode, diagnose
from curateevo.evolver.diagnosis.clusters import explain, stands
from curateevo.evolver.diagnosis.episode import read_episode
from curateevo.evolver.diagnosis.modes import READINGS
from curateevo.evolver.diagnosis.peers import Peers
from curateevo.evolver.diagnosis.rules import Claim, Rule, recovery
from tests.core.evolver.diagnosis.test_rules import BOB, run


def test_every_mode_says_what_to_do() -> None:
    assert set(READINGS) == set(Mode)
    assert {reading.target for reading in READINGS.values()} == {"sft", "rl", "memory"}


def test_a_record_has_what_the_evolver_needs() -> None:
    failures = [run("Done.", task=f"t{n}") for n in range(3)] + [run(("page", BOB, "error"), "Done.", task="e")]
    found = diagnose([*failures, run("x", success=1.0, task="ok")], {}).to_json()
    assert (found["episodes"], found["failures"]) == (5, 4)
    worst, other = found["clusters"]
    assert worst == {
        "mode": "no_call_where_needed",
        "name": "",
        "failure_family": "grounded execution gap",
        "count": 3,
        "share": 0.75,
        "families": {"f": 3},
        "evidence": [{"task": "t0", "turn": 0, "quote": "Done."}, {"task": "t1", "turn": 0, "quote": "Done."}],
        "seen": "an answer without any call",
        "hypothesis": "SFT rows answer without the call that was needed",
        "curation_hint": "drop rows that stop early",
        "target_stage": "sft",
        "expected_metric": "episodes with a call; success on f",
    }
    assert other["mode"] == "recovery_failure"


def test_what_no_rule_explains_comes_last() -> None:
    odd = [run(("page", BOB, "ok"), "Done.", task=f"t{n}") for n in range(3)]
    assert [c.mode for c in diagnose([*odd, run("Done.", task="n")], {}).clusters] == [Mode.NO_CALL, Mode.UNKNOWN]


def test_a_quote_that_is_not_found_drops_its_claim() -> None:
    episode = read_episode(run(("page", BOB, "error offline"), "Done."), {})

    def claiming(turn: int, quote: str) -> Rule:
        return lambda episode, peers: Claim(Mode.LOOP, turn, quote)

    rules = [claiming(0, "never said"), claiming(1, "error offline"), claiming(7, "Done."), recovery]
    assert explain(episode, Peers(), rules).mode is Mode.RECOVERY_FAILURE
    assert explain(episode, Peers(), [*rules[:3], claiming(0, "error offline")]).mode is Mode.LOOP
    assert explain(episode, Peers(), rules[:3]).mode is Mode.UNKNOWN


@given(st.text(max_size=8), st.integers(-2, 4))
def test_a_claim_stands_only_where_its_words_are(quote: str, turn: int) -> None:
    episode = read_episode(run(("page", BOB, "error offline"), "Done."), {})
    texts = {0: ["", "page", json.dumps(BOB), "Bob", "lamp", "error offline"], 1: ["Done."]}
    expected = any(quote in text for text in texts[turn]) if turn in texts and quote else turn == 0
    assert stands(Claim(Mode.LOOP, turn, quote), episode.turns) == expected


def test_an_episode_that_cannot_be_read_is_unknown_and_counted() -> None:
    broken = {**run("x"), "messages": [{"role": "tool", "tool_call_id": "x", "content": "?"}]}
    found = diagnose([broken], {})
    assert [(c.mode, c.count) for c in found.clusters] == [(Mode.UNKNOWN, 1)]


@pytest.fixture(scope="module")
def airline(airline_runs: Path) -> tuple[list[Any], Diagnosis]:
    runs = json.loads(airline_runs.read_text())
    rows = [
        {
            "task": f"airline-{r['task_id']}",
            "family": "airline",
            "repeat": r["trial"],
            "success": r["reward"],
            "messages": r["traj"],
        }
        for r in runs
    ]
    return rows, diagnose(rows, {})


def test_every_quote_from_the_airline_failures_is_found_in_its_episode(airline: tuple[list[Any], Diagnosis]) -> None:
    rows, found = airline
    assert (found.episodes, found.failures, len(found.findings)) == (200, 116, 116)
    failed: dict[str, list[str]] = {}
    for row in rows:
        if row["success"] < 1:
            failed.setdefault(row["task"], []).append("\n".join(_texts(row["messages"])))
    for finding in found.findings:
        assert finding.evidence.quote
        assert any(finding.evidence.quote in text for text in failed[finding.evidence.task]), finding
    assert sum(cluster.count for cluster in found.clusters) == found.failures


def _texts(messages: list[dict[str, Any]]) -> Iterator[str]:
    """All that stands in the messages; of calls, arguments as the log has them, spaced as we write them, and values."""
    for message in messages:
        yield str(message.get("content") or "")
        for call in message.get("tool_calls") or ():
            parsed = json.loads(call["function"]["arguments"])
            yield call["function"]["name"]
            yield json.dumps(parsed, ensure_ascii=False)


def test_most_airline_failures_are_explained(airline: tuple[list[Any], Diagnosis]) -> None:
    unknown = sum(c.count for c in airline[1].clusters if c.mode is Mode.UNKNOWN)
    assert unknown < airline[1].failures / 2
    assert len(airline[1].clusters) >= 6
