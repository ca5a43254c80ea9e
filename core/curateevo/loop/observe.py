"""What is there: jobs, manifests, decisions and the champion, as the plans want to see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

from curateevo.api.errors import ContractBroken
from curateevo.api.evolution import CurationEvolution, PolicyVersion, Stage, StageState, StageStatus
from curateevo.api.stage import ChampionPointer, DecisionRecord, FileRef, Manifest, ProposeSummary, ScoreTable
from curateevo.evolution.decision import (
    AttemptSeen,
    ChampionScores,
    ChampionSeen,
    EvolutionSeen,
    JobState,
    StageSeen,
    VersionSeen,
    VersionStagesSeen,
)
from curateevo.evolution.names import (
    attempt_prefix,
    champion_key,
    decision_key,
    initial_policy_key,
    job_name,
    submission_key,
)
from curateevo.evolution.plan_evolution import HISTORY_LIMIT, TERMINAL
from curateevo.evolution.plan_version import STAGES
from curateevo.policy.source import policy_digest
from curateevo.store.artifacts import read_manifest
from curateevo.store.protocol import Store

EVOLUTION_STAGES = (Stage.INGEST, Stage.FLOORS, Stage.SEAL)
SEL_SCORES = "sel/scores.json"


@dataclass(frozen=True, slots=True)
class JobSeen:
    """One attempt's job, however the shell runs it."""

    state: JobState
    exit_code: int | None = None
    message: str = ""
    since: float | None = None
    """When it entered its state, seconds since the epoch."""


class Jobs(Protocol):
    """The jobs of one evolution, by name; a name without a job is ABSENT."""

    def seen(self, name: str) -> JobSeen: ...


@dataclass(slots=True)
class Observer:
    """Reads the store and the jobs of one evolution. Manifests and decisions are immutable: each is read once.

    Versions long decided are not looked at, but for the champion: what a pass costs does not grow with the rounds.
    """

    store: Store
    name: str
    uid: str
    _manifests: dict[str, Manifest] = field(default_factory=dict)
    _decisions: dict[int, DecisionRecord] = field(default_factory=dict)
    _scores: dict[str, ScoreTable] = field(default_factory=dict)
    _initial: tuple[FileRef, str] | None = None

    def evolution(
        self,
        evolution: CurationEvolution,
        versions: dict[int, PolicyVersion],
        jobs: Jobs,
        *,
        deleting: bool = False,
    ) -> EvolutionSeen:
        """What is there of an evolution. Raises StoreUnavailable or Denied."""
        status = evolution.status
        upcoming = max([*versions, status.decided, status.round]) + 1 if versions else 1
        recent = range(max(0, status.decided - HISTORY_LIMIT), upcoming + 1)
        wanted = {*recent, status.first_champion, status.champion.number if status.champion else None}
        for number in recent:
            self._read_decision(number)
        initial = self._initial_policy()
        return EvolutionSeen(
            stages={s: self.stage(s, None, status.stages.get(s.value), jobs) for s in EVOLUTION_STAGES},
            proposals={
                n: self._proposal(n, status.round, status.stages, jobs)
                for n in range(max(1, status.decided), upcoming + 1)
            },
            versions={n: self.version(v, jobs) for n, v in versions.items() if n in wanted},
            decisions={n: d for n, d in self._decisions.items() if n in recent},
            champion=self._champion(),
            submissions=self._submissions(status.decided + 1),
            initial_policy=initial[0] if initial else None,
            initial_policy_digest=initial[1] if initial else None,
            deleting=deleting,
        )

    def version_stages(
        self, evolution: CurationEvolution, version: PolicyVersion, seen: EvolutionSeen, jobs: Jobs
    ) -> VersionStagesSeen:
        """What is there of a version of `evolution`, which was seen as `seen`."""
        number = version.spec.number
        made = self._proposed(number, jobs)
        ingest = seen.stages[Stage.INGEST].done
        return VersionStagesSeen(
            stages={s: self.stage(s, number, version.status.stages.get(s.value), jobs) for s in STAGES},
            ingest=ingest.manifest if ingest else None,
            context=made.file("context.json").ref if made and made.has("context.json") else None,
            policy=self._policy(number, jobs),
            champion=_measured(seen.versions.get(version.spec.parent)) if version.spec.parent is not None else None,
            decision=self._read_decision(number),
            suspended=_halted(evolution),
            deleting=seen.deleting,
        )

    def version(self, version: PolicyVersion, jobs: Jobs) -> VersionSeen:
        status, number = version.status, version.spec.number
        done = {s: self._done(s, number, status.stages.get(s.value), jobs) for s in STAGES}
        evaluate = done[Stage.EVALUATE]
        proposed = self._proposed(number, jobs)
        summary = proposed.summary if proposed else None
        return VersionSeen(
            number=number,
            policy_digest=version.spec.policy_digest,
            policy_key=version.spec.policy_key,
            phase=status.phase,
            measurement=status.measurement,
            reason=status.reason,
            message=status.message,
            scores=self._table(evaluate) if evaluate else None,
            curate=done[Stage.CURATE],
            train=done[Stage.TRAIN],
            evaluate=evaluate,
            policy=self._policy(number, jobs),
            method=summary.method if isinstance(summary, ProposeSummary) else "",
            spec=version.spec.evolution_spec,
            current=_current(status.stages),
        )

    def stage(self, stage: Stage, version: int | None, status: StageStatus | None, jobs: Jobs) -> StageSeen:
        """All attempts up to the status's high-water mark, and any beyond it that left something."""
        attempts: list[AttemptSeen] = []
        number, done = 1, False
        highest = status.attempt if status else 0
        while True:
            job = jobs.seen(job_name(self.name, stage, version, number))
            manifest = None if done and number > highest else self.manifest(stage, version, number)
            if manifest is not None or job.state is not JobState.ABSENT:
                attempts.append(AttemptSeen(number, job.state, manifest, job.exit_code, job.message, job.since))
                done |= manifest is not None
            elif number > highest:
                return StageSeen(tuple(attempts))
            number += 1

    def manifest(self, stage: Stage, version: int | None, attempt: int) -> Manifest | None:
        prefix = attempt_prefix(self.uid, stage, version, attempt)
        if prefix not in self._manifests:
            try:
                found = read_manifest(self.store, prefix)
            except ContractBroken:
                return None
            if found is None:
                return None
            self._manifests[prefix] = found
        return self._manifests[prefix]

    def _done(self, stage: Stage, version: int, status: StageStatus | None, jobs: Jobs) -> Manifest | None:
        done = self.stage(stage, version, status, jobs).done
        return done.manifest if done else None

    def _proposal(self, number: int, current: int, stages: dict[str, StageStatus], jobs: Jobs) -> StageSeen:
        status = stages.get(Stage.PROPOSE.value) if number == current else None
        return self.stage(Stage.PROPOSE, number, status, jobs) if number > 0 else StageSeen()

    def _proposed(self, number: int, jobs: Jobs) -> Manifest | None:
        done = self._proposal(number, -1, {}, jobs).done
        return done.manifest if done else None

    def _policy(self, number: int, jobs: Jobs) -> FileRef | None:
        if number == 0:
            initial = self._initial_policy()
            return initial[0] if initial else None
        made = self._proposed(number, jobs)
        return made.file("policy.py").ref if made and made.has("policy.py") else None

    def _table(self, evaluate: Manifest) -> ScoreTable | None:
        if not evaluate.has(SEL_SCORES):
            return None
        ref = evaluate.file(SEL_SCORES).ref
        if ref.digest not in self._scores:
            self._scores[ref.digest] = ScoreTable.model_validate_json(self.store.read(ref))
        return self._scores[ref.digest]

    def _read_decision(self, number: int) -> DecisionRecord | None:
        if number not in self._decisions:
            raw = self.store.get(decision_key(self.uid, number))
            if raw is None:
                return None
            self._decisions[number] = DecisionRecord.model_validate_json(raw)
        return self._decisions[number]

    def _champion(self) -> ChampionSeen | None:
        tagged = self.store.read_tagged(champion_key(self.uid))
        return ChampionSeen(ChampionPointer.model_validate_json(tagged.data), tagged.tag) if tagged else None

    def _submissions(self, number: int) -> dict[int, FileRef]:
        key = submission_key(self.uid, number)
        data = self.store.get(key) if number > 0 else None
        return {number: _ref(key, data)} if data is not None else {}

    def _initial_policy(self) -> tuple[FileRef, str] | None:
        if self._initial is None:
            key = initial_policy_key(self.uid)
            if (data := self.store.get(key)) is None:
                return None
            self._initial = (_ref(key, data), policy_digest(data.decode()))
        return self._initial


def _halted(evolution: CurationEvolution) -> bool:
    """Whether versions are to rest: suspended, stopped at once, or the evolution is over."""
    spec = evolution.spec
    return spec.suspend or spec.stop == "Now" or evolution.status.phase in TERMINAL


def _measured(champion: VersionSeen | None) -> ChampionScores | None:
    """What a version must beat, once it is seen."""
    if champion is None or champion.measurement is None or champion.evaluate is None:
        return None
    if not champion.evaluate.has(SEL_SCORES):
        return None
    return ChampionScores(champion.evaluate.file(SEL_SCORES).ref, champion.measurement.c)


def _current(stages: dict[str, StageStatus]) -> StageStatus | None:
    """The stage that is at work, or waits for its next attempt."""
    busy = (s for s in stages.values() if s.state in (StageState.ACTIVE, StageState.WAITING))
    return next(busy, None)


def _ref(key: str, data: bytes) -> FileRef:
    return FileRef(key=key, digest=f"sha256:{sha256(data).hexdigest()}", size_bytes=len(data))
