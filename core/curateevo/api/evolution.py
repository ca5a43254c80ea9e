"""The two custom resources: `CurationEvolution` and `PolicyVersion`, with their status."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from curateevo.api.base import Model, Time
from curateevo.api.spec import EvolutionSpec, Focus

Digest = Annotated[str, StringConstraints(max_length=128)]
Key = Annotated[str, StringConstraints(max_length=1024)]
API_VERSION: Literal["curateevo.io/v1alpha1"] = "curateevo.io/v1alpha1"


class Stage(StrEnum):
    """A program run of a round. `floors` and `seal` are evaluations of their own: see the architecture page."""

    INGEST = "ingest"
    FLOORS = "floors"
    PROPOSE = "propose"
    CURATE = "curate"
    TRAIN = "train"
    EVALUATE = "evaluate"
    SEAL = "seal"


class Verdict(StrEnum):
    COMMITTED = "Committed"
    REVERTED = "Reverted"
    REJECTED = "Rejected"
    """The policy broke its contract."""
    FAILED = "Failed"
    """We could not measure it."""


class EvolutionPhase(StrEnum):
    PENDING = "Pending"
    INGESTING = "Ingesting"
    PROPOSING = "Proposing"
    TESTING = "Testing"
    SEALING = "Sealing"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class VersionPhase(StrEnum):
    PENDING = "Pending"
    CURATING = "Curating"
    TRAINING = "Training"
    EVALUATING = "Evaluating"
    MEASURED = "Measured"
    REJECTED = "Rejected"
    FAILED = "Failed"


class StageState(StrEnum):
    IDLE = "Idle"
    ACTIVE = "Active"
    """The attempt's intent is saved; its job may be pending or running."""
    WAITING = "Waiting"
    """Backing off before the next attempt."""
    DONE = "Done"
    FAILED = "Failed"


class Reason(StrEnum):
    """Why something is as it is. Documented in docs/troubleshooting.md."""

    ALREADY_EXISTS = "AlreadyExists"
    AWAITING_POLICY = "AwaitingPolicy"
    BASELINE = "Baseline"
    BASELINE_FAILED = "BaselineFailed"
    BUDGET_SPENT = "BudgetSpent"
    CHEAPER = "CheaperAndNotWorse"
    CONTRACT_BROKEN = "ContractBroken"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    DELETED = "Deleted"
    DENIED = "Denied"
    GOAL_REACHED = "GoalReached"
    IMPROVED = "ObjectiveImproved"
    INFRASTRUCTURE = "InfrastructureFailure"
    MAX_ROUNDS = "MaxRounds"
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    NOT_CHEAPER = "NotCheaper"
    NOT_IMPROVED = "ObjectiveNotImproved"
    NO_PROPOSAL = "ProposerExhausted"
    PATIENCE = "PatienceExhausted"
    PENDING_TOO_LONG = "PendingTooLong"
    POLICY_REJECTED = "PolicyRejected"
    PROGRAM_FAILED = "ProgramFailed"
    RELEASE_GATE = "ReleaseGate"
    RUNNING = "Running"
    SPEC_INVALID = "SpecInvalid"
    STOPPED = "Stopped"
    SUSPENDED = "Suspended"
    TOO_MANY_ERRORS = "TooManyErrors"
    WORSE = "WorseThanMargin"


class Condition(Model):
    """A metav1 condition."""

    type: Annotated[str, StringConstraints(max_length=316)]
    """What is spoken of, e.g. Ready."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    reason: Annotated[str, StringConstraints(max_length=1024)]
    """Why, in one word."""
    message: Annotated[str, StringConstraints(max_length=1024)] = ""
    """Why, for people."""
    observed_generation: int = 0
    """Generation of the object that this speaks of."""
    last_transition_time: Time = 0.0
    """When `status` changed last."""


class StageStatus(Model):
    """Where one stage of one object stands. `attempt` is a high-water mark."""

    state: StageState = StageState.IDLE
    """Where the stage stands."""
    attempt: int = 0
    """Number of the current attempt, or of the last one."""
    started_at: Time | None = None
    """When the attempt began."""
    retry_at: Time | None = None
    """When the next attempt begins."""
    infrastructure_failures: int = 0
    """Attempts lost to the infrastructure."""
    application_failures: int = 0
    """Attempts in which the program failed."""
    reason: Reason | None = None
    """Why, in one word."""
    message: Annotated[str, StringConstraints(max_length=2048)] = ""
    """Why, for people."""
    observed: bool = False
    """The current attempt's job was seen: if it is gone now, somebody removed it."""
    digest: Digest | None = None
    """Digest of the artifact's content, once done."""


class EarlyStop(Model):
    """The end of a measurement before its last episode: nothing that was left could have committed the version. Where
    all of sel was run, what is missing is diag."""

    episodes: int
    """Episodes on sel that were run: tasks by repeats and training seeds."""
    of_episodes: int
    """Episodes on sel that there are."""
    p_so_far: float | None = None
    """Mean success of what was run, 0..1; the tasks that the champion does worst come first."""
    p_at_most: float
    """P if all that was left had succeeded, 0..1."""
    reason: Reason
    """Why the version is reverted, in one word."""
    message: Annotated[str, StringConstraints(max_length=2048)] = ""
    """Why, for people."""


class Measurement(Model):
    """What a version was measured at."""

    p: float | None = None
    """Mean success on sel, 0..1; none when not all of sel was run."""
    c: float
    """Cost, 0..1."""
    j: float | None = None
    """P - lambda * C; none when not all of sel was run."""
    stopped: EarlyStop | None = None
    """Set when the measurement ended early."""
    sft_turns: int
    """Turns in the SFT data."""
    rl_turns: int
    """Turns behind the RL tasks."""
    memory_items: int
    """Notes in the memory bank."""
    tokens: int = 0
    """Tokens generated in evaluation."""
    seconds: float = 0.0
    """Wall clock of curate, train and evaluate."""
    gpu_seconds: float = 0.0
    """GPU seconds of curate, train and evaluate."""
    errors: int = 0
    """Tasks that could not be measured."""


class Champion(Model):
    """The version committed last."""

    number: int
    """Its number."""
    policy_digest: Digest
    """Digest of its policy."""
    p: float
    """Mean success on sel, 0..1."""
    c: float
    """Cost, 0..1."""
    j: float
    """P - lambda * C."""


class Counts(Model):
    """Versions by verdict."""

    committed: int = 0
    """Became the champion."""
    reverted: int = 0
    """Measured, and not better."""
    rejected: int = 0
    """The policy broke its contract."""
    failed: int = 0
    """Could not be measured."""

    def plus(self, verdict: Verdict) -> Counts:
        name = verdict.value.lower()
        return self.model_copy(update={name: getattr(self, name) + 1})


class SpentOnRewriting(Model):
    """What rewriting has cost, rounds that were refused or failed among them."""

    tokens: int = 0
    """Tokens, in and out."""
    usd: float = 0.0
    """US dollars."""
    calls: int = 0
    """Calls."""


class Spent(Model):
    """What the run has spent."""

    gpu_seconds: float = 0.0
    """GPU seconds of all stages."""
    tokens: int = 0
    """Tokens of the evolver's LLM."""
    usd: float = 0.0
    """US dollars for the evolver's LLM."""
    calls: int = 0
    """Calls of the evolver's LLM."""
    augmentation: SpentOnRewriting | None = None
    """What policies had rewritten; none without `spec.augmentation`."""


class EvolutionStatus(Model):
    """Bounded in size: versions are objects of their own."""

    observed_generation: int = 0
    """Generation of the spec that this status speaks of."""
    phase: EvolutionPhase = EvolutionPhase.PENDING
    """Where the run stands."""
    reason: Reason | None = None
    """Why, in one word."""
    message: Annotated[str, StringConstraints(max_length=2048)] = ""
    """Why, for people."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32)] = ()
    """Facts about the run, one per type."""
    spec_digest: Digest | None = None
    """Digest of the spec that the current round was started with."""
    corpus_digest: Digest | None = None
    """Digest of the ingested corpus."""
    round: int = 0
    """Number of the version under test, or of the last one."""
    decided: int = -1
    """Highest version number with a verdict that is counted here."""
    streak: int = 0
    """Rounds since the last commit."""
    champion: Champion | None = None
    """The version committed last."""
    first_champion: int | None = None
    """Number of the version committed first."""
    counts: Counts = Counts()
    """Versions by verdict."""
    spent: Spent = Spent()
    """What the run has spent."""
    stages: Annotated[dict[str, StageStatus], Field(max_length=16)] = Field(default_factory=dict)
    """ingest, floors, propose (of the current round) and seal."""
    started_at: Time | None = None
    """When the run began."""
    completed_at: Time | None = None
    """When the run ended."""


class VersionSpec(Model):
    """Immutable. Everything a version needs, pinned when its round starts."""

    evolution_uid: Annotated[str, StringConstraints(max_length=128), Field(alias="evolutionUID")]
    """UID of the CurationEvolution."""
    number: Annotated[int, Field(ge=0)]
    """Place in the lineage; 0 is the initial policy."""
    parent: Annotated[int, Field(ge=0)] | None = None
    """Number of the version whose policy was rewritten."""
    focus: Focus | None = None
    """What the edit is for; none for version 0."""
    policy_digest: Digest
    """Digest of the policy's normalised source."""
    policy_key: Key
    """Store key of the policy's source."""
    corpus_key: Key
    """Store key of the ingest artifact's manifest."""
    corpus_digest: Digest
    """Digest of the ingested corpus."""
    evolution_spec: EvolutionSpec
    """The spec as it was when the round started."""


class VersionStatus(Model):
    """Where one version stands."""

    phase: VersionPhase = VersionPhase.PENDING
    """How far it is."""
    stages: Annotated[dict[str, StageStatus], Field(max_length=16)] = Field(default_factory=dict)
    """curate, train and evaluate."""
    measurement: Measurement | None = None
    """What it was measured at."""
    verdict: Verdict | None = None
    """What was decided."""
    reason: Reason | None = None
    """Why, in one word."""
    message: Annotated[str, StringConstraints(max_length=2048)] = ""
    """Why, for people."""


class ObjectMeta(Model):
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", max_length=63)]
    namespace: str = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: str | None = None
    generation: int = 1


class CurationEvolution(Model):
    """One evolution of a curation policy: propose, curate, train, evaluate, commit or revert, again and again."""

    api_version: Literal["curateevo.io/v1alpha1"] = API_VERSION
    kind: Literal["CurationEvolution"] = "CurationEvolution"
    metadata: ObjectMeta
    spec: EvolutionSpec
    """What is wanted."""
    status: EvolutionStatus = EvolutionStatus()
    """What is; written by the operator."""


class PolicyVersion(Model):
    """One version of an evolution's policy, made by the operator: what it was measured at, and the verdict."""

    api_version: Literal["curateevo.io/v1alpha1"] = API_VERSION
    kind: Literal["PolicyVersion"] = "PolicyVersion"
    metadata: ObjectMeta
    spec: VersionSpec
    """What the version is made of. Can't change."""
    status: VersionStatus = VersionStatus()
    """What is; written by the operator."""
