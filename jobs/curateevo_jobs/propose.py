"""The propose program: diagnosis of the champion's diag failures, then the next policy."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import assert_never
from urllib.parse import urlparse

from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo.api.spec import Proposer as ProposerSpec
from curateevo.api.spec import ProposerType
from curateevo.api.stage import Outcome, ProposeParams, ProposeSummary
from curateevo.evolution.pods import LLM_KEY_VARIABLE
from curateevo.evolution.requests import CHAMPION_PROFILE, TRIED
from curateevo.evolver.agent import AgentProposer
from curateevo.evolver.diagnosis import diagnose, parse_jsonl
from curateevo.evolver.llm import LlmProposer
from curateevo.evolver.naming import Named, name_clusters
from curateevo.evolver.patch import unified_diff
from curateevo.evolver.proposal import (
    COVERED,
    Proposal,
    ProposalInput,
    ProposalRefused,
    Proposer,
    TriedPolicy,
    context_of,
)
from curateevo.evolver.replay import ReplayProposer
from curateevo.evolver.rules import RulesProposer
from curateevo.policy.confine import refuse_inspection
from curateevo.policy.source import check_static, policy_digest
from curateevo.trajectories.corpus import PROFILE
from curateevo.trajectories.model import JsonObject
from curateevo_jobs.stage import Checkpoints, StageResult, StageRun

POLICY, SUBMISSION = "policy.py", "submission.py"
TRAJECTORIES, RESULTS = "diag/trajectories.jsonl", "diag/results.jsonl"
CONVERSATION, NAMING, AGENT = "conversation.jsonl", "naming.jsonl", "agent"
SUBJECT = "seed-0"


def propose(run: StageRun, params: ProposeParams) -> StageResult:
    """Outcome Exhausted when the proposer has nothing more to try, no budget left, or no acceptable answer."""
    source = (run.inputs / POLICY).read_text(encoding="utf-8")
    profile = json.loads((run.inputs / PROFILE).read_text(encoding="utf-8"))
    episodes = read_episodes(run.inputs)
    run.progress.report("diagnosis", 0, 1)
    named = read_diagnosis(run, params.proposer, episodes)
    _write(run.output / "diagnosis.json", named.diagnosis.to_json())
    kept = json.loads((run.inputs / CHAMPION_PROFILE).read_text(encoding="utf-8"))
    _write(run.output / "context.json", context_of(named.diagnosis, profile, kept.get(COVERED, [])))
    run.progress.report("diagnosis", 1, 1)
    if named.transcript:
        _write_conversation(run.output / NAMING, named.transcript)
        params = params.model_copy(update={"proposer": left_after(params.proposer, named)})
    given = ProposalInput(
        params.number,
        params.focus,
        source,
        profile,
        named.diagnosis,
        params.history,
        read_tried(run.inputs),
        bool(params.rewriting),
    )
    result = ask(open_proposer(params, run, episodes), given, run.output)
    return replace(
        result,
        tokens=result.tokens + named.tokens,
        usd=result.usd + named.usd,
        calls=result.calls + named.calls,
        cache=not params.proposer.type.asks_model,
    )


def ask(proposer: Proposer, given: ProposalInput, output: Path) -> StageResult:
    """The next policy, or why there is none, with what was said, below `output`; what it cost."""
    try:
        proposal = proposer.propose(given)
    except ProposalRefused as refused:
        _write_conversation(output / CONVERSATION, refused.transcript)
        _write(output / "refused.json", {"reason": refused.reason, "message": refused.message})
        if refused.source:
            (output / "refused.py").write_text(refused.source, encoding="utf-8")
        return StageResult(
            ProposeSummary(),
            Outcome.EXHAUSTED,
            refused.reason,
            refused.message,
            _volatile(output),
            refused.tokens,
            refused.usd,
            refused.calls,
        )
    if proposal is None:
        return StageResult(ProposeSummary(), Outcome.EXHAUSTED, "ProposerExhausted", "nothing more to try")
    (output / POLICY).write_text(proposal.source, encoding="utf-8")
    diff = unified_diff(given.source, proposal.source, "parent/policy.py", "policy.py")
    (output / "policy.diff").write_text(diff, encoding="utf-8")
    _write(output / "proposal.json", _record(proposal))
    _write_conversation(output / CONVERSATION, proposal.transcript)
    summary = ProposeSummary(
        policy_digest=policy_digest(proposal.source),
        method=proposal.method,
        hypothesis=proposal.hypothesis,
    )
    return StageResult(
        summary,
        volatile=_volatile(output),
        tokens=proposal.tokens,
        usd=proposal.usd,
        calls=proposal.calls,
    )


class SubmittedPolicy:
    """The manual proposer: a person's file, checked when it was submitted and again here."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def propose(self, given: ProposalInput) -> Proposal | None:
        source = self._path.read_text(encoding="utf-8")
        check_static(source)
        return Proposal(source, "manual", "submitted by a person", "")


class Recorder:
    """The calls of this round's earlier attempts: each was paid for, and an answer to the same question stands."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._path = checkpoints.folder / CONVERSATION

    def entries(self) -> list[JsonObject]:
        """Whole lines only: the last one may have been cut by a kill."""
        if not self._path.is_file():
            return []
        whole = self._path.read_text(encoding="utf-8").rpartition("\n")[0]
        self._path.write_text(whole and f"{whole}\n", encoding="utf-8")
        return parse_jsonl(whole)

    def record(self, entry: JsonObject) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, sort_keys=True) + "\n")
        self._checkpoints.save()


def open_proposer(params: ProposeParams, run: StageRun, episodes: list[JsonObject]) -> Proposer:
    """The proposer of the spec; `episodes` are the champion's on diag. Raises SpecInvalid for a section that is missing
    and that it needs."""
    spec, inputs = params.proposer, run.inputs
    match spec.type:
        case ProposerType.RULES:
            return RulesProposer()
        case ProposerType.REPLAY:
            url = urlparse(spec.replay or "")
            if url.scheme not in ("", "file"):
                raise SpecInvalid(f"proposer.replay: {spec.replay}: must be a folder")
            return ReplayProposer(Path(url.path))
        case ProposerType.MANUAL:
            if not (inputs / SUBMISSION).is_file():
                raise ContractBroken("no submitted policy among the inputs")
            return SubmittedPolicy(inputs / SUBMISSION)
        case ProposerType.LLM:
            if spec.llm is None:
                raise SpecInvalid("spec.proposer.llm must be set for proposer.type llm")
            recorder = Recorder(run.checkpoints)
            return LlmProposer(
                spec.llm,
                spec.budget,
                api_key=os.environ.get(LLM_KEY_VARIABLE, ""),
                recorded=recorder.entries(),
                record=recorder.record,
            )
        case ProposerType.AGENT:
            if spec.llm is None or spec.agent is None:
                raise SpecInvalid("spec.proposer.llm and spec.proposer.agent must be set for proposer.type agent")
            refuse_inspection()  # the agent runs beside us, as the same user
            recorder = Recorder(run.checkpoints)
            return AgentProposer(
                spec.agent,
                spec.llm,
                spec.budget,
                scratch=run.scratch,
                kept=run.output / AGENT,
                corpus=run.inputs,
                episodes=episodes,
                api_key=os.environ.get(LLM_KEY_VARIABLE, ""),
                recorded=recorder.entries(),
                record=recorder.record,
            )
    assert_never(spec.type)


def read_diagnosis(run: StageRun, proposer: ProposerSpec, episodes: list[JsonObject]) -> Named:
    """Diagnose the champion's episodes on diag (its first training seed); a model names the clusters if it should."""
    results = parse_jsonl((run.inputs / RESULTS).read_text(encoding="utf-8"))
    checks = {(r["task"], r["repeat"]): r["checks"] for r in results if r["subject"] == SUBJECT}
    found = diagnose(episodes, checks)
    if not proposer.name_clusters or proposer.llm is None:
        return Named(found)
    recorder = Recorder(run.checkpoints)
    return name_clusters(
        found,
        proposer.llm,
        proposer.budget,
        api_key=os.environ.get(LLM_KEY_VARIABLE, ""),
        recorded=recorder.entries(),
        record=recorder.record,
    )


def left_after(proposer: ProposerSpec, named: Named) -> ProposerSpec:
    """The same proposer with what the names have left of the budget."""
    budget = proposer.budget
    left = {
        "tokens": max(0, budget.tokens - named.tokens),
        "usd": max(0.0, budget.usd - named.usd),
        "calls": max(0, budget.calls - named.calls),
    }
    return proposer.model_copy(update={"budget": budget.model_copy(update=left)})


def read_episodes(inputs: Path) -> list[JsonObject]:
    """The champion's episodes on diag, of its first training seed."""
    return [r for r in parse_jsonl((inputs / TRAJECTORIES).read_text(encoding="utf-8")) if r["subject"] == SUBJECT]


def read_tried(inputs: Path) -> tuple[TriedPolicy, ...]:
    """The policies of earlier versions, oldest first."""
    paths = sorted((inputs / TRIED).glob("*.py"))
    return tuple(TriedPolicy(int(path.stem), path.read_text(encoding="utf-8")) for path in paths)


def _record(proposal: Proposal) -> JsonObject:
    edits = [{"search": e.search, "replace": e.replace} for e in proposal.patch.edits] if proposal.patch else []
    return {
        "method": proposal.method,
        "hypothesis": proposal.hypothesis,
        "expected": proposal.expected,
        "edits": edits,
    }


def _write_conversation(path: Path, transcript: tuple[JsonObject, ...]) -> None:
    """What was said, one message or try a line; there are no times in it."""
    if transcript:
        lines = (json.dumps(entry, ensure_ascii=False, sort_keys=True) + "\n" for entry in transcript)
        path.write_text("".join(lines), encoding="utf-8")


def _volatile(output: Path) -> frozenset[str]:
    """What an agent left has times in it, and so has what it was told by its tools."""
    if not (output / AGENT).is_dir():
        return frozenset()
    left = (path.relative_to(output).as_posix() for path in (output / AGENT).rglob("*") if path.is_file())
    return frozenset({CONVERSATION, *left})


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1), encoding="utf-8")
