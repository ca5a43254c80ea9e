"""Planted bugs: each is one edit of a plan that the suite must catch. See test_mutants.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    module: str
    old: str
    new: str


STAGE, VERSION, EVOLUTION, VERDICT = "plan_stage.py", "plan_version.py", "plan_evolution.py", "verdict.py"
MUTANTS = (
    Mutant("the job starts before its intent is saved", STAGE, "return _intend(status, 1, now)",
           "return StageDecision(_intend(status, 1, now).status, (context.start(1),))"),
    Mutant("the job's success is taken for the proof", STAGE, "        case JobState.SUCCEEDED:\n            left = (attempt.since or started) + context.manifest_seconds - now",
           "        case JobState.SUCCEEDED:\n            left = 1e9"),
    Mutant("a stale status does not take over higher attempts", STAGE, "if seen.highest > status.attempt:", "if False:"),
    Mutant("a lost job costs an attempt", STAGE, "        case JobState.LOST:\n", "        case JobState.LOST if False:\n            raise AssertionError\n        case JobState.LOST:\n            return _retry(status, Reason.INFRASTRUCTURE, 'lost', context, now)\n"),
    Mutant("the attempt is counted from failures, not from the mark", STAGE, "return _intend(status, status.attempt + 1, now)",
           "return _intend(status, status.infrastructure_failures + 1, now)"),
    Mutant("a broken contract is tried again", STAGE, "if reason is Reason.CONTRACT_BROKEN or count > allowed:", "if count > allowed:"),
    Mutant("infrastructure failures use up application retries", STAGE, "infrastructure = reason in (Reason.INFRASTRUCTURE, Reason.PENDING_TOO_LONG, Reason.DENIED)", "infrastructure = False"),
    Mutant("a failed stage is revived by a late manifest", STAGE, "    if status.state is StageState.FAILED:\n        return StageDecision(status, _stop_all(seen, context))\n", ""),
    Mutant("a deadline does not stop the job", STAGE, "return StageDecision(decision.status, (stop,), decision.notices, decision.wake_in)", "return decision"),
    Mutant("a rejected policy is trained", VERSION, "if step.manifest.outcome is Outcome.REJECTED:", "if False:"),
    Mutant("a terminal version leaves out its verdict", VERSION, "if record is None or status.verdict is record.verdict:", "if True:"),
    Mutant("P is read from diag", VERSION, 'splits["sel"] for splits in evaluate.scores.values() if "sel" in splits', 'splits["none"] for splits in evaluate.scores.values() if "none" in splits'),
    Mutant("the champion moves before the decision is written", EVOLUTION, "    return Decision(running, () if record is None else (WriteDecision(record),), wake_in=1.0)",
           "    if record is not None and record.verdict is Verdict.COMMITTED:\n        return _settle(running, seen, record, 0.0)\n    return Decision(running, () if record is None else (WriteDecision(record),), wake_in=1.0)"),
    Mutant("a reverted candidate becomes champion", EVOLUTION, "if record.verdict is Verdict.COMMITTED and (pointer is None or pointer.number < record.number):",
           "if record.verdict in (Verdict.COMMITTED, Verdict.REVERTED) and (pointer is None or pointer.number < record.number):"),
    Mutant("a decision is counted before the champion moved", EVOLUTION, "(pointer is None or pointer.number < record.number):", "False:"),
    Mutant("the streak is not reset by a commit", EVOLUTION, '"streak": 0 if committed else status.streak + (not skipped)', '"streak": status.streak + (not skipped)'),
    Mutant("the usage is counted when a version is made", EVOLUTION, "    parent = status.champion.number if status.champion else None\n    key =",
           "    status = status.model_copy(update={'spent': add_usage(status.spent, manifest.usage)})\n    parent = status.champion.number if status.champion else None\n    key ="),
    Mutant("a round without a decision costs nothing", EVOLUTION, "spent = _spent_with(status.spent, seen, status.decided + 1)", "spent = status.spent"),
    Mutant("rewriting costs nothing in a round that was refused", EVOLUTION, "version.curate is not None and version.curate.usage.calls", "version.measurement is not None and version.curate is not None"),
    Mutant("each round may spend all on rewriting", EVOLUTION, "evolution_spec=augmentation_left(spec, status.spent)", "evolution_spec=spec"),
    Mutant("one round too many", EVOLUTION, "if status.decided >= spec.rounds.max:", "if status.decided > spec.rounds.max:"),
    Mutant("a failed baseline goes on", EVOLUTION, "if record.number == 0 and not committed:", "if False:"),
    Mutant("the candidate is compared with version 0", VERDICT, "    champion = seen.versions.get(before.number)\n    if champion is None or champion.scores", "    champion = seen.versions.get(0)\n    if champion is None or champion.scores"),
    Mutant("what an early end left is compared as if it were all", VERDICT, "measured.p is None and measured.stopped:", "False:"),
    Mutant("an early end is taken for a full measurement", VERSION, "if stopped.episodes < stopped.of_episodes:", "if False:"),
    Mutant("a version is trained though its cost has decided", VERSION, "if stage is Stage.CURATE and (hopeless", "if False and (hopeless"),
    Mutant("a version starts before its champion is seen", VERSION, "or (spec.parent is not None and seen.champion is None)", ""),
    Mutant("suspension leaves jobs running", EVOLUTION, 'return Decision(suspended.model_copy(update={"stages": rested(status.stages)}), stops)',
           'return Decision(suspended.model_copy(update={"stages": rested(status.stages)}))'),
    Mutant("deletion lets the object go while jobs run", EVOLUTION, "    if stops:\n        return Decision(status, stops, wake_in=1.0)\n", ""),
)  # fmt: skip
