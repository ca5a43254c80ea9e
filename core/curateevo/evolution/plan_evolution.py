"""The plan of an evolution: ingest, floors, version 0, then propose, version n and decide until a reason to stop; then
the sealed test. It owns champion, budget and stopping, and never looks inside a version's stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from curateevo.api.base import digest_of
from curateevo.api.evolution import (
    Champion,
    EvolutionPhase,
    EvolutionStatus,
    Reason,
    Spent,
    Stage,
    StageStatus,
    Verdict,
    VersionPhase,
    VersionSpec,
)
from curateevo.api.spec import EvolutionSpec, Focus, ProposerType
from curateevo.api.stage import (
    PROPOSAL_REFUSED,
    ChampionPointer,
    DecisionRecord,
    FileRef,
    HistoryEntry,
    Manifest,
    Outcome,
    ProposeSummary,
    StageRequest,
)
from curateevo.evolution.budget import add_rewriting, add_usage, augmentation_left, spent_budget
from curateevo.evolution.conditions import with_conditions
from curateevo.evolution.decision import (
    Action,
    CreateVersion,
    Decision,
    DeleteArtifacts,
    DeleteEvolution,
    EvolutionSeen,
    MoveChampion,
    Notice,
    Release,
    StageSeen,
    VersionSeen,
    WriteDecision,
)
from curateevo.evolution.names import attempt_prefix, evolution_prefix, version_name
from curateevo.evolution.plan_stage import StageDecision, plan_stage, rested
from curateevo.evolution.plan_version import stage_context, stop_jobs
from curateevo.evolution.requests import (
    Identity,
    floors_request,
    focus_of,
    ingest_request,
    propose_request,
    seal_request,
)
from curateevo.evolution.verdict import judge

MANIFEST = "manifest.json"
TERMINAL = frozenset({EvolutionPhase.COMPLETE, EvolutionPhase.FAILED})
HISTORY_LIMIT = 50
MAX_MESSAGE_CHARS = 2048
Plan = Decision[EvolutionStatus]


def plan_evolution(
    who: Identity,
    spec: EvolutionSpec,
    status: EvolutionStatus,
    seen: EvolutionSeen,
    now: float,
    generation: int = 1,
) -> Plan:
    """Pure and total: equal arguments give equal decisions, and no argument raises."""
    decision = _plan(who, spec, status, seen, now)
    version = seen.versions.get(decision.status.round)
    return replace(decision, status=with_conditions(decision.status, status, generation, now, version))


def _plan(who: Identity, spec: EvolutionSpec, status: EvolutionStatus, seen: EvolutionSeen, now: float) -> Plan:
    stops = stop_jobs(who, _own_stages(seen))
    if seen.deleting:
        return _plan_deletion(who, spec, status, seen, stops)
    if status.phase in TERMINAL:
        return plan_rest(spec, status, stops, now)
    if spec.suspend:
        suspended = _at(status, EvolutionPhase.SUSPENDED, Reason.SUSPENDED, "spec.suspend is true")
        return Decision(suspended.model_copy(update={"stages": rested(status.stages)}), stops)
    if spec.stop == "Now":
        return _end(status, seen, now, Reason.STOPPED, "spec.stop is Now", stops)
    if status.started_at is None:
        status = status.model_copy(update={"started_at": now, "spec_digest": digest_of(spec.to_wire())})
    status = _follow_champion(status, seen)
    step = _step(who, spec, status, Stage.INGEST, seen, now, lambda a: ingest_request(who, spec, a))
    status = _with_stage(status, Stage.INGEST.value, step, EvolutionPhase.INGESTING)
    if step.manifest is None:
        return _wait_or_fail(status, step, now)
    ingest = step.manifest
    status = status.model_copy(update={"corpus_digest": ingest.digest})
    if spec.evaluation.floors:
        step = _step(who, spec, status, Stage.FLOORS, seen, now, lambda a: floors_request(who, spec, a, ingest))
        status = _with_stage(status, Stage.FLOORS.value, step, EvolutionPhase.INGESTING)
        if step.manifest is None:
            return _wait_or_fail(status, step, now)
    return _plan_round(who, spec, status, seen, ingest, now)


def plan_rest(spec: EvolutionSpec, status: EvolutionStatus, stops: tuple[Action, ...], now: float) -> Plan:
    """The end: what still runs is stopped, and the object goes when its time is over."""
    if stops or spec.ttl_seconds_after_finished is None or status.completed_at is None:
        return Decision(status, stops)
    left = status.completed_at + spec.ttl_seconds_after_finished - now
    return Decision(status, (DeleteEvolution(),)) if left <= 0 else Decision(status, wake_in=left)


def _plan_round(
    who: Identity,
    spec: EvolutionSpec,
    status: EvolutionStatus,
    seen: EvolutionSeen,
    ingest: Manifest,
    now: float,
) -> Plan:
    """Settle what is decided, then test the next version, or stop."""
    number = status.decided + 1
    if (record := seen.decisions.get(number)) is not None:
        return _settle(status, seen, record, now)
    if (version := seen.versions.get(number)) is not None:
        return _decide(spec, status, seen, version)
    if (reason := _reason_to_stop(spec, status, now)) is not None:
        return _seal(who, spec, status, seen, ingest, now, *reason)
    if number == 0:
        return _create_first(who, spec, status, seen, ingest)
    return _propose(who, spec, status, seen, ingest, number, now)


def _create_first(
    who: Identity, spec: EvolutionSpec, status: EvolutionStatus, seen: EvolutionSeen, ingest: Manifest
) -> Plan:
    if seen.initial_policy is None or seen.initial_policy_digest is None:
        waiting = _at(status, EvolutionPhase.TESTING, Reason.AWAITING_POLICY, "spec.policy.initial is not stored yet")
        return Decision(waiting, wake_in=1.0)
    version = _version_spec(
        who, spec, 0, None, None, seen.initial_policy_digest, seen.initial_policy.key, ingest, status
    )
    running = _at(status, EvolutionPhase.TESTING, Reason.RUNNING, "version 0")
    return Decision(running.model_copy(update={"round": 0}), (CreateVersion(version_name(who.name, 0), version),))


def _propose(
    who: Identity,
    spec: EvolutionSpec,
    status: EvolutionStatus,
    seen: EvolutionSeen,
    ingest: Manifest,
    number: int,
    now: float,
) -> Plan:
    champion = seen.versions.get(status.champion.number) if status.champion else None
    if champion is None or champion.curate is None or champion.evaluate is None or champion.policy is None:
        return Decision(
            _at(status, EvolutionPhase.PROPOSING, Reason.RUNNING, "the champion is not seen yet"), wake_in=1.0
        )
    if status.round != number:
        stages = {k: v for k, v in status.stages.items() if k != Stage.PROPOSE.value}
        status = status.model_copy(update={"round": number, "stages": stages, "spec_digest": digest_of(spec.to_wire())})
    submission = seen.submissions.get(number)
    proposed = seen.proposals.get(number, StageSeen())
    if spec.proposer.type is ProposerType.MANUAL and submission is None and proposed.done is None:
        text = f"waiting for `curateevo policy submit` for version {number}"
        return Decision(_at(status, EvolutionPhase.PROPOSING, Reason.AWAITING_POLICY, text))
    focus = focus_of(spec, number)
    history, tried = _history(spec, seen, number), _tried(seen, number)
    policy, curation, evaluation = champion.policy, champion.curate, champion.evaluate

    def request(attempt: int) -> StageRequest:
        return propose_request(
            who,
            spec,
            number,
            attempt,
            focus,
            ingest,
            policy,
            curation,
            evaluation,
            history,
            tried,
            status.spent,
            submission,
        )

    context = stage_context(who, spec, Stage.PROPOSE, number, request)
    step = plan_stage(status.stages.get(Stage.PROPOSE.value, StageStatus()), proposed, context, now)
    status = _with_stage(status, Stage.PROPOSE.value, step, EvolutionPhase.PROPOSING)
    if step.manifest is None:
        return _wait_or_fail(status, step, now)
    return _take_proposal(who, spec, status, seen, ingest, number, focus, step.manifest, now)


def _take_proposal(
    who: Identity,
    spec: EvolutionSpec,
    status: EvolutionStatus,
    seen: EvolutionSeen,
    ingest: Manifest,
    number: int,
    focus: Focus,
    manifest: Manifest,
    now: float,
) -> Plan:
    summary = manifest.summary
    if manifest.outcome is Outcome.EXHAUSTED or not isinstance(summary, ProposeSummary):
        text = f"no proposal for {focus} by {spec.proposer.type}: {manifest.message or 'nothing more to try'}"
        if manifest.reason == Reason.BUDGET_SPENT.value:
            return _seal(who, spec, status, seen, ingest, now, Reason.BUDGET_SPENT, text)
        if _another_round_may_help(spec, number, seen, manifest):
            return _skip_round(status, seen, number, text)
        return _seal(who, spec, status, seen, ingest, now, Reason.NO_PROPOSAL, text)
    parent = status.champion.number if status.champion else None
    key = manifest.file("policy.py").key
    version = _version_spec(who, spec, number, parent, focus, summary.policy_digest, key, ingest, status)
    running = _at(status, EvolutionPhase.TESTING, Reason.RUNNING, f"version {number}: {summary.method}")
    notice = Notice("Proposed", f"version {number} ({focus}): {summary.method}, as {summary.hypothesis}")
    return Decision(running, (CreateVersion(version_name(who.name, number), version),), (notice,))


def _another_round_may_help(spec: EvolutionSpec, number: int, seen: EvolutionSeen, manifest: Manifest) -> bool:
    """Being at the end of one of several foci is no end, nor is a model without an acceptable answer: unless the round
    before was skipped as well."""
    before = seen.decisions.get(number - 1)
    if before is not None and before.reason == Reason.NO_PROPOSAL.value:
        return False
    return len(set(spec.rounds.focus)) > 1 or manifest.reason == PROPOSAL_REFUSED


def _skip_round(status: EvolutionStatus, seen: EvolutionSeen, number: int, message: str) -> Plan:
    champion = seen.champion.pointer if seen.champion else None
    record = DecisionRecord(
        number=number,
        verdict=Verdict.REVERTED,
        reason=Reason.NO_PROPOSAL.value,
        message=message[:MAX_MESSAGE_CHARS],
        policy_digest=champion.policy_digest if champion else "",
        policy_key=champion.policy_key if champion else "",
        parent=champion.number if champion else None,
        champion_before=champion.number if champion else None,
    )
    return Decision(status, (WriteDecision(record),))


def _decide(spec: EvolutionSpec, status: EvolutionStatus, seen: EvolutionSeen, version: VersionSeen) -> Plan:
    """The verdict on a version that has ended: written once, then followed."""
    text = f"version {version.number}: {version.phase.value.lower()}"
    running = _at(status, EvolutionPhase.TESTING, Reason.RUNNING, text).model_copy(update={"round": version.number})
    if version.phase not in (VersionPhase.MEASURED, VersionPhase.REJECTED, VersionPhase.FAILED):
        return Decision(running)
    stopped = version.measurement is not None and version.measurement.stopped is not None
    if version.phase is VersionPhase.MEASURED and version.scores is None and not stopped:
        return Decision(running, wake_in=1.0)
    record = judge(spec, seen, version)
    return Decision(running, () if record is None else (WriteDecision(record),), wake_in=1.0)


def _settle(status: EvolutionStatus, seen: EvolutionSeen, record: DecisionRecord, now: float) -> Plan:
    """A decision is there: move the champion if it says so, then count it. The pointer is the truth."""
    pointer = seen.champion.pointer if seen.champion else None
    if record.verdict is Verdict.COMMITTED and (pointer is None or pointer.number < record.number):
        if (pointer.number if pointer else None) != record.champion_before:
            now_it_is = pointer.number if pointer else None
            text = f"version {record.number} was judged against {record.champion_before}; the champion is {now_it_is}"
            return Decision(
                _at(status, status.phase, Reason.CONTRACT_BROKEN, text),
                notices=(Notice("Conflict", text, True),),
                wake_in=60.0,
            )
        moved = ChampionPointer(
            number=record.number,
            policy_digest=record.policy_digest,
            policy_key=record.policy_key,
            p=record.p or 0.0,
            c=record.c or 0.0,
            j=record.j or 0.0,
        )
        return Decision(status, (MoveChampion(moved, seen.champion.tag if seen.champion else None),), wake_in=1.0)
    committed = record.verdict is Verdict.COMMITTED
    skipped = record.reason == Reason.NO_PROPOSAL.value
    counted = status.model_copy(
        update={
            "decided": record.number,
            "counts": status.counts if skipped else status.counts.plus(record.verdict),
            "streak": 0 if committed else status.streak + (not skipped),
            "spent": _spent_with(status.spent, seen, record.number),
        }
    )
    if record.number == 0 and not committed:
        failed = _at(counted, EvolutionPhase.FAILED, Reason.BASELINE_FAILED, f"version 0: {record.message}")
        failed = failed.model_copy(update={"completed_at": now})
        return Decision(failed, notices=(Notice("BaselineFailed", record.message, True),), wake_in=0.0)
    text = f"version {record.number}: {record.reason}; {record.message}"
    return Decision(
        _follow_champion(counted, seen),
        notices=(Notice(record.verdict.value, text, record.verdict in (Verdict.FAILED, Verdict.REJECTED)),),
        wake_in=0.0,
    )


def _spent_with(spent: Spent, seen: EvolutionSeen, number: int) -> Spent:
    """What round `number` cost, added. It is counted together with its decision, so that a lost save counts nothing
    twice or never."""
    version, proposal = seen.versions.get(number), seen.proposals.get(number)
    if version is not None:
        made = (m for m in (version.curate, version.train, version.evaluate) if m is not None)
        used = sum(m.usage.gpu_seconds for m in made)  # a version that was refused was trained all the same
        spent = spent.model_copy(update={"gpu_seconds": spent.gpu_seconds + used})
    if proposal is not None and proposal.done is not None and proposal.done.manifest is not None:
        spent = add_usage(spent, proposal.done.manifest.usage)
    if version is not None and version.curate is not None and version.curate.usage.calls:
        spent = add_rewriting(spent, version.curate.usage)
    return spent


def _reason_to_stop(spec: EvolutionSpec, status: EvolutionStatus, now: float) -> tuple[Reason, str] | None:
    """Why no further round should begin. Version 0 is always made."""
    if status.decided < 0:
        return None
    champion = status.champion
    if spec.stop == "AfterRound":
        return Reason.STOPPED, "spec.stop is AfterRound"
    if spec.rounds.goal is not None and champion is not None and champion.p >= spec.rounds.goal:
        return Reason.GOAL_REACHED, f"P {champion.p:.3f} reached the goal {spec.rounds.goal:g}"
    if status.decided >= spec.rounds.max:
        return Reason.MAX_ROUNDS, f"{spec.rounds.max} rounds are done"
    if status.streak >= spec.rounds.patience:
        return Reason.PATIENCE, f"{status.streak} rounds without a commit"
    if status.started_at is not None and (text := spent_budget(spec, status.spent, status.started_at, now)):
        return Reason.BUDGET_SPENT, text
    return None


def _seal(
    who: Identity,
    spec: EvolutionSpec,
    status: EvolutionStatus,
    seen: EvolutionSeen,
    ingest: Manifest,
    now: float,
    reason: Reason,
    message: str,
) -> Plan:
    """Run the first and the last champion on the sealed test, and end. A seal that fails does not undo the run."""
    status = _at(status, EvolutionPhase.SEALING, reason, message)
    ready = _champions(status, seen)
    if spec.evaluation.splits.test == 0 or not ready:
        return _end(status, seen, now, reason, message, ())
    step = _step(who, spec, status, Stage.SEAL, seen, now, lambda a: seal_request(who, spec, a, ingest, ready))
    status = status.model_copy(update={"stages": {**status.stages, Stage.SEAL.value: step.status}})
    if step.failed:
        text = f"{message}; the sealed test failed: {step.status.message}"
        return _end(status, seen, now, reason, text, step.actions)
    if step.manifest is None:
        return Decision(status, step.actions, step.notices, step.wake_in)
    return _end(status, seen, now, reason, message, step.actions)


def _champions(status: EvolutionStatus, seen: EvolutionSeen) -> dict[str, tuple[Manifest, Manifest]]:
    """Curate and train manifests of the first and the last champion, by name."""
    last = status.champion.number if status.champion else None
    out = {}
    for number in dict.fromkeys(n for n in (status.first_champion, last) if n is not None):
        version = seen.versions.get(number)
        if version is not None and version.curate is not None and version.train is not None:
            out[f"v{number}"] = (version.curate, version.train)
    return out


def _end(
    status: EvolutionStatus,
    seen: EvolutionSeen,
    now: float,
    reason: Reason,
    message: str,
    actions: tuple[Action, ...],
) -> Plan:
    """The end, once. A round that has no decision is counted here: a refused proposal has its cost, too."""
    spent = _spent_with(status.spent, seen, status.decided + 1)
    ended = _at(status, EvolutionPhase.COMPLETE, reason, message)
    ended = ended.model_copy(update={"completed_at": now, "spent": spent})
    return Decision(ended, actions, (Notice("Complete", f"{reason}: {message}"),), wake_in=0.0)


def _wait_or_fail(status: EvolutionStatus, step: StageDecision, now: float) -> Plan:
    if step.failed:
        reason = step.status.reason or Reason.PROGRAM_FAILED
        failed = _at(status, EvolutionPhase.FAILED, reason, step.status.message).model_copy(
            update={"completed_at": now}
        )
        return Decision(failed, step.actions, step.notices, wake_in=0.0)
    return Decision(status, step.actions, step.notices, step.wake_in)


def _plan_deletion(
    who: Identity,
    spec: EvolutionSpec,
    status: EvolutionStatus,
    seen: EvolutionSeen,
    stops: tuple[Action, ...],
) -> Plan:
    """Versions go with their owner; jobs are stopped first, then artifacts go if the spec says so, then the object."""
    if stops:
        return Decision(status, stops, wake_in=1.0)
    delete = (DeleteArtifacts(evolution_prefix(who.uid)),) if spec.reclaim_policy == "Delete" else ()
    return Decision(status, (*delete, Release()))


def _follow_champion(status: EvolutionStatus, seen: EvolutionSeen) -> EvolutionStatus:
    """Status never knows better than the pointer."""
    if seen.champion is None:
        return status
    p = seen.champion.pointer
    champion = Champion(number=p.number, policy_digest=p.policy_digest, p=p.p, c=p.c, j=p.j)
    first = p.number if status.first_champion is None else status.first_champion
    return status.model_copy(update={"champion": champion, "first_champion": first})


def _step(
    who: Identity,
    spec: EvolutionSpec,
    status: EvolutionStatus,
    stage: Stage,
    seen: EvolutionSeen,
    now: float,
    request: Callable[[int], StageRequest],
) -> StageDecision:
    context = stage_context(who, spec, stage, None, request)
    return plan_stage(status.stages.get(stage.value, StageStatus()), seen.stages.get(stage, StageSeen()), context, now)


def _with_stage(status: EvolutionStatus, name: str, step: StageDecision, phase: EvolutionPhase) -> EvolutionStatus:
    update: dict[str, object] = {"stages": {**status.stages, name: step.status}}
    if step.manifest is None:
        update |= {
            "phase": phase,
            "reason": Reason.RUNNING,
            "message": f"{name} attempt {step.status.attempt}",
        }
    return status.model_copy(update=update)


def _at(status: EvolutionStatus, phase: EvolutionPhase, reason: Reason, message: str) -> EvolutionStatus:
    return status.model_copy(update={"phase": phase, "reason": reason, "message": message[:MAX_MESSAGE_CHARS]})


def _version_spec(
    who: Identity,
    spec: EvolutionSpec,
    number: int,
    parent: int | None,
    focus: Focus | None,
    digest: str,
    key: str,
    ingest: Manifest,
    status: EvolutionStatus,
) -> VersionSpec:
    attempt = status.stages[Stage.INGEST.value].attempt if Stage.INGEST.value in status.stages else 1
    return VersionSpec(
        evolution_uid=who.uid,
        number=number,
        parent=parent,
        focus=focus,
        policy_digest=digest,
        policy_key=key,
        corpus_key=f"{attempt_prefix(who.uid, Stage.INGEST, None, attempt)}/{MANIFEST}",
        corpus_digest=ingest.digest,
        evolution_spec=augmentation_left(spec, status.spent),
    )


def _history(spec: EvolutionSpec, seen: EvolutionSeen, number: int) -> tuple[HistoryEntry, ...]:
    out = []
    for n in sorted(n for n in seen.decisions if 0 < n < number)[-HISTORY_LIMIT:]:
        record, version = seen.decisions[n], seen.versions.get(n)
        out.append(
            HistoryEntry(
                number=n,
                focus=focus_of(spec, n),
                verdict=record.verdict,
                reason=record.reason,
                message=record.message,
                delta_j=record.delta_j,
                method=version.method if version else "",
            )
        )
    return tuple(out)


def _tried(seen: EvolutionSeen, number: int) -> dict[int, FileRef]:
    """The policies that were tested before version `number`; those that could not be measured are left out."""
    tested = sorted(n for n, record in seen.decisions.items() if n < number and record.verdict is not Verdict.FAILED)
    versions = ((n, seen.versions[n]) for n in tested[-HISTORY_LIMIT:] if n in seen.versions)
    return {n: version.policy for n, version in versions if version.policy is not None}


def _own_stages(seen: EvolutionSeen) -> Iterator[tuple[Stage, int | None, StageSeen]]:
    """The stages that the evolution itself runs, each with its version."""
    yield from ((stage, None, found) for stage, found in seen.stages.items())
    yield from ((Stage.PROPOSE, number, found) for number, found in seen.proposals.items())
