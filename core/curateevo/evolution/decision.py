"""The vocabulary of planning: what is seen, what is to be done, what is to be announced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from curateevo.api.evolution import (
    EvolutionStatus,
    Measurement,
    Reason,
    Stage,
    StageStatus,
    VersionPhase,
    VersionSpec,
    VersionStatus,
)
from curateevo.api.spec import EvolutionSpec
from curateevo.api.stage import ChampionPointer, DecisionRecord, FileRef, Manifest, ScoreTable, StageRequest

S = TypeVar("S", EvolutionStatus, VersionStatus)


class JobState(StrEnum):
    """What is seen of one attempt's job. It only says whether to wait, retry or fail: the manifest is the proof."""

    ABSENT = "Absent"
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPING = "Stopping"
    """It was told to end and still lingers: nothing new under its name before it is gone."""
    LOST = "Lost"
    """It died with the machine or process that ran the loop: the same attempt goes on."""


@dataclass(frozen=True, slots=True)
class AttemptSeen:
    attempt: int
    job: JobState
    manifest: Manifest | None = None
    exit_code: int | None = None
    message: str = ""
    since: float | None = None
    """When it entered its state, seconds since the epoch; None when not known."""


@dataclass(frozen=True, slots=True)
class StageSeen:
    """All attempts of one stage that left anything to see, in any order."""

    attempts: tuple[AttemptSeen, ...] = ()

    def at(self, attempt: int) -> AttemptSeen:
        found = (a for a in self.attempts if a.attempt == attempt)
        return next(found, AttemptSeen(attempt, JobState.ABSENT))

    @property
    def highest(self) -> int:
        return max((a.attempt for a in self.attempts), default=0)

    @property
    def done(self) -> AttemptSeen | None:
        """The first attempt with a valid manifest."""
        return min((a for a in self.attempts if a.manifest is not None), key=lambda a: a.attempt, default=None)


@dataclass(frozen=True, slots=True)
class VersionSeen:
    """A version as its evolution sees it: what it was made from, and its result."""

    number: int
    policy_digest: str
    policy_key: str
    phase: VersionPhase
    measurement: Measurement | None = None
    reason: Reason | None = None
    message: str = ""
    scores: ScoreTable | None = None
    """On sel, once measured."""
    curate: Manifest | None = None
    train: Manifest | None = None
    evaluate: Manifest | None = None
    policy: FileRef | None = None
    method: str = ""
    spec: EvolutionSpec | None = None
    """The spec that its round was started with."""
    current: StageStatus | None = None
    """The stage that is at work, or waits for its next attempt."""


@dataclass(frozen=True, slots=True)
class ChampionSeen:
    pointer: ChampionPointer
    tag: str


@dataclass(frozen=True, slots=True)
class EvolutionSeen:
    """`stages` by stage name; propose is that of the round in `status.round + 1`, see `observe` of a shell."""

    stages: Mapping[Stage, StageSeen] = field(default_factory=dict)
    proposals: Mapping[int, StageSeen] = field(default_factory=dict)
    """The propose stage, by version number."""
    versions: Mapping[int, VersionSeen] = field(default_factory=dict)
    decisions: Mapping[int, DecisionRecord] = field(default_factory=dict)
    champion: ChampionSeen | None = None
    submissions: Mapping[int, FileRef] = field(default_factory=dict)
    """Policies that people submitted, by version number."""
    initial_policy: FileRef | None = None
    initial_policy_digest: str | None = None
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class ChampionScores:
    """What the champion of a round was measured at."""

    scores: FileRef
    """Its score table on sel."""
    c: float


@dataclass(frozen=True, slots=True)
class VersionStagesSeen:
    """What a version sees: its own stages, the ingest artifact, and the decision about it once there is one."""

    stages: Mapping[Stage, StageSeen] = field(default_factory=dict)
    ingest: Manifest | None = None
    context: FileRef | None = None
    """Failures of the parent, from the proposal that made this version."""
    policy: FileRef | None = None
    champion: ChampionScores | None = None
    """What the parent was measured at; None while it is not seen, and for version 0."""
    decision: DecisionRecord | None = None
    suspended: bool = False
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class StartJob:
    name: str
    request: StageRequest


@dataclass(frozen=True, slots=True)
class StopJob:
    name: str
    stage: Stage
    version: int | None
    attempt: int


@dataclass(frozen=True, slots=True)
class CreateVersion:
    name: str
    spec: VersionSpec


@dataclass(frozen=True, slots=True)
class WriteDecision:
    """Write-once. Losing the race is harmless: what is there counts."""

    record: DecisionRecord


@dataclass(frozen=True, slots=True)
class MoveChampion:
    """Compare-and-swap: `tag` is that of the pointer that was seen, None when there was none."""

    pointer: ChampionPointer
    tag: str | None


@dataclass(frozen=True, slots=True)
class DeleteArtifacts:
    prefix: str


@dataclass(frozen=True, slots=True)
class DeleteEvolution:
    """Its time after the end is over (ttlSecondsAfterFinished): the object is to be deleted, and all goes with it."""


@dataclass(frozen=True, slots=True)
class Release:
    """Nothing is left to clean up: the object may go."""


Action = StartJob | StopJob | CreateVersion | WriteDecision | MoveChampion | DeleteArtifacts | DeleteEvolution | Release


@dataclass(frozen=True, slots=True)
class Notice:
    """An Event on the cluster, a line on one machine. Announced after the status is saved."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Decision(Generic[S]):
    """`wake_in` seconds from now the plan should be made again at the latest; None: only when something changes."""

    status: S
    actions: tuple[Action, ...] = ()
    notices: tuple[Notice, ...] = ()
    wake_in: float | None = None
