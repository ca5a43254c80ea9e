"""The two custom resources: `CurationEvolution` and `PolicyVersion`, with their status."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from curateevo.api.base import Model
from curateevo.api.spec import EvolutionSpec, Focus

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

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: Annotated[str, StringConstraints(max_length=1024)] = ""
    observed_generation: int = 0
    last_transition_time: float = 0.0
    """Seconds since the epoch; rendered as RFC 3339 on the cluster."""


class StageStatus(Model):
    """Where one stage of one object stands. `attempt` is a high-water mark."""

    state: StageState = StageState.IDLE
    attempt: int = 0
    started_at: float | None = None
    retry_at: float | None = None
    infrastructure_failures: int = 0
    application_failures: int = 0
    reason: Reason | None = None
    message: Annotated[str, StringConstraints(max_length=2048)] = ""
    observed: bool = False
    """The current attempt's job was seen: if it is gone now, somebody removed it."""
    digest: str | None = None
    """Digest of the artifact's content, once done."""


class Measurement(Model):
    """What a version was measured at."""

    p: float
    """Mean success on sel, 0..1."""
    c: float
    """Cost, 0..1."""
    j: float
    """P - lambda * C."""
    sft_turns: int
    rl_turns: int
    memory_items: int
    tokens: int = 0
    """Tokens generated in evaluation."""
    seconds: float = 0.0
    """Wall clock of curate, train and evaluate."""
    gpu_seconds: float = 0.0
    errors: int = 0
    """Tasks that could not be measured."""


class Champion(Model):
    number: int
    policy_digest: str
    p: float
    c: float
    j: float


class Counts(Model):
    committed: int = 0
    reverted: int = 0
    rejected: int = 0
    failed: int = 0

    def plus(self, verdict: Verdict) -> Counts:
        name = verdict.value.lower()
        return self.model_copy(update={name: getattr(self, name) + 1})


class Spent(Model):
    gpu_seconds: float = 0.0
    tokens: int = 0
    """Tokens of the evolver's LLM."""
    usd: float = 0.0
    calls: int = 0


class EvolutionStatus(Model):
    """Bounded in size: versions are objects of their own."""

    observed_generation: int = 0
    phase: EvolutionPhase = EvolutionPhase.PENDING
    reason: Reason | None = None
    message: Annotated[str, StringConstraints(max_length=2048)] = ""
    conditions: tuple[Condition, ...] = ()
    spec_digest: str | None = None
    """Digest of the spec that the current round was started with."""
    corpus_digest: str | None = None
    round: int = 0
    """Number of the version under test, or of the last one."""
    decided: int = -1
    """Highest version number with a verdict that is counted here."""
    streak: int = 0
    """Rounds since the last commit."""
    champion: Champion | None = None
    first_champion: int | None = None
    counts: Counts = Counts()
    spent: Spent = Spent()
    stages: dict[str, StageStatus] = Field(default_factory=dict)
    """ingest, floors, propose (of the current round) and seal."""
    started_at: float | None = None
    completed_at: float | None = None


class VersionSpec(Model):
    """Immutable. Everything a version needs, pinned when its round starts."""

    evolution_uid: Annotated[str, Field(alias="evolutionUID")]
    number: int
    parent: int | None = None
    focus: Focus | None = None
    """None for version 0."""
    policy_digest: str
    policy_key: str
    """Store key of the policy's source."""
    corpus_key: str
    """Store key of the ingest artifact's manifest."""
    corpus_digest: str
    evolution_spec: EvolutionSpec
    """The spec as it was when the round started."""


class VersionStatus(Model):
    phase: VersionPhase = VersionPhase.PENDING
    stages: dict[str, StageStatus] = Field(default_factory=dict)
    measurement: Measurement | None = None
    verdict: Verdict | None = None
    reason: Reason | None = None
    message: Annotated[str, StringConstraints(max_length=2048)] = ""


class ObjectMeta(Model):
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    namespace: str = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: str | None = None
    generation: int = 1


class CurationEvolution(Model):
    api_version: Literal["curateevo.io/v1alpha1"] = API_VERSION
    kind: Literal["CurationEvolution"] = "CurationEvolution"
    metadata: ObjectMeta
    spec: EvolutionSpec
    status: EvolutionStatus = EvolutionStatus()


class PolicyVersion(Model):
    api_version: Literal["curateevo.io/v1alpha1"] = API_VERSION
    kind: Literal["PolicyVersion"] = "PolicyVersion"
    metadata: ObjectMeta
    spec: VersionSpec
    status: VersionStatus = VersionStatus()
