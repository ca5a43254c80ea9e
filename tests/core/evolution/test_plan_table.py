"""Plans by tables: one situation, one step, and whole runs of a script."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from curateevo.api.evolution import (
    EvolutionPhase,
    Reason,
    SpentOnRewriting,
    Stage,
    StageState,
    StageStatus,
    Verdict,
    VersionPhase,
)
from curateevo.api.spec import (
    AcceptanceRule,
    AgentProgram,
    Augmentation,
    Budget,
    EvolutionSpec,
    Focus,
    LlmBudget,
    LlmEndpoint,
    ProposerType,
    Retries,
)
from curateevo.api.stage import CurateParams, FileRef, Outcome, ProposeParams
from curateevo.evolution.decision import AttemptSeen, JobState, StageSeen, StartJob, StopJob
from curateevo.evolution.plan_stage import StageContext, StageDecision, plan_stage
from curateevo.evolution.plan_version import plan_version
from curateevo.evolution.requests import ingest_request
from tests.core.evolution.loopworld import WHO, Script, World, make_manifest, spec, with_script

NOW = 1000.0
ACTIVE = StageStatus(state=StageState.ACTIVE, attempt=1, started_at=NOW - 10)


def context(**changes: object) -> StageContext:
    given: dict[str, object] = {
        "stage": Stage.INGEST,
        "version": None,
        "start": lambda attempt: StartJob(f"job-a{attempt}", ingest_request(WHO, spec(), attempt)),
        "name": lambda attempt: f"job-a{attempt}",
        "deadline_seconds": 100.0,
        "pending_seconds": 50.0,
        "manifest_seconds": 5.0,
        "retries": Retries(infrastructure=2, application=1, backoff_seconds=8),
    }
    return StageContext(**{**given, **changes})  # type: ignore[arg-type]


def step(status: StageStatus, *attempts: AttemptSeen) -> StageDecision:
    return plan_stage(status, StageSeen(attempts), context(), NOW)


def test_intent_is_saved_before_the_job_starts() -> None:
    first = step(StageStatus())
    assert first.status.attempt == 1 and first.actions == () and first.wake_in == 0
    second = step(first.status)
    assert [type(a) for a in second.actions] == [StartJob] and second.status.attempt == 1


def test_a_manifest_is_the_proof_whatever_the_job_says() -> None:
    manifest = make_manifest(ingest_request(WHO, spec(), 1), Outcome.OK, with_script())
    for job in JobState:
        done = step(ACTIVE, AttemptSeen(1, job, manifest))
        assert done.status.state is StageState.DONE and done.manifest == manifest, job


def test_a_stale_status_takes_over_the_highest_attempt() -> None:
    seen = step(ACTIVE, AttemptSeen(1, JobState.FAILED, exit_code=1), AttemptSeen(3, JobState.RUNNING, since=NOW))
    assert seen.status.attempt == 3 and seen.status.state is StageState.ACTIVE and not seen.actions


@pytest.mark.parametrize(
    ("exit_code", "reason", "state"),
    [
        (65, Reason.CONTRACT_BROKEN, StageState.FAILED),
        (75, Reason.INFRASTRUCTURE, StageState.WAITING),
        (137, Reason.INFRASTRUCTURE, StageState.WAITING),
        (-9, Reason.INFRASTRUCTURE, StageState.WAITING),
        (None, Reason.INFRASTRUCTURE, StageState.WAITING),
        (77, Reason.DENIED, StageState.WAITING),
        (1, Reason.PROGRAM_FAILED, StageState.WAITING),
    ],
)
def test_failures_by_class(exit_code: int | None, reason: Reason, state: StageState) -> None:
    found = step(ACTIVE, AttemptSeen(1, JobState.FAILED, exit_code=exit_code, message="why"))
    assert (found.status.reason, found.status.state, found.status.message) == (reason, state, "why")
    assert found.notices


def test_backoff_doubles_and_then_gives_up() -> None:
    status, waits = ACTIVE, []
    for attempt in (1, 2, 3):
        status = status.model_copy(update={"state": StageState.ACTIVE, "attempt": attempt})
        found = step(status, AttemptSeen(attempt, JobState.FAILED, exit_code=75))
        waits.append(found.status.retry_at)
        status = found.status
    assert waits == [NOW + 8, NOW + 16, NOW + 16] and status.state is StageState.FAILED


def test_infrastructure_and_application_count_apart() -> None:
    status = ACTIVE.model_copy(update={"infrastructure_failures": 2})
    assert step(status, AttemptSeen(1, JobState.FAILED, exit_code=1)).status.state is StageState.WAITING
    assert step(status, AttemptSeen(1, JobState.FAILED, exit_code=75)).status.state is StageState.FAILED


def test_a_waiting_stage_takes_a_new_attempt_when_its_time_has_come() -> None:
    waiting = StageStatus(state=StageState.WAITING, attempt=2, retry_at=NOW + 1)
    assert step(waiting).wake_in == 1 and step(waiting).status == waiting
    later = plan_stage(waiting, StageSeen(), context(), NOW + 1)
    assert later.status.attempt == 3 and later.status.state is StageState.ACTIVE and not later.actions


def test_deadlines_for_pending_for_running_and_for_the_manifest() -> None:
    pending = plan_stage(
        ACTIVE, StageSeen((AttemptSeen(1, JobState.PENDING, message="0/3 nodes"),)), context(), NOW + 41
    )
    assert pending.status.reason is Reason.PENDING_TOO_LONG and isinstance(pending.actions[0], StopJob)
    evicted = plan_stage(ACTIVE, StageSeen((AttemptSeen(1, JobState.PENDING, since=NOW + 40),)), context(), NOW + 41)
    assert evicted.status.state is StageState.ACTIVE and not evicted.actions, "it ran before, and waits anew"
    running = plan_stage(ACTIVE, StageSeen((AttemptSeen(1, JobState.RUNNING, since=NOW),)), context(), NOW + 100)
    assert running.status.reason is Reason.DEADLINE_EXCEEDED and isinstance(running.actions[0], StopJob)
    patient = step(ACTIVE, AttemptSeen(1, JobState.SUCCEEDED, since=NOW - 1))
    assert patient.status.state is StageState.ACTIVE and patient.wake_in == 4
    missing = step(ACTIVE, AttemptSeen(1, JobState.SUCCEEDED, since=NOW - 5))
    assert missing.status.reason is Reason.METRICS_UNAVAILABLE


def test_a_lost_job_goes_on_as_the_same_attempt_and_a_deleted_one_does_not() -> None:
    lost = step(ACTIVE, AttemptSeen(1, JobState.LOST))
    assert (
        lost.status.attempt == 1 and isinstance(lost.actions[0], StartJob) and lost.status.infrastructure_failures == 0
    )
    deleted = step(ACTIVE.model_copy(update={"observed": True}))
    assert deleted.status.reason is Reason.INFRASTRUCTURE and deleted.status.infrastructure_failures == 1


def test_a_failed_stage_stays_failed_when_its_manifest_comes_late() -> None:
    failed = StageStatus(state=StageState.FAILED, attempt=1)
    manifest = make_manifest(ingest_request(WHO, spec(), 1), Outcome.OK, with_script())
    assert step(failed, AttemptSeen(1, JobState.SUCCEEDED, manifest)).failed


def test_a_whole_run_commits_what_is_better_and_reverts_what_is_not() -> None:
    world = World(spec())
    world.settle()
    world.check_end()
    verdicts = {n: r.verdict for n, r in world.decisions.items()}
    assert verdicts == {
        0: Verdict.COMMITTED,
        1: Verdict.COMMITTED,
        2: Verdict.REVERTED,
        3: Verdict.REVERTED,
        4: Verdict.COMMITTED,
    }
    assert world.status.phase is EvolutionPhase.COMPLETE and world.status.reason is Reason.MAX_ROUNDS
    assert world.champion is not None and world.champion.number == 4
    assert {n: s.verdict for n, (_, s) in world.versions.items()} == verdicts
    assert (
        world.status.spent.gpu_seconds == 5 * 30 + 4 * 10
    )  # three stages a version, and a proposal for each but the first
    true = ["Ready", "Complete", "CurationComplete", "TrainingComplete", "EvaluationComplete", "ArtifactStoreReachable"]
    assert [c.type for c in world.status.conditions if c.status == "True"] == true


def test_each_version_starts_from_the_champion_and_names_it_as_parent() -> None:
    world = World(spec())
    world.settle()
    parents = {n: v.parent for n, (v, _) in world.versions.items()}
    assert parents == {0: None, 1: 0, 2: 1, 3: 1, 4: 1}
    assert [str(v.focus) for v, _ in world.versions.values()] == [
        "None",
        "Effectiveness",
        "Efficiency",
        "Effectiveness",
        "Efficiency",
    ]


def test_the_gpu_time_of_a_model_that_was_not_released_is_spent() -> None:
    world = World(spec(), with_script(train_v1_a1=Outcome.REJECTED))
    world.settle()
    assert world.decisions[1].verdict is Verdict.REJECTED
    assert world.status.spent.gpu_seconds == 4 * 30 + 2 * 10 + 4 * 10, "version 1 was curated and trained"


def test_a_rejected_policy_is_a_result_and_the_run_goes_on() -> None:
    world = World(spec(), with_script(curate_v1_a1=Outcome.REJECTED))
    world.settle()
    world.check_end()
    assert world.decisions[1].verdict is Verdict.REJECTED and world.versions[1][1].phase is VersionPhase.REJECTED
    assert len(world.decisions) == 5


def test_a_version_that_can_not_be_measured_is_failed_and_the_run_goes_on() -> None:
    world = World(spec(), with_script(train_v1_a1=1, train_v1_a2=1))
    world.settle()
    world.check_end()
    assert world.decisions[1].verdict is Verdict.FAILED and world.decisions[1].reason == "ProgramFailed"
    assert len(world.decisions) == 5


def test_a_failed_baseline_ends_the_run() -> None:
    world = World(spec(), with_script(curate_v0_a1=Outcome.REJECTED))
    world.settle()
    assert world.status.phase is EvolutionPhase.FAILED and world.status.reason is Reason.BASELINE_FAILED


def test_patience_goal_budget_and_stop() -> None:
    base = spec()
    rounds = base.rounds
    cases = {
        Reason.PATIENCE: {"rounds": rounds.model_copy(update={"patience": 2})},
        Reason.GOAL_REACHED: {"rounds": rounds.model_copy(update={"goal": 0.45})},
        Reason.BUDGET_SPENT: {"budget": Budget(gpu_hours=50 / 3600)},
    }
    decided = {}
    for reason, changes in cases.items():
        world = World(base.model_copy(update=changes))
        world.settle()
        world.check_end()
        assert world.status.reason is reason
        decided[reason] = world.status.decided
    assert decided == {Reason.PATIENCE: 3, Reason.GOAL_REACHED: 1, Reason.BUDGET_SPENT: 1}


def test_stop_after_round_ends_with_the_sealed_test_and_stop_now_without() -> None:
    world = World(spec())
    while 1 not in world.decisions:
        world.tick()
        for number in list(world.versions):
            world.tick_version(number)
        world.finish_all()
    world.spec = world.spec.model_copy(update={"stop": "AfterRound"})
    world.settle()
    assert world.status.decided == 1 and world.stage_seen(Stage.SEAL, None).done
    now = World(spec(stop="Now"))
    now.settle()
    assert now.status.phase is EvolutionPhase.COMPLETE and not now.jobs


def test_suspend_stops_jobs_and_resume_goes_on() -> None:
    world = World(spec())
    world.tick()
    world.tick()
    assert world.jobs["evo-ingest-a1"].state is JobState.RUNNING
    world.spec = world.spec.model_copy(update={"suspend": True})
    world.tick()
    assert world.status.phase is EvolutionPhase.SUSPENDED and world.jobs["evo-ingest-a1"].state is JobState.LOST
    world.spec = world.spec.model_copy(update={"suspend": False})
    world.settle()
    world.check_end()
    assert world.status.phase is EvolutionPhase.COMPLETE


def test_a_manual_round_waits_for_a_person_and_runs_nothing() -> None:
    manual = spec().proposer.model_copy(update={"type": ProposerType.MANUAL})
    world = World(spec(proposer=manual))
    world.settle()
    assert world.status.reason is Reason.AWAITING_POLICY and world.status.decided == 0
    assert not any(j.state is JobState.RUNNING for j in world.jobs.values())
    world.submissions[1] = FileRef(key="submission", digest="sha256:s", size_bytes=1)
    world.settle()
    assert world.decisions[1].verdict is Verdict.COMMITTED and world.status.reason is Reason.AWAITING_POLICY
    assert world.jobs["evo-v1-propose-a1"].request.inputs["submission.py"].key == "submission"


def test_a_proposer_at_its_end_skips_its_focus_once_and_then_ends_the_run() -> None:
    world = World(spec(), with_script(propose_v2_a1=Outcome.EXHAUSTED, propose_v3_a1=Outcome.EXHAUSTED))
    world.settle()
    world.check_end()
    assert world.status.reason is Reason.NO_PROPOSAL and world.status.counts.committed == 2


def test_what_the_last_round_cost_is_counted_though_it_has_no_decision() -> None:
    ends = {"propose_v2_a1": Outcome.EXHAUSTED, "propose_v3_a1": Outcome.EXHAUSTED}
    world = World(spec(), with_script(**ends))
    world.settle()
    assert set(world.decisions) == {0, 1, 2}
    assert (world.status.spent.tokens, world.status.spent.calls, world.status.spent.usd) == (3000, 6, 0.75)
    gpu = world.status.spent.gpu_seconds
    world.settle()
    assert (world.status.spent.tokens, world.status.spent.gpu_seconds) == (3000, gpu)


def test_a_proposer_without_room_in_its_budget_ends_the_run_normally() -> None:
    script = replace(with_script(propose_v2_a1=Outcome.EXHAUSTED), refusals={2: "BudgetSpent"})
    world = World(spec(), script)
    world.settle()
    world.check_end()
    assert (world.status.phase, world.status.reason) == (EvolutionPhase.COMPLETE, Reason.BUDGET_SPENT)
    assert world.status.spent.tokens == 2000 and 2 not in world.decisions


def test_a_refused_proposal_is_one_lost_round_even_where_there_is_one_focus() -> None:
    rounds = spec().rounds.model_copy(update={"focus": (Focus.COMBINED,)})
    refusals = {1: "ProposalRefused", 3: "ProposalRefused", 4: "ProposalRefused"}
    ends = {f"propose_v{n}_a1": Outcome.EXHAUSTED for n in refusals}
    world = World(spec(rounds=rounds), replace(with_script(**ends), refusals=refusals))
    world.settle()
    world.check_end()
    assert world.decisions[1].message == "no proposal for Combined by rules: refused"
    assert world.decisions[3].reason == Reason.NO_PROPOSAL.value and 4 not in world.decisions
    assert (world.status.reason, world.status.message) == (Reason.NO_PROPOSAL, world.decisions[3].message)
    assert world.status.spent.tokens == 4000


def test_a_proposer_is_told_what_is_left_and_who_asks_a_model_what_was_tried() -> None:
    base = spec()
    llm = LlmEndpoint(base_url="http://llm/v1", model="m")
    agent = AgentProgram(command=("mini",))
    for kind, corpus in ((ProposerType.RULES, False), (ProposerType.LLM, False), (ProposerType.AGENT, True)):
        proposer = base.proposer.model_copy(update={"type": kind, "llm": llm, "agent": agent})
        world = World(spec(proposer=proposer), with_script(evaluate_v2_a1=1, evaluate_v2_a2=1))
        world.settle()
        world.check_end()
        assert world.decisions[2].verdict is Verdict.FAILED
        request = world.jobs["evo-v4-propose-a1"].request
        assert isinstance(request.params, ProposeParams)
        left = request.params.proposer.budget
        assert (left.tokens, left.calls, left.usd) == (2_000_000 - 3000, 54, 19.25)
        tried = {path for path in request.inputs if path.startswith("tried/")}
        assert tried == (set() if kind is ProposerType.RULES else {"tried/000.py", "tried/001.py", "tried/003.py"})
        assert ("trajectories.parquet" in request.inputs) is corpus
        assert not {"dev_prompts.json", "splits.json"} & set(request.inputs)


def augmented(**budget: Any) -> EvolutionSpec:
    llm = LlmEndpoint(base_url="http://llm/v1", model="m")
    return spec(augmentation=Augmentation(llm=llm, budget=LlmBudget(**{"calls": 2000, **budget})))


def test_rewriting_is_counted_apart_and_in_rounds_that_were_refused_or_failed_too() -> None:
    world = World(augmented(), with_script(curate_v2_a1=Outcome.REJECTED, train_v3_a1=1, train_v3_a2=1))
    world.settle()
    world.check_end()
    assert [world.decisions[n].verdict for n in (2, 3)] == [Verdict.REJECTED, Verdict.FAILED]
    curated = 1 + max(world.decisions)
    assert world.status.spent.augmentation == SpentOnRewriting(
        tokens=500 * curated, usd=0.125 * curated, calls=5 * curated
    )
    assert world.status.spent.tokens == 1000 * (curated - 1)
    request = world.jobs["evo-v2-curate-a1"].request
    assert isinstance(request.params, CurateParams) and request.params.augmentation is not None
    left = request.params.augmentation.budget
    assert (left.tokens, left.usd, left.calls) == (2_000_000 - 1000, 19.75, 1990)


def test_a_run_ends_when_its_rewriting_has_spent_its_budget() -> None:
    world = World(augmented(calls=12), Script())
    world.settle()
    world.check_end()
    assert (world.status.reason, max(world.decisions)) == (Reason.BUDGET_SPENT, 2)
    assert world.status.message.startswith("augmentation.budget.calls 12 is used up")


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_deletion_in_every_phase_stops_jobs_first_and_keeps_artifacts_unless_told(steps: int) -> None:
    for policy in ("Retain", "Delete"):
        world = World(spec(reclaim_policy=policy))
        for number in range(steps):
            world.tick()
            for version in list(world.versions):
                world.tick_version(version)
            if number % 2:
                world.finish_all()
        world.deleting = True
        for _ in range(5):
            world.tick()
        assert world.released
        assert bool(world.deleted_prefixes) == (policy == "Delete")
        own = [j for j in world.jobs.values() if j.request.version is None or j.request.stage is Stage.PROPOSE]
        assert not any(j.state is JobState.RUNNING for j in own)


def without_stops(given: EvolutionSpec) -> EvolutionSpec:
    return given.model_copy(update={"acceptance": given.acceptance.model_copy(update={"stop_early": False})})


def test_early_ends_change_no_verdict_and_show_no_plain_p() -> None:
    early, full = World(spec()), World(without_stops(spec()))
    for world in (early, full):
        world.settle()
        world.check_end()
    assert early.outcome()["verdicts"] == full.outcome()["verdicts"]
    for number in (2, 3):
        measured, record = early.versions[number][1].measurement, early.decisions[number]
        assert measured is not None and measured.stopped is not None and measured.p is None and measured.j is None
        assert 0 < measured.stopped.episodes < measured.stopped.of_episodes
        assert (record.p, record.j, record.delta_p, record.verdict) == (None, None, None, Verdict.REVERTED)
        assert "stopped early after" in record.message and "at most" in record.message
        in_full = full.versions[number][1].measurement
        assert in_full is not None and in_full.stopped is None and in_full.p is not None
        assert in_full.p <= measured.stopped.p_at_most
    for number in (0, 1, 4):
        assert early.versions[number][1].measurement == full.versions[number][1].measurement


def test_an_efficiency_edit_that_is_not_cheaper_is_not_trained() -> None:
    script = Script(turns={0: 900, 1: 900, 2: 900, 3: 900, 4: 100})
    early, full = World(spec(), script), World(without_stops(spec()), script)
    for world in (early, full):
        world.settle()
    assert early.outcome()["verdicts"] == full.outcome()["verdicts"]
    assert early.decisions[2].reason == Reason.NOT_CHEAPER and "before any episode" in early.decisions[2].message
    assert early.outcome()["trained"] == [0, 1, 3, 4] and full.outcome()["trained"] == [0, 1, 2, 3, 4]


def test_a_version_waits_until_its_champion_is_seen() -> None:
    """Otherwise one attempt would be asked for two kinds of work."""
    world = World(spec())
    while 1 not in world.versions:
        world.tick()
        for number in list(world.versions):
            world.tick_version(number)
        world.finish_all()
    seen = replace(world.version_seen(1), champion=None)
    decision = plan_version(WHO, world.versions[1][0], world.versions[1][1], seen, NOW)
    assert not decision.actions and decision.status == world.versions[1][1]


def test_a_rule_that_changes_within_a_round_judges_the_next() -> None:
    world = World(spec())
    while 1 not in world.versions:
        world.tick()
        for number in list(world.versions):
            world.tick_version(number)
        world.finish_all()
    paper = world.spec.acceptance.model_copy(update={"rule": AcceptanceRule.PAPER})
    world.spec = world.spec.model_copy(update={"acceptance": paper})
    world.settle()
    assert "confidence" in world.decisions[1].message
    assert "confidence" not in world.decisions[4].message


def test_an_object_does_not_grow_with_its_rounds() -> None:
    """What the API server keeps of an evolution, or of a version, is bounded whatever `rounds.max` says."""
    sizes = []
    for rounds in (4, 16):
        given = spec()
        given = given.model_copy(update={"rounds": given.rounds.model_copy(update={"max": rounds, "patience": rounds})})
        world = World(
            given, Script(p=dict.fromkeys(range(rounds + 1), 0.4), turns=dict.fromkeys(range(rounds + 1), 900))
        )
        world.settle()
        assert world.status.decided == rounds
        last_spec, last_status = world.versions[rounds]
        objects = (world.status, last_spec, last_status)
        sizes.append([len(json.dumps(o.to_wire())) for o in objects])
    small, large = sizes
    assert all(abs(b - a) < 200 for a, b in zip(small, large, strict=True)), sizes
