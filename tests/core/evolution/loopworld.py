"""A world for the plans: an in-memory store, jobs that end as scripted, and shells that can lose saves or crash.

Invariants are checked at every effect; `outcome()` is what two runs must agree on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from curateevo.api.evolution import (
    EarlyStop,
    EvolutionPhase,
    EvolutionStatus,
    Stage,
    StageStatus,
    VersionSpec,
    VersionStatus,
)
from curateevo.api.parse import parse_evolution
from curateevo.api.spec import EvolutionSpec
from curateevo.api.stage import (
    AGAINST_SCORES,
    ChampionPointer,
    CurateParams,
    CurateSummary,
    DecisionRecord,
    EvaluateParams,
    EvaluateSummary,
    FileEntry,
    FileRef,
    IngestSummary,
    Manifest,
    Outcome,
    ProposeSummary,
    ScoreTable,
    SplitScore,
    StageRequest,
    Summary,
    TrainSummary,
    Usage,
    content_digest,
)
from curateevo.evolution.acceptance import run_order
from curateevo.evolution.decision import (
    AttemptSeen,
    ChampionScores,
    ChampionSeen,
    CreateVersion,
    Decision,
    DeleteArtifacts,
    EvolutionSeen,
    JobState,
    MoveChampion,
    Release,
    StageSeen,
    StartJob,
    StopJob,
    VersionSeen,
    VersionStagesSeen,
    WriteDecision,
)
from curateevo.evolution.names import job_name
from curateevo.evolution.plan_evolution import TERMINAL, plan_evolution
from curateevo.evolution.plan_version import STAGES, plan_version
from curateevo.evolution.requests import Identity
from curateevo.evolution.stopping import early_stop

PROPOSING: dict[str, Any] = {"tokens": 1000, "usd": 0.25, "calls": 2}
REWRITING: dict[str, Any] = {"tokens": 500, "usd": 0.125, "calls": 5}
"""What a proposal costs, and a curation with rewrites."""
WHO = Identity("evo", "uid-1")
TASKS = tuple(f"task-{n:03d}" for n in range(120))
YAML = """
apiVersion: curateevo.io/v1alpha1
kind: CurationEvolution
metadata: {name: evo}
spec:
  corpus: {sources: [{uri: corpus.jsonl}]}
  model: {base: "builtin://toolworld"}
  evaluation: {suites: [{name: toolworld}]}
  storage: {uri: "file:///store"}
  rounds: {max: 4, patience: 4, focus: [Effectiveness, Efficiency]}
  retries: {infrastructure: 2, application: 1, backoffSeconds: 5}
"""
FILES = {
    Stage.INGEST: (
        "trajectories.parquet",
        "features.parquet",
        "tasks.parquet",
        "dev_prompts.json",
        "splits.json",
        "profile.json",
    ),
    Stage.CURATE: ("sft.jsonl", "rl.jsonl", "memory.jsonl", "profile.json"),
    Stage.TRAIN: ("model-0/model.safetensors", "model-0/config.json"),
    Stage.EVALUATE: ("diag/trajectories.jsonl", "diag/results.jsonl", "sel/scores.json"),
    Stage.PROPOSE: ("policy.py", "context.json"),
    Stage.FLOORS: ("sel/scores.json",),
    Stage.SEAL: ("test/scores.json",),
}


def spec(**changes: object) -> EvolutionSpec:
    return parse_evolution(YAML, "test").spec.model_copy(update=changes)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Script:
    """What becomes of jobs: by (stage, version, attempt) an exit code or an outcome; by version a success rate and turns."""

    ends: dict[tuple[Stage, int | None, int], int | Outcome | str] = field(default_factory=dict)
    p: dict[int, float] = field(default_factory=lambda: {0: 0.2, 1: 0.5, 2: 0.48, 3: 0.2, 4: 0.57})
    turns: dict[int, int] = field(default_factory=lambda: {0: 900, 1: 900, 2: 300, 3: 900, 4: 100})
    refusals: dict[int, str] = field(default_factory=dict)
    """By version, the reason of a proposal that is Exhausted."""


@dataclass
class Job:
    name: str
    request: StageRequest
    state: JobState = JobState.RUNNING
    exit_code: int | None = None
    since: float = 0.0
    starts: int = 1


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class World:
    spec: EvolutionSpec
    script: Script = field(default_factory=Script)
    now: float = 1000.0
    status: EvolutionStatus = field(default_factory=EvolutionStatus)
    before: EvolutionStatus = field(default_factory=EvolutionStatus)
    versions: dict[int, tuple[VersionSpec, VersionStatus]] = field(default_factory=dict)
    versions_before: dict[int, VersionStatus] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    decisions: dict[int, DecisionRecord] = field(default_factory=dict)
    champion: ChampionPointer | None = None
    tag: int = 0
    moves: list[int] = field(default_factory=list)
    released: bool = False
    submissions: dict[int, FileRef] = field(default_factory=dict)
    deleting: bool = False
    deleted_prefixes: list[str] = field(default_factory=list)
    work: Counter[tuple[Stage, int | None, int]] = field(default_factory=Counter)
    wake: float | None = 0.0

    # ---- one pass of a shell, with faults -------------------------------------------------------------------------

    def tick(self, *, save: bool = True, applied: int | None = None, stale: bool = False) -> bool:
        """Plan and apply the evolution. `applied`: crash after so many actions. True when anything changed."""
        given = self.before if stale else self.status
        decision = plan_evolution(WHO, self.spec, given, self.seen(), self.now)
        check_decision(given, decision)
        changed = self._apply(decision, applied)
        self.wake = decision.wake_in
        if save and applied is None and decision.status != self.status:
            self.before, self.status, changed = self.status, decision.status, True
        return changed

    def tick_version(self, number: int, *, save: bool = True, applied: int | None = None, stale: bool = False) -> bool:
        if number not in self.versions:
            return False
        version, current = self.versions[number]
        given = self.versions_before.get(number, VersionStatus()) if stale else current
        decision = plan_version(WHO, version, given, self.version_seen(number), self.now)
        changed = self._apply(decision, applied)
        if decision.wake_in is not None:
            self.wake = min(decision.wake_in, self.wake if self.wake is not None else decision.wake_in)
        if save and applied is None and decision.status != current:
            self.versions_before[number] = current
            self.versions[number] = (version, decision.status)
            changed = True
        return changed

    def settle(self, limit: int = 2000) -> None:
        """Run without faults until nothing happens any more."""
        for _ in range(limit):
            changed = self.tick()
            for number in list(self.versions):
                changed |= self.tick_version(number)
            changed |= self.finish_all()
            if not changed:
                if self.status.phase in TERMINAL or self.wake is None:
                    return
                self.now += max(1.0, self.wake)
        raise Broken(f"does not settle: {self.status.phase} {self.status.message}")

    def finish_all(self) -> bool:
        running = [j.name for j in self.jobs.values() if j.state is JobState.RUNNING]
        for name in running:
            self.finish(name)
        return bool(running)

    # ---- jobs -----------------------------------------------------------------------------------------------------

    def finish(self, name: str) -> None:
        """A running job ends as the script says."""
        job = self.jobs[name]
        if job.state is not JobState.RUNNING:
            return
        request = job.request
        key = (request.stage, request.version, request.attempt)
        end = self.script.ends.get(key, Outcome.OK)
        job.since = self.now
        if end == "no manifest":
            job.state, job.exit_code = JobState.SUCCEEDED, 0
        elif isinstance(end, Outcome):
            self.work[key] += 1
            self.manifests[request.prefix] = make_manifest(request, end, self.script)
            job.state, job.exit_code = JobState.SUCCEEDED, 0
        else:
            job.state, job.exit_code = JobState.FAILED, int(end)

    def lose(self, name: str) -> None:
        """A running job dies with its machine."""
        if self.jobs[name].state is JobState.RUNNING:
            self.jobs[name].state = JobState.LOST

    def _apply(self, decision: Decision, applied: int | None) -> bool:  # type: ignore[type-arg]
        actions = decision.actions if applied is None else decision.actions[:applied]
        for action in actions:
            match action:
                case StartJob():
                    self._start(action)
                case StopJob():
                    if (job := self.jobs.get(action.name)) is not None and job.state is JobState.RUNNING:
                        job.state = JobState.LOST
                case CreateVersion():
                    self.versions.setdefault(action.spec.number, (action.spec, VersionStatus()))
                case WriteDecision():
                    self.decisions.setdefault(action.record.number, action.record)
                case MoveChampion():
                    self._move(action)
                case DeleteArtifacts():
                    self.deleted_prefixes.append(action.prefix)
                case Release():
                    self.released = True
        return bool(actions)

    def _start(self, action: StartJob) -> None:
        request = action.request
        if action.name != job_name(WHO.name, request.stage, request.version, request.attempt):
            raise Broken(f"job {action.name} has another stage's name")
        if self.status_of(request.stage, request.version).attempt < request.attempt:
            raise Broken(f"{action.name} is started before its intent was saved")
        job = self.jobs.get(action.name)
        if job is None:
            self.jobs[action.name] = Job(action.name, request, since=self.now)
        elif job.request.input_digest != request.input_digest:
            raise Broken(f"{action.name} is started with other inputs than before")
        elif job.state is JobState.LOST:
            job.state, job.starts, job.since = JobState.RUNNING, job.starts + 1, self.now

    def _move(self, action: MoveChampion) -> None:
        if action.tag != (str(self.tag) if self.champion else None):
            return
        if action.pointer.number in self.moves:
            raise Broken(f"the champion moved to {action.pointer.number} twice")
        if action.pointer.number not in self.decisions:
            raise Broken("the champion moved before its decision was written")
        self.champion, self.tag = action.pointer, self.tag + 1
        self.moves.append(action.pointer.number)

    def status_of(self, stage: Stage, version: int | None) -> StageStatus:
        owner = self.status.stages if version is None or stage is Stage.PROPOSE else self.versions[version][1].stages
        return owner.get(stage.value, StageStatus())

    # ---- what is seen ---------------------------------------------------------------------------------------------

    def stage_seen(self, stage: Stage, version: int | None) -> StageSeen:
        found = [j for j in self.jobs.values() if (j.request.stage, j.request.version) == (stage, version)]
        return StageSeen(
            tuple(
                AttemptSeen(
                    j.request.attempt,
                    j.state,
                    self.manifests.get(j.request.prefix),
                    j.exit_code,
                    f"exit {j.exit_code}",
                    j.since,
                )
                for j in sorted(found, key=lambda j: -j.request.attempt)
            )
        )

    def seen(self) -> EvolutionSeen:
        return EvolutionSeen(
            stages={s: self.stage_seen(s, None) for s in (Stage.INGEST, Stage.FLOORS, Stage.SEAL)},
            proposals={n: self.stage_seen(Stage.PROPOSE, n) for n in range(1, len(self.decisions) + 2)},
            versions={n: self._version(n) for n in self.versions},
            decisions=dict(self.decisions),
            champion=ChampionSeen(self.champion, str(self.tag)) if self.champion else None,
            initial_policy=FileRef(key="p0", digest="sha256:p0", size_bytes=1),
            initial_policy_digest="sha256:p0",
            submissions=dict(self.submissions),
            deleting=self.deleting,
        )

    def _version(self, number: int) -> VersionSeen:
        version, status = self.versions[number]
        done = {s: d.manifest if (d := self.stage_seen(s, number).done) else None for s in STAGES}
        evaluated = done[Stage.EVALUATE]
        return VersionSeen(
            number,
            version.policy_digest,
            version.policy_key,
            status.phase,
            status.measurement,
            status.reason,
            status.message,
            self._scores(number, evaluated.summary) if evaluated else None,
            done[Stage.CURATE],
            done[Stage.TRAIN],
            done[Stage.EVALUATE],
            FileRef(key=version.policy_key, digest=version.policy_digest, size_bytes=1),
            spec=version.evolution_spec,
        )

    def _scores(self, number: int, summary: Summary) -> ScoreTable:
        """What was run of the version's scores."""
        full = score_table(self.script.p[number], number)
        if not isinstance(summary, EvaluateSummary) or summary.stopped is None:
            return full
        parent = self.versions[number][0].parent or 0
        kept = run_order(score_table(self.script.p[parent], parent), TASKS)[: summary.stopped.episodes]
        rows = tuple(row if t in kept else () for t, row in zip(TASKS, full.scores["seed-0"], strict=True))
        return full.model_copy(update={"scores": {"seed-0": rows}})

    def version_seen(self, number: int) -> VersionStagesSeen:
        ingest = self.stage_seen(Stage.INGEST, None).done
        parent = self.versions[number][0].parent
        return VersionStagesSeen(
            stages={s: self.stage_seen(s, number) for s in STAGES},
            ingest=ingest.manifest if ingest else None,
            policy=FileRef(key=f"p{number}", digest=f"sha256:p{number}", size_bytes=1),
            champion=None if parent is None else self._champion_scores(parent),
            decision=self.decisions.get(number),
        )

    def _champion_scores(self, number: int) -> ChampionScores | None:
        seen = self._version(number)
        if seen.evaluate is None or seen.measurement is None:
            return None
        return ChampionScores(seen.evaluate.file("sel/scores.json").ref, seen.measurement.c)

    # ---- what counts ----------------------------------------------------------------------------------------------

    def outcome(self) -> dict[str, object]:
        """What every run of one script must come to."""
        return {
            "phase": self.status.phase,
            "reason": self.status.reason,
            "champion": self.champion.number if self.champion else None,
            "moves": self.moves,
            "verdicts": {n: (r.verdict, r.reason) for n, r in sorted(self.decisions.items())},
            "shown": {n: s.verdict for n, (_, s) in sorted(self.versions.items())},
            "counts": self.status.counts,
            "measured": {n: s.measurement for n, (_, s) in sorted(self.versions.items())},
            "trained": sorted({v for s, v, _ in self.work if s is Stage.TRAIN and v is not None}),
            "spent": self.status.spent,
        }

    def check_end(self) -> None:
        """At the end: the ledger, replayed, equals the status; no work was done twice; nothing runs."""
        if (
            self.status.champion is not None
            and self.champion is not None
            and self.status.champion.number != self.champion.number
        ):
            raise Broken("status and pointer name different champions")
        committed = [n for n, r in sorted(self.decisions.items()) if r.verdict.value == "Committed"]
        if committed != self.moves:
            raise Broken(f"committed {committed}, but the champion moved to {self.moves}")
        twice = [key for key, count in self.work.items() if count > 1]
        if twice:
            raise Broken(f"done twice: {twice}")
        if any(j.state is JobState.RUNNING for j in self.jobs.values()):
            raise Broken("a job still runs")
        if self.status.decided != max(self.decisions, default=-1):
            raise Broken("a decision was not counted")
        counted = self.status.counts
        total = counted.committed + counted.reverted + counted.rejected + counted.failed
        if total != sum(1 for r in self.decisions.values() if r.reason != "ProposerExhausted"):
            raise Broken(f"{total} verdicts are counted, {len(self.decisions)} were given")


def check_decision(given: EvolutionStatus, decision: Decision[EvolutionStatus]) -> None:
    """Invariants of a single decision."""
    if given.decided > decision.status.decided:
        raise Broken("the count of decisions went back")
    for name, stage in given.stages.items():
        after = decision.status.stages.get(name)
        if after is not None and after.attempt < stage.attempt and name != Stage.PROPOSE.value:
            raise Broken(f"{name}: the attempt went back from {stage.attempt} to {after.attempt}")
    if given.phase is EvolutionPhase.COMPLETE and decision.status.phase is not EvolutionPhase.COMPLETE:
        raise Broken("an evolution that had ended began again")


def score_table(p: float, number: int) -> ScoreTable:
    """Deterministic scores with a mean near `p`: a task keeps its difficulty over versions, with some noise."""
    rows = tuple(
        (float((int(sha(f"task {t}")[:8], 16) + int(sha(f"{number} {t}")[:8], 16) * 0.15) / (0xFFFFFFFF * 1.15) < p),)
        for t in TASKS
    )
    return ScoreTable(tasks=TASKS, families=("f",) * len(TASKS), scores={"seed-0": rows})


def make_manifest(request: StageRequest, outcome: Outcome, script: Script) -> Manifest:
    """The manifest of a stage's artifact; its content depends on version and stage alone, not on the attempt."""
    number = request.version or 0
    turns = script.turns.get(number, 100)
    p = score_table(script.p.get(number, 0.3), number)
    mean = sum(r[0] for r in p.scores["seed-0"] if r[0] is not None) / len(TASKS)
    files = tuple(
        FileEntry(
            path=path,
            key=f"{request.prefix}/{path}",
            size_bytes=1,
            sha256=sha(f"{request.stage}{number}{path}"),
        )
        for path in FILES[request.stage]
    )
    score = SplitScore(p=mean, tasks=len(TASKS), errors=0, tokens=10)
    summary = {
        Stage.INGEST: IngestSummary(trajectories=10, turns=1000, successes=5, set_aside=0, leaked=0),
        Stage.CURATE: CurateSummary(sft_rows=turns, sft_turns=turns),
        Stage.TRAIN: TrainSummary(),
        Stage.EVALUATE: EvaluateSummary(
            scores={"seed-0": {"diag": score, "sel": score}}, stopped=stop_of(request, p, script)
        ),
        Stage.FLOORS: EvaluateSummary(scores={"do-nothing": {"sel": score}}),
        Stage.SEAL: EvaluateSummary(scores={"v0-seed-0": {"test": score}}),
        Stage.PROPOSE: ProposeSummary(policy_digest=f"sha256:p{number}", method=f"method-{number}"),
    }[request.stage]
    return Manifest(
        stage=request.stage,
        input_digest=request.input_digest,
        outcome=outcome,
        reason="sft-not-empty" if outcome is Outcome.REJECTED else script.refusals.get(number, ""),
        message="refused" if outcome is Outcome.REJECTED or number in script.refusals else "",
        files=files,
        digest=content_digest(outcome, files),
        summary=summary,
        usage=Usage(gpu_seconds=10.0, **_asked(request)),
    )


def stop_of(request: StageRequest, full: ScoreTable, script: Script) -> EarlyStop | None:
    """Where an evaluation that would score `full` ends early: looked at after every tenth task."""
    params = request.params
    if not isinstance(params, EvaluateParams) or (against := params.against) is None:
        return None
    number = int(request.inputs[AGAINST_SCORES].key.split("/versions/")[1].split("/")[0])
    champion = score_table(script.p[number], number)
    order = run_order(champion, full.tasks)
    rows = dict(zip(full.tasks, full.scores["seed-0"], strict=True))
    for ran in range(0, len(order), 10):
        kept = set(order[:ran])
        so_far = tuple(rows[t] if t in kept else () for t in full.tasks)
        table = full.model_copy(update={"scores": {"seed-0": so_far}})
        if (found := early_stop(champion, table, against, losable=0, runs=1)) is not None:
            return found
    return None


def _asked(request: StageRequest) -> dict[str, Any]:
    """What a stage's calls of a model cost."""
    if request.stage is Stage.PROPOSE:
        return PROPOSING
    return REWRITING if isinstance(request.params, CurateParams) and request.params.augmentation else {}


def undisturbed(world: World) -> dict[str, object]:
    """The outcome of the same script without any fault."""
    calm = World(world.spec, world.script)
    calm.settle()
    calm.check_end()
    return calm.outcome()


def with_script(**ends: int | Outcome | str) -> Script:
    """`with_script(train_v1_a1=1)`: ends by stage, version and attempt."""
    table: dict[tuple[Stage, int | None, int], int | Outcome | str] = {}
    for name, end in ends.items():
        stage, *rest = name.split("_")
        version = next((int(r[1:]) for r in rest if r.startswith("v")), None)
        attempt = next((int(r[1:]) for r in rest if r.startswith("a")), 1)
        table[Stage(stage), version, attempt] = end
    return Script(ends=table)
