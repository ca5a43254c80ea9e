"""The propose program: diagnosis of the champion's diag failures, then the next policy."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlparse

from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo.api.spec import ProposerType
from curateevo.api.stage import Outcome, ProposeParams, ProposeSummary
from curateevo.evolver.diagnosis import Diagnosis, diagnose, parse_jsonl
from curateevo.evolver.patch import unified_diff
from curateevo.evolver.proposal import Proposal, ProposalInput, Proposer
from curateevo.evolver.replay import ReplayProposer
from curateevo.evolver.rules import RulesProposer
from curateevo.policy.source import check_static, policy_digest
from curateevo.trajectories.corpus import PROFILE
from curateevo.trajectories.model import JsonObject

from curateevo_jobs.stage import StageResult, StageRun

POLICY, SUBMISSION = "policy.py", "submission.py"
TRAJECTORIES, RESULTS = "diag/trajectories.jsonl", "diag/results.jsonl"
SUBJECT = "seed-0"


def propose(run: StageRun, params: ProposeParams) -> StageResult:
    """Outcome Exhausted when the proposer has nothing more to try."""
    source = (run.inputs / POLICY).read_text(encoding="utf-8")
    profile = json.loads((run.inputs / PROFILE).read_text(encoding="utf-8"))
    run.progress.report("diagnosis", 0, 1)
    diagnosis = read_diagnosis(run.inputs)
    _write(run.output / "diagnosis.json", diagnosis.to_json())
    _write(run.output / "context.json", _context(diagnosis, profile))
    run.progress.report("diagnosis", 1, 1)
    proposer = open_proposer(params, run.inputs)
    given = ProposalInput(params.number, params.focus, source, profile, diagnosis, params.history)
    proposal = proposer.propose(given)
    if proposal is None:
        return StageResult(ProposeSummary(), Outcome.EXHAUSTED, "ProposerExhausted", "nothing more to try")
    (run.output / POLICY).write_text(proposal.source, encoding="utf-8")
    diff = unified_diff(source, proposal.source, "parent/policy.py", "policy.py")
    (run.output / "policy.diff").write_text(diff, encoding="utf-8")
    _write(run.output / "proposal.json", _record(proposal))
    return StageResult(
        ProposeSummary(
            policy_digest=policy_digest(proposal.source),
            method=proposal.method,
            hypothesis=proposal.hypothesis,
        ),
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


def open_proposer(params: ProposeParams, inputs: Path) -> Proposer:
    """The proposer of the spec. Raises SpecInvalid for one that this version does not have."""
    match params.proposer.type:
        case ProposerType.RULES:
            return RulesProposer()
        case ProposerType.REPLAY:
            url = urlparse(params.proposer.replay or "")
            if url.scheme not in ("", "file"):
                raise SpecInvalid(f"proposer.replay: {params.proposer.replay}: must be a folder")
            return ReplayProposer(Path(url.path))
        case ProposerType.MANUAL:
            if not (inputs / SUBMISSION).is_file():
                raise ContractBroken("no submitted policy among the inputs")
            return SubmittedPolicy(inputs / SUBMISSION)
        case other:
            raise SpecInvalid(f"proposer.type {other} is not built yet", "use rules, replay or manual")


def read_diagnosis(inputs: Path) -> Diagnosis:
    """Diagnose the champion's episodes on diag (its first training seed)."""
    episodes = [r for r in parse_jsonl((inputs / TRAJECTORIES).read_text(encoding="utf-8")) if r["subject"] == SUBJECT]
    results = parse_jsonl((inputs / RESULTS).read_text(encoding="utf-8"))
    checks = {(r["task"], r["repeat"]): r["checks"] for r in results if r["subject"] == SUBJECT}
    return diagnose(episodes, checks)


def _context(diagnosis: Diagnosis, profile: JsonObject) -> JsonObject:
    """What the next policy may know of its parent's failures."""
    found = diagnosis.to_json()
    return {"failures": found["clusters"], "family_success": found["familySuccess"], "profile": profile}


def _record(proposal: Proposal) -> JsonObject:
    edits = [{"search": e.search, "replace": e.replace} for e in proposal.patch.edits] if proposal.patch else []
    return {
        "method": proposal.method,
        "hypothesis": proposal.hypothesis,
        "expected": proposal.expected,
        "edits": edits,
    }


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1), encoding="utf-8")
