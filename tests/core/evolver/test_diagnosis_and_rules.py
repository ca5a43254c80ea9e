"""Diagnosis by rules with quotes that really stand in the episode; patches that are strict; the rules proposer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.errors import ContractBroken, PolicyRejected
from curateevo.api.evolution import Verdict
from curateevo.api.spec import Focus
from curateevo.api.stage import HistoryEntry
from curateevo.evolver.diagnosis import Diagnosis, Mode, diagnose
from curateevo.evolver.patch import Edit, Patch, apply_patch, params_edit, unified_diff
from curateevo.evolver.proposal import ProposalInput
from curateevo.evolver.replay import ReplayProposer
from curateevo.evolver.rules import RulesProposer
from curateevo.policy.builtin import source_of
from curateevo.policy.source import check_static, params_of

STARTER = source_of("starter")


def episode(
    *moves: Any, prompt: str = "ship the lamp to Oslo", notes: str = "", success: float = 0.0
) -> dict[str, Any]:
    """Moves: (tool, arguments, result), or the text of a final answer."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"notes:\n{notes}"}] if notes else []
    messages.append({"role": "user", "content": prompt})
    for number, move in enumerate(moves):
        if isinstance(move, str):
            messages.append({"role": "assistant", "content": move})
            continue
        name, arguments, result = move
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": text}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "name": name, "content": result})
    return {
        "task": "t1",
        "family": "ship",
        "subject": "seed-0",
        "repeat": 0,
        "success": success,
        "messages": messages,
        "tools": [],
    }


@pytest.mark.parametrize(
    ("row", "checks", "mode", "quote"),
    [
        (episode('<tool_call>\n{"name": "ship"'), {}, Mode.MALFORMED_CALL, "<tool_call>"),
        (episode(("ship", "{bad", "error arguments"), "Done."), {}, Mode.MALFORMED_CALL, "{bad"),
        (episode(*[("ship", {"city": "Oslo"}, "error offline")] * 2, "Done."), {}, Mode.REPEATED_FAILURE, "Oslo"),
        (episode(("ship", {"city": "Oslo", "code": "willow"}, "error code"), "Done."), {}, Mode.INVENTED_ARGUMENT, "willow"),
        (episode(("ship", {"city": "Oslo", "code": "amber"}, "error code"), "Done.", notes="Oslo code amber"), {}, Mode.MEMORY_MISLED, "error code"),
        (episode(("ship", {"city": "Oslo"}, "error offline"), "Done."), {}, Mode.RECOVERY_FAILURE, "error offline"),
        (episode(("ship", {"city": "Oslo"}, "error arguments"), "Done."), {}, Mode.SCHEMA_VIOLATION, "error arguments"),
        (episode("Done."), {}, Mode.NO_CALL, "Done."),
        (episode(("buy", {"item": "lamp"}, "ok"), "Done."), {"tools": False}, Mode.WRONG_TOOL, "buy"),
        (episode(("ship", {"city": "Oslo"}, "ok"), "Done."), {"tools": True}, Mode.WRONG_ARGUMENT, "Oslo"),
        (episode(("find", {"item": "lamp"}, "ok"), ("ship", {"city": "Oslo"}, "ok"), "Done."), {"tools": False, "nothing_needless": False}, Mode.NEEDLESS_CALL, "ship"),
        (episode(*[("ship", {"city": "Oslo"}, "ok")] * 3, "Done."), {}, Mode.LOOP, "Oslo"),
    ],
)  # fmt: skip
def test_each_mode_is_found_with_a_quote_from_its_turn(
    row: dict[str, Any], checks: dict[str, bool], mode: Mode, quote: str
) -> None:
    found = diagnose([row], {("t1", 0): checks})
    assert [c.mode for c in found.clusters] == [mode]
    evidence = found.clusters[0].evidence[0]
    assert quote in evidence.quote
    texts = [m["content"] for m in row["messages"]]
    texts += [t for m in row["messages"] for c in m.get("tool_calls", ()) for t in c["function"].values()]
    assert any(evidence.quote in text for text in texts)


def test_successes_and_unmeasured_episodes_are_no_failures() -> None:
    rows = [episode("Done.", success=1.0), {**episode("Done."), "success": None}, episode("Done.")]
    found = diagnose(rows, {})
    assert (found.episodes, found.failures, found.family_success) == (2, 1, {"ship": 0.5})
    assert found.clusters[0].share == 1.0


def test_every_claim_on_the_airline_failures_has_its_quote(airline_runs: Path) -> None:
    """Real failures: whatever is claimed of them stands in them."""
    runs = [r for r in json.loads(airline_runs.read_text()) if r["reward"] < 1][:60]
    rows = [
        {"task": str(n), "family": "airline", "repeat": 0, "success": 0.0, "messages": r["traj"]}
        for n, r in enumerate(runs)
    ]
    found = diagnose(rows, {})
    assert found.failures == 60
    for cluster in found.clusters:
        for evidence in cluster.evidence:
            texts = [str(m.get("content")) for m in runs[int(evidence.task)]["traj"]]
            texts += [
                c["function"]["arguments"] for m in runs[int(evidence.task)]["traj"] for c in m.get("tool_calls") or ()
            ]
            texts += [
                c["function"]["name"] for m in runs[int(evidence.task)]["traj"] for c in m.get("tool_calls") or ()
            ]
            loose = "".join(texts).replace(" ", "")
            assert evidence.quote.replace(" ", "") in loose, evidence


def given(
    diagnosis: Diagnosis, focus: Focus = Focus.EFFECTIVENESS, source: str = STARTER, lost: tuple[str, ...] = ()
) -> ProposalInput:
    history = tuple(
        HistoryEntry(number=n, focus=focus, verdict=Verdict.REVERTED, reason="x", method=m) for n, m in enumerate(lost)
    )
    return ProposalInput(1, focus, source, {}, diagnosis, history)


def test_rules_answer_the_commonest_failure_and_change_params_only() -> None:
    invented = episode(("ship", {"city": "Oslo", "code": "willow"}, "error code"), "Done.")
    proposal = RulesProposer().propose(given(diagnose([invented] * 3, {})))
    assert proposal is not None and proposal.method == "memory-of-facts"
    check_static(proposal.source)
    assert params_of(proposal.source)["memory_facts"] == 300
    changed = [line for line in unified_diff(STARTER, proposal.source, "a", "b").splitlines() if line.startswith("+ ")]
    assert changed == ['+    "memory_facts": 300,']


def test_rules_do_not_repeat_what_lost_and_come_to_an_end() -> None:
    diagnosis = diagnose([episode("Done.")], {})
    tried: list[str] = []
    source = STARTER
    while (proposal := RulesProposer().propose(given(diagnosis, source=source, lost=tuple(tried)))) is not None:
        assert proposal.method not in tried
        tried.append(proposal.method)
        assert len(tried) < 20
    assert len(tried) >= 5
    again = RulesProposer().propose(given(diagnosis))
    assert again is not None and again.method == tried[0]


def test_rules_leave_a_policy_alone_that_they_do_not_know() -> None:
    assert RulesProposer().propose(given(diagnose([episode("Done.")], {}), source=source_of("keep-all"))) is None


def test_a_search_that_misses_names_the_nearest_lines_and_nothing_is_changed_in_silence() -> None:
    def patch(*edits: Edit) -> Patch:
        return Patch("m", "h", "e", edits)

    with pytest.raises(PolicyRejected, match="nearest lines: .*memory_facts"):
        apply_patch(STARTER, patch(Edit('"memory_fact": 0,', '"memory_facts": 1,')))
    with pytest.raises(PolicyRejected, match="stands [0-9]+ times"):
        apply_patch(STARTER, patch(Edit("return items", "return ()")))
    with pytest.raises(PolicyRejected, match="no-op"):
        apply_patch(STARTER, patch(Edit('"memory_facts": 0,', '"memory_facts": 0,  # still')))
    with pytest.raises(PolicyRejected, match="evolvable"):
        apply_patch(STARTER, patch(Edit("POLICY_API = 1", "POLICY_API = 1\nEXTRA = 2")))
    with pytest.raises(PolicyRejected, match="import"):
        apply_patch(
            STARTER, patch(Edit("from curateevo.policy import api", "from curateevo.policy import api\nimport os"))
        )
    with pytest.raises(PolicyRejected, match="no parameter"):
        params_edit(STARTER, {"nothing": 1})


def test_replay_gives_the_recorded_file_of_the_round_and_ends_with_the_files(tmp_path: Path) -> None:
    (tmp_path / "001.py").write_text(STARTER)
    replay = ReplayProposer(tmp_path)
    base = given(diagnose([], {}))
    found = replay.propose(base)
    assert found is not None and found.source == STARTER
    assert replay.propose(ProposalInput(2, base.focus, "", {}, base.diagnosis, ())) is None
    with pytest.raises(ContractBroken, match="is no folder"):
        ReplayProposer(tmp_path / "none")
