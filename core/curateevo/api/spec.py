"""The spec of a `CurationEvolution`, section by section. Field descriptions are what `kubectl explain` shows."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from curateevo.api.base import Model

Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Seconds = Annotated[int, Field(ge=1, le=2_592_000)]
Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$", max_length=32)]


class Focus(StrEnum):
    """What one round's edit is for."""

    EFFECTIVENESS = "Effectiveness"
    EFFICIENCY = "Efficiency"
    COMBINED = "Combined"


class AcceptanceRule(StrEnum):
    """How a candidate is compared with the champion."""

    PAIRED = "Paired"
    PAPER = "Paper"


class ProposerType(StrEnum):
    """Who rewrites the policy."""

    LLM = "llm"
    AGENT = "agent"
    RULES = "rules"
    REPLAY = "replay"
    MANUAL = "manual"


class SecretKeyRef(Model):
    name: Name
    key: Name = "token"


class LocalRef(Model):
    name: Name


class ConfigMapKeyRef(Model):
    name: Name
    key: Name = "policy.py"


class CorpusSource(Model):
    uri: Uri
    """A file, a glob or an object prefix: a path, file://, s3://, or toolworld://?seed=N for the built-in corpus."""
    format: Literal["auto", "openai", "atif", "tau-bench", "toolworld"] = "auto"
    """How the rows are written; `auto` looks at the content."""


class Corpus(Model):
    sources: Annotated[tuple[CorpusSource, ...], Field(min_length=1, max_length=64)]
    """Where the raw trajectories are. The corpus is fixed for the whole run."""
    max_set_aside_fraction: Fraction = 0.02
    """Rows that could not be read, as a share of all; above it the ingest fails."""


class BaseModelRef(Model):
    base: Uri
    """hf://org/name@revision, s3://, pvc://, file:// or builtin://toolworld. Training starts here every time."""
    chat_template: Annotated[str, StringConstraints(max_length=65_536)] | None = None
    """A Jinja chat template that replaces the tokenizer's own; it needs generation markers for SFT."""
    token_secret_ref: SecretKeyRef | None = None
    cache_volume_claim: Name | None = None


class SuiteRef(Model):
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    """toolworld, or `corpus`: next calls of held-out corpus trajectories."""
    params: dict[str, Any] = Field(default_factory=dict)


class Splits(Model):
    diag: Fraction = 0.4
    """Share of dev tasks whose failures the evolver sees."""
    sel: Fraction = 0.4
    """Share that only gives the score."""
    test: Fraction = 0.2
    """Sealed share: run for the first and the last champion only."""
    seed: int = 0


class Sampling(Model):
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    max_turns: Annotated[int, Field(ge=1, le=1000)] = 20
    max_tokens: Annotated[int, Field(ge=1, le=131_072)] = 1024
    """Generated tokens per turn, at most."""


class Evaluation(Model):
    suites: Annotated[tuple[SuiteRef, ...], Field(min_length=1, max_length=16)]
    splits: Splits = Splits()
    repeats: Annotated[int, Field(ge=1, le=64)] = 4
    """Runs of each task, same seeds for champion and candidate. At temperature 0 in process, one is run."""
    sampling: Sampling = Sampling()
    max_error_fraction: Fraction = 0.02
    """Tasks that could not be measured, as a share of all; above it the round is Failed."""
    floors: bool = True
    """Score a do-nothing agent and the untrained base once, and show them beside every number."""


class Objective(Model):
    lambda_: Annotated[float, Field(ge=0.0, le=10.0, alias="lambda")] = 0.3
    """Weight of the cost C in J = P - lambda * C."""
    reference_turns: Annotated[int, Field(ge=1)] | None = None
    """N_ref of the cost; null: the turns of the corpus."""


class Acceptance(Model):
    rule: AcceptanceRule = AcceptanceRule.PAIRED
    confidence: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.9
    """One-sided confidence of the paired bootstrap."""
    non_inferiority_margin: Annotated[float, Field(ge=0.0, le=0.5)] = 0.01
    """How much lower P may be for an efficiency edit to be committed."""


class Rounds(Model):
    max: Annotated[int, Field(ge=0, le=1000)] = 6
    """Candidates after version 0, at most."""
    patience: Annotated[int, Field(ge=1, le=1000)] = 4
    """Rounds without a commit after which the run ends."""
    goal: Fraction | None = None
    """P of the champion at which the run ends."""
    focus: Annotated[tuple[Focus, ...], Field(min_length=1, max_length=8)] = (
        Focus.EFFECTIVENESS,
        Focus.EFFICIENCY,
    )
    """The focus of each round, in turn."""


class InitialPolicy(Model):
    builtin: Literal["keep-all", "keep-valid", "success-only", "random", "starter"] | None = None
    config_map_key_ref: ConfigMapKeyRef | None = None
    uri: Uri | None = None


class PolicySource(Model):
    initial: InitialPolicy = InitialPolicy(builtin="starter")


class LlmEndpoint(Model):
    base_url: Annotated[Uri, Field(alias="baseURL")]
    model: Name
    api_key_secret_ref: SecretKeyRef | None = None


class ProposerBudget(Model):
    tokens: Annotated[int, Field(ge=0)] = 2_000_000
    usd: Annotated[float, Field(ge=0.0)] = 20.0
    calls: Annotated[int, Field(ge=0)] = 60


class Proposer(Model):
    type: ProposerType = ProposerType.RULES
    llm: LlmEndpoint | None = None
    replay: Uri | None = None
    """For `replay`: a directory with recorded policies 001.py, 002.py, ..."""
    budget: ProposerBudget = ProposerBudget()


class Lora(Model):
    r: Annotated[int, Field(ge=1, le=1024)] = 16
    alpha: Annotated[int, Field(ge=1, le=4096)] = 32
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05


class Sft(Model):
    enabled: bool = True
    learning_rate: Positive = 2.5e-5
    max_steps: Annotated[int, Field(ge=1)] = 140
    lora: Lora | None = Lora()
    """null: full fine-tuning."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Any field of TRL's SFTConfig."""


class Grpo(Model):
    enabled: bool = True
    learning_rate: Positive = 5.0e-6
    max_steps: Annotated[int, Field(ge=1)] = 100
    beta: Annotated[float, Field(ge=0.0)] = 0.14
    """Weight of the KL to the SFT model."""
    epsilon: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Ratio clip."""
    replay_fraction: Fraction = 0.5
    """Share of RL prompts that replay the task families which the policy did not aim at."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Any field of TRL's GRPOConfig."""


class ReleaseGate(Model):
    min_call_rate: Fraction = 0.05
    """Share of first answers with a tool call on SFT prompts that show one, at least."""
    max_dead_group_fraction: Fraction = 0.95
    """Share of GRPO groups without reward variance, at most."""
    max_family_drop: Fraction = 0.5
    """Loss of one task family's success from before to after GRPO, at most; beyond it the SFT model is released."""


class Training(Model):
    repeats: Annotated[int, Field(ge=1, le=16)] = 1
    """Trainings per candidate, with seeds seed, seed+1, ..."""
    sft: Sft = Sft()
    grpo: Grpo = Grpo()
    gate: ReleaseGate = ReleaseGate()
    save_steps: Annotated[int, Field(ge=1)] = 20
    """Steps between checkpoints: what a crash can cost."""
    seed: int = 0
    engine: Literal["Job", "TrainJob"] = "Job"


class Memory(Model):
    enabled: bool = True
    retriever: Literal["bm25"] = "bm25"
    k: Annotated[int, Field(ge=1, le=64)] = 3
    place: Literal["system", "user"] = "system"
    """Where retrieved notes go: a system message of their own, or before the user's text."""
    in_training: bool = True
    """Put the notes that a task would retrieve into its SFT and RL rows as well."""


class Serving(Model):
    engine: Literal["vllm", "transformers"] = "vllm"
    """vllm: a server per version; transformers: in process, for small models."""
    args: Annotated[tuple[str, ...], Field(max_length=64)] = ()
    """More arguments for the vLLM server."""


class Sandbox(Model):
    isolation: Literal["Container", "Pod"] = "Container"
    timeout_seconds: Seconds = 600
    memory: Quantity = "8Gi"
    cpu: Quantity = "4"
    runtime_class_name: Name | None = None


class Budget(Model):
    gpu_hours: Positive | None = None
    wall_clock_hours: Positive | None = None


class Storage(Model):
    uri: Uri
    """s3://bucket/prefix, or file:///path on one machine."""
    endpoint: Uri | None = None
    secret_ref: LocalRef | None = None


class Deadlines(Model):
    ingest_seconds: Seconds = 3600
    curate_seconds: Seconds = 3600
    train_seconds: Seconds = 86_400
    serve_start_seconds: Seconds = 1200
    evaluate_seconds: Seconds = 14_400
    propose_seconds: Seconds = 3600
    pending_seconds: Seconds = 7200
    manifest_seconds: Seconds = 60
    """How long a finished job's manifest may take to appear in the store."""


class Retries(Model):
    infrastructure: Annotated[int, Field(ge=0, le=100)] = 5
    application: Annotated[int, Field(ge=0, le=100)] = 1
    backoff_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    """First wait before a retry; doubled each time, at most 10 minutes."""


class Queue(Model):
    name: Name | None = None
    priority_class_name: Name | None = None


class EvolutionSpec(Model):
    """One evolution: a corpus, a base model, an evaluation, and how to search."""

    corpus: Corpus
    model: BaseModelRef
    evaluation: Evaluation
    objective: Objective = Objective()
    acceptance: Acceptance = Acceptance()
    rounds: Rounds = Rounds()
    policy: PolicySource = PolicySource()
    proposer: Proposer = Proposer()
    training: Training = Training()
    memory: Memory = Memory()
    serving: Serving = Serving()
    sandbox: Sandbox = Sandbox()
    budget: Budget = Budget()
    storage: Storage
    templates: dict[Literal["ingest", "curate", "train", "serve", "evaluate", "propose"], dict[str, Any]] = Field(
        default_factory=dict
    )
    """Pod templates by stage, merged into what the operator renders. Not read on one machine."""
    deadlines: Deadlines = Deadlines()
    retries: Retries = Retries()
    queue: Queue = Queue()
    suspend: bool = False
    stop: Literal["AfterRound", "Now"] | None = None
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    reclaim_policy: Literal["Retain", "Delete"] = "Retain"
