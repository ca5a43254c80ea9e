"""What is there: jobs, manifests, decisions and the champion, as the plans want to see them."""

from __future__ import annotations

from dataclasses import dataclass, field

from curateevo.api.errors import ContractBroken
from curateevo.api.evolution import CurationEvolution, PolicyVersion, Stage, StageStatus
from curateevo.api.stage import ChampionPointer, DecisionRecord, FileRef, Manifest, ProposeSummary, ScoreTable
from curateevo.evolution.decision import (
    AttemptSeen,
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
from curateevo.evolution.plan_version import STAGES
from curateevo.local.jobs import LocalJobs
from curateevo.policy.source import policy_digest
from curateevo.store.artifacts import read_manifest
from curateevo.store.protocol import Store

EVOLUTION_STAGES = (Stage.INGEST, Stage.FLOORS, Stage.SEAL)
SEL_SCORES = "sel/scores.json"


@dataclass(slots=True)
class Observer:
    """Reads the store and the jobs of one evolution. Manifests and decisions are immutable: each is read once."""

    store: Store
    jobs: LocalJobs
    name: str
    uid: str
    _manifests: dict[str, Manifest] = field(default_factory=dict)
    _decisions: dict[int, DecisionRecord] = field(default_factory=dict)
    _scores: dict[str, ScoreTable] = field(default_factory=dict)
    _initial: tuple[FileRef, str] | None = None

    def evolution(self, evolution: CurationEvolution, versions: dict[int, PolicyVersion]) -> EvolutionSeen:
        status = evolution.status
        upcoming = max([*versions, status.decided, status.round]) + 1 if versions else 1
        for number in range(upcoming + 1):
            self._read_decision(number)
        initial = self._initial_policy()
        return EvolutionSeen(
            stages={s: self.stage(s, None, status.stages.get(s.value)) for s in EVOLUTION_STAGES},
            proposals={n: self._proposal(n, status.round, status.stages) for n in range(1, upcoming + 1)},
            versions={n: self.version(v) for n, v in versions.items()},
            decisions=dict(self._decisions),
            champion=self._champion(),
            submissions=self._submissions(upcoming),
            initial_policy=initial[0] if initial else None,
            initial_policy_digest=initial[1] if initial else None,
        )

    def version_stages(self, version: PolicyVersion, ingest: Manifest | None) -> VersionStagesSeen:
        number = version.spec.number
        proposal = self._proposal(number, -1, {}).done
        made = proposal.manifest if proposal else None
        return VersionStagesSeen(
            stages={s: self.stage(s, number, version.status.stages.get(s.value)) for s in STAGES},
            ingest=ingest,
            context=made.file("context.json").ref if made and made.has("context.json") else None,
            policy=self._policy(number),
            decision=self._read_decision(number),
        )

    def version(self, version: PolicyVersion) -> VersionSeen:
        status, number = version.status, version.spec.number
        done = {s: self._done(s, number, status.stages.get(s.value)) for s in STAGES}
        evaluate = done[Stage.EVALUATE]
        proposal = self._proposal(number, -1, {}).done
        summary = proposal.manifest.summary if proposal and proposal.manifest else None
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
            policy=self._policy(number),
            method=summary.method if isinstance(summary, ProposeSummary) else "",
        )

    def stage(self, stage: Stage, version: int | None, status: StageStatus | None) -> StageSeen:
        """All attempts up to the status's high-water mark, and any beyond it that left something."""
        attempts: list[AttemptSeen] = []
        number = 1
        highest = status.attempt if status else 0
        while True:
            seen = self._attempt(stage, version, number)
            if seen is None and number > highest:
                return StageSeen(tuple(attempts))
            if seen is not None:
                attempts.append(seen)
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

    def _attempt(self, stage: Stage, version: int | None, attempt: int) -> AttemptSeen | None:
        job = self.jobs.seen(job_name(self.name, stage, version, attempt))
        manifest = self.manifest(stage, version, attempt)
        if manifest is None and job.state is JobState.ABSENT:
            return None
        return AttemptSeen(attempt, job.state, manifest, job.exit_code, job.message, job.since)

    def _done(self, stage: Stage, version: int, status: StageStatus | None) -> Manifest | None:
        done = self.stage(stage, version, status).done
        return done.manifest if done else None

    def _proposal(self, number: int, current: int, stages: dict[str, StageStatus]) -> StageSeen:
        status = stages.get(Stage.PROPOSE.value) if number == current else None
        return self.stage(Stage.PROPOSE, number, status) if number > 0 else StageSeen()

    def _policy(self, number: int) -> FileRef | None:
        if number == 0:
            initial = self._initial_policy()
            return initial[0] if initial else None
        done = self._proposal(number, -1, {}).done
        return (
            done.manifest.file("policy.py").ref if done and done.manifest and done.manifest.has("policy.py") else None
        )

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

    def _submissions(self, upcoming: int) -> dict[int, FileRef]:
        out = {}
        for number in range(1, upcoming + 1):
            key = submission_key(self.uid, number)
            if (data := self.store.get(key)) is not None:
                out[number] = self.store.put(key, data)
        return out

    def _initial_policy(self) -> tuple[FileRef, str] | None:
        if self._initial is None:
            key = initial_policy_key(self.uid)
            if (data := self.store.get(key)) is None:
                return None
            self._initial = (self.store.put(key, data), policy_digest(data.decode()))
        return self._initial
