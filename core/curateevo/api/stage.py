"""What goes into a stage program (its request) and what comes out last (its manifest)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from curateevo.api.base import Model, digest_of
from curateevo.api.evolution import EarlyStop, Stage, Verdict
from curateevo.api.spec import (
    Acceptance,
    Augmentation,
    BaseModelRef,
    Corpus,
    Evaluation,
    Focus,
    Memory,
    Proposer,
    Sandbox,
    Serving,
    Splits,
    SuiteRef,
    Training,
)

STAGE_FORMAT = 4
"""Raised when a stage's output for equal inputs changes: cached work of older formats is not used."""


class FileRef(Model):
    """One immutable object of the store."""

    key: str
    digest: str
    """sha256:<hex> of its bytes."""
    size_bytes: int


class StoreRef(Model):
    """Where the store is. Credentials come from the environment, never from a request."""

    uri: str
    endpoint: str | None = None


class IngestParams(Model):
    stage: Literal["ingest"] = "ingest"
    corpus: Corpus
    suites: tuple[SuiteRef, ...]
    splits: Splits
    model: BaseModelRef | None = None
    """The base model that scores turns; set where `corpus.grace` is."""


class CurateParams(Model):
    stage: Literal["curate"] = "curate"
    sandbox: Sandbox
    memory: Memory
    seed: int
    augmentation: Augmentation | None = None
    """Its budget is what the run has left."""


class TrainParams(Model):
    stage: Literal["train"] = "train"
    model: BaseModelRef
    training: Training


class SubjectKind(StrEnum):
    MODEL = "model"
    """Model files under inputs `<name>/model/`, memory in `<name>/memory.jsonl`."""
    BASE = "base"
    """The untrained base model, without memory."""
    NOTHING = "nothing"
    """An agent that answers at once and calls no tool."""


class Subject(Model):
    """Who is evaluated."""

    name: str
    kind: SubjectKind


AGAINST_SCORES = "against/scores.json"
"""Input of an evaluation: what the champion scored on sel."""


class Against(Model):
    """What a version must beat. Its evaluation may end once it can't any more; the champion's scores on sel are the
    input `against/scores.json`."""

    focus: Focus
    acceptance: Acceptance
    lambda_: Annotated[float, Field(alias="lambda")]
    champion_c: float
    c: float
    """The version's own cost."""
    seed: int
    """Of the comparison's bootstrap."""


class EvaluateParams(Model):
    stage: Literal["evaluate"] = "evaluate"
    subjects: tuple[Subject, ...]
    splits: tuple[Literal["diag", "sel", "test"], ...]
    model: BaseModelRef
    evaluation: Evaluation
    memory: Memory
    serving: Serving
    serve_start_seconds: int
    seed: int
    against: Against | None = None
    """None: everything is run."""

    @property
    def wants_base(self) -> bool:
        """Whether the untrained base is among the subjects."""
        return any(subject.kind is SubjectKind.BASE for subject in self.subjects)


class HistoryEntry(Model):
    """One earlier round, as the proposer sees it."""

    number: int
    focus: Focus
    verdict: Verdict
    reason: str
    message: str = ""
    delta_j: float | None = None
    method: str = ""


class ProposeParams(Model):
    stage: Literal["propose"] = "propose"
    number: int
    focus: Focus
    proposer: Proposer
    history: tuple[HistoryEntry, ...] = ()
    rewriting: bool | None = None
    """Whether policies may request rewrites; None: they may not."""


StageParams = Annotated[
    IngestParams | CurateParams | TrainParams | EvaluateParams | ProposeParams, Field(discriminator="stage")
]


class StageRequest(Model):
    """Everything a stage program needs. `inputs` maps a relative path to a stored file."""

    evolution_uid: Annotated[str, Field(alias="evolutionUID")]
    version: int | None = None
    stage: Stage
    attempt: int
    store: StoreRef
    prefix: str
    """Where the artifact goes: keys are `<prefix>/<path>`, last `<prefix>/manifest.json`."""
    checkpoint_prefix: str = ""
    """Scratch of this stage and version that survives attempts."""
    inputs: dict[str, FileRef]
    params: StageParams

    @property
    def input_digest(self) -> str:
        """Digest of all that decides the output: equal digests mean the same work."""
        inputs = {path: ref.digest for path, ref in self.inputs.items()}
        return digest_of({"format": STAGE_FORMAT, "params": self.params.to_wire(), "inputs": inputs})

    def in_full(self) -> StageRequest:
        """The same work, which must not end early."""
        if not isinstance(self.params, EvaluateParams) or self.params.against is None:
            return self
        inputs = {path: ref for path, ref in self.inputs.items() if path != AGAINST_SCORES}
        params = self.params.model_copy(update={"against": None})
        return self.model_copy(update={"inputs": inputs, "params": params})


class Outcome(StrEnum):
    OK = "Ok"
    REJECTED = "Rejected"
    """The policy, or what it made, was refused: a result."""
    EXHAUSTED = "Exhausted"
    """propose: there is nothing more to try."""


PROPOSAL_REFUSED = "ProposalRefused"
"""propose: the reason of an Exhausted round in which a model or an agent made nothing acceptable."""


class FileEntry(Model):
    path: str
    key: str
    size_bytes: int
    sha256: str
    volatile: bool = False
    """Times and logs: kept, but no part of the artifact's digest."""

    @property
    def ref(self) -> FileRef:
        return FileRef(key=self.key, digest=f"sha256:{self.sha256}", size_bytes=self.size_bytes)


class Usage(Model):
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0
    peak_bytes: int = 0
    tokens: int = 0
    """LLM tokens of the evolver, or of rewriting."""
    usd: float = 0.0
    calls: int = 0


class IngestSummary(Model):
    kind: Literal["ingest"] = "ingest"
    trajectories: int
    turns: int
    successes: int
    set_aside: int
    leaked: int
    """Trajectories kept out since they solve a dev task."""
    unscored: int = 0
    """Trajectories without GRACE's scores, where there should be some."""
    dev_tasks: dict[str, int] = Field(default_factory=dict)
    """Number of tasks by split."""
    formats: dict[str, int] = Field(default_factory=dict)
    """Trajectories read by the format that they were read as."""
    licences: dict[str, int] = Field(default_factory=dict)
    """Trajectories read by what is known of their licence."""


class CurateSummary(Model):
    kind: Literal["curate"] = "curate"
    sft_rows: int = 0
    sft_turns: int = 0
    rl_tasks: int = 0
    rl_turns: int = 0
    memory_items: int = 0
    tier: str = ""
    """The sandbox tier in force."""


class TrainSummary(Model):
    kind: Literal["train"] = "train"
    seeds: tuple[int, ...] = ()
    sft_steps: int = 0
    grpo_steps: int = 0
    grpo_skipped: str = ""
    """Why GRPO was not run; empty when it was."""
    released: str = ""
    """`sft` or `grpo`: the model that passed the release gate."""
    notes: tuple[str, ...] = ()


class SplitScore(Model):
    p: float
    """Mean success over tasks, 0..1."""
    tasks: int
    errors: int
    tokens: int
    """Generated tokens."""
    families: dict[str, float] = Field(default_factory=dict)


class EvaluateSummary(Model):
    kind: Literal["evaluate"] = "evaluate"
    scores: dict[str, dict[str, SplitScore]]
    """By subject, by split, as far as they were run."""
    stopped: EarlyStop | None = None
    """Set when it ended early."""


class ProposeSummary(Model):
    kind: Literal["propose"] = "propose"
    policy_digest: str = ""
    method: str = ""
    hypothesis: str = ""


Summary = Annotated[
    IngestSummary | CurateSummary | TrainSummary | EvaluateSummary | ProposeSummary,
    Field(discriminator="kind"),
]


class Manifest(Model):
    """Written last: an artifact with a valid manifest is done."""

    stage: Stage
    input_digest: str
    outcome: Outcome
    reason: str = ""
    message: str = ""
    files: tuple[FileEntry, ...]
    digest: str
    """Of the outcome and of the files' paths and contents, volatile files left out."""
    summary: Summary
    usage: Usage = Usage()
    cached_from: str | None = None
    """Prefix of the artifact that did this very work before."""

    def file(self, path: str) -> FileEntry:
        """The entry of `path`. Raises KeyError."""
        for entry in self.files:
            if entry.path == path:
                return entry
        raise KeyError(path)

    def has(self, path: str) -> bool:
        return any(entry.path == path for entry in self.files)

    def under(self, folder: str) -> dict[str, FileRef]:
        """References of the non-volatile files whose path begins with `folder`, by path."""
        return {e.path: e.ref for e in self.files if e.path.startswith(folder) and not e.volatile}


def content_digest(outcome: Outcome, files: tuple[FileEntry, ...]) -> str:
    """The digest of an artifact's content."""
    kept = sorted((f.path, f.sha256) for f in files if not f.volatile)
    return digest_of({"outcome": outcome.value, "files": kept})


class ScoreTable(Model):
    """Scores of one split, aligned for pairing: `scores[subject][task][repeat]`; None where not measured. A task that
    was not run, since the evaluation ended early, has no repeats."""

    tasks: tuple[str, ...]
    families: tuple[str, ...]
    groups: tuple[str, ...] = ()
    """Of each task: tasks of one group, variants of a scenario or decisions of a run, tell less than as many others.
    Empty: each task is alone."""
    scores: dict[str, tuple[tuple[float | None, ...], ...]]


class DecisionRecord(Model):
    """`decision.json` of a version: written once."""

    number: int
    verdict: Verdict
    reason: str
    message: str
    policy_digest: str
    policy_key: str
    parent: int | None = None
    champion_before: int | None = None
    p: float | None = None
    c: float | None = None
    j: float | None = None
    delta_p: float | None = None
    delta_j: float | None = None
    lower: float | None = None
    """Lower confidence bound of delta P, one-sided; the rule tests it, for effectiveness less lambda * delta C."""
    upper: float | None = None
    tasks: int = 0
    resources_digest: str | None = None
    model_digest: str | None = None


class ChampionPointer(Model):
    """`champion.json`: the one mutable object."""

    number: int
    policy_digest: str
    policy_key: str
    p: float
    c: float
    j: float
