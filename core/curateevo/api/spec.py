"""The spec of a `CurationEvolution`, section by section. Field descriptions are what `kubectl explain` shows."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from curateevo.api.base import Model

Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, le=1e6, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=1, le=10_000_000)]
Seed = Annotated[int, Field(ge=0, le=2_147_483_647)]
Args = Annotated[dict[str, Any], Field(max_length=256)]
Seconds = Annotated[int, Field(ge=1, le=2_592_000)]
Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$", max_length=32)]

CorpusFormat = Literal[
    "auto",
    "openai",
    "atif",
    "otlp",
    "claude-code",
    "sharegpt",
    "toucan",
    "swe-agent",
    "tau-bench",
    "bfcl",
    "toolworld",
]
"""How trajectories are written: docs/corpora.md."""


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

    @property
    def asks_model(self) -> bool:
        """Whether it needs `proposer.llm`, its key and its address, and may answer otherwise another time."""
        return self in (ProposerType.LLM, ProposerType.AGENT)


class SecretKeyRef(Model):
    name: Name
    """Name of a Secret in the namespace of this object."""
    key: Name = "token"
    """Key within the Secret."""


class LocalRef(Model):
    name: Name
    """Name of an object in the namespace of this object."""


class ConfigMapKeyRef(Model):
    name: Name
    """Name of a ConfigMap in the namespace of this object."""
    key: Name = "policy.py"
    """Key within the ConfigMap."""


class CorpusSource(Model):
    uri: Uri
    """A file, a glob or an object prefix: a path, file://, s3://; hub://NAME, a public data set by agentpile's name; or
    toolworld://?seed=N, the built-in corpus."""
    format: CorpusFormat = "auto"
    """How the rows are written; `auto` looks at the content of each file and row."""


class Corpus(Model):
    sources: Annotated[tuple[CorpusSource, ...], Field(min_length=1, max_length=64)]
    """Where the raw trajectories are. The corpus is fixed for the whole run."""
    max_set_aside_fraction: Fraction = 0.02
    """Rows that could not be read, as a share of all; above it the ingest fails."""
    grace: bool = False
    """Have the base model score every turn by its gradients, for policies to select on; ingest then needs what training
    does."""


class BaseModelRef(Model):
    base: Uri
    """hf://org/name@revision, s3://, pvc://, file:// or builtin://toolworld. Training starts here every time."""
    chat_template: Annotated[str, StringConstraints(max_length=65_536)] | None = None
    """A Jinja chat template that replaces the tokenizer's own; it needs generation markers for SFT."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret with the token of the model hub."""
    cache_volume_claim: Name | None = None
    """A PersistentVolumeClaim that keeps downloaded models."""


class SuiteRef(Model):
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", max_length=63)]
    """toolworld, bfcl, tau2, acebench, `corpus` (next calls of held-out corpus trajectories), or a plug-in's name."""
    params: Args = Field(default_factory=dict)
    """What the suite takes; see its page."""


class Splits(Model):
    diag: Fraction = 0.4
    """Share of dev tasks whose failures the evolver sees."""
    sel: Fraction = 0.4
    """Share that only gives the score."""
    test: Fraction = 0.2
    """Sealed share: run for the first and the last champion only."""
    seed: Seed = 0
    """Which tasks fall into which split."""


class Sampling(Model):
    temperature: Annotated[float, Field(ge=0.0, le=2.0, allow_inf_nan=False)] = 0.0
    """0: always the likeliest token."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] = 20
    """Answers to one user turn, at most."""
    max_tokens: Annotated[int, Field(ge=1, le=131_072)] = 1024
    """Generated tokens per turn, at most."""


class Evaluation(Model):
    suites: Annotated[tuple[SuiteRef, ...], Field(min_length=1, max_length=16)]
    """Where dev tasks come from."""
    splits: Splits = Splits()
    """How the dev tasks are divided; the shares add up to 1."""
    repeats: Annotated[int, Field(ge=1, le=64)] = 4
    """Runs of each task, same seeds for champion and candidate. At temperature 0 in process, one is run."""
    sampling: Sampling = Sampling()
    """How the agent generates."""
    max_error_fraction: Fraction = 0.02
    """Tasks that could not be measured, as a share of all; above it the round is Failed."""
    floors: bool = True
    """Score a do-nothing agent and the untrained base once, and show them beside every number."""

    @property
    def runs(self) -> int:
        """How often each task is run. At temperature 0 an answer does not depend on the seed: once."""
        return self.repeats if self.sampling.temperature > 0 else 1


class Objective(Model):
    lambda_: Annotated[float, Field(ge=0.0, le=10.0, allow_inf_nan=False, alias="lambda")] = 0.3
    """Weight of the cost C in J = P - lambda * C."""
    reference_turns: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """N_ref of the cost; null: the turns of the corpus."""


class Acceptance(Model):
    rule: AcceptanceRule = AcceptanceRule.PAIRED
    """Paired: a bootstrap over tasks must be sure; Paper: J must rise, as in the CurateEvo paper."""
    confidence: Annotated[float, Field(ge=0.5, lt=1.0, allow_inf_nan=False)] = 0.9
    """One-sided confidence of the paired bootstrap."""
    non_inferiority_margin: Annotated[float, Field(ge=0.0, le=0.5, allow_inf_nan=False)] = 0.01
    """How much lower P may be for an efficiency edit to be committed."""
    stop_early: bool = True
    """End an evaluation once no score of the tasks that are left could commit the version."""


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
    builtin: (
        Literal[
            "keep-all",
            "keep-valid",
            "success-only",
            "random",
            "best-of-n",
            "weasel",
            "grace",
            "learnable",
            "principles",
            "starter",
        ]
        | None
    ) = None
    """A policy that comes with CurateEvo."""
    config_map_key_ref: ConfigMapKeyRef | None = None
    """A policy in a ConfigMap; on a cluster only."""
    uri: Uri | None = None
    """A policy in a file."""


class PolicySource(Model):
    initial: InitialPolicy = InitialPolicy(builtin="starter")
    """The policy of version 0: exactly one of its fields is set."""


class TokenPrice(Model):
    input: Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)]
    """US dollars for a million tokens of prompts."""
    output: Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)]
    """US dollars for a million tokens of answers, thoughts among them."""


class LlmEndpoint(Model):
    base_url: Annotated[Uri, Field(alias="baseURL")]
    """Address of an OpenAI-compatible server, with its /v1."""
    model: Name
    """The model's name on that server."""
    api_key_secret_ref: SecretKeyRef | None = None
    """Secret with the API key."""
    price: TokenPrice | None = None
    """What tokens cost; null: nothing, as on a server of one's own."""


Argument = Annotated[str, StringConstraints(max_length=16_384)]


class AgentProgram(Model):
    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=64)]
    """Program and arguments of a coding agent; runs in a folder with TASK.md and policy.py, which it is to improve."""
    env: Annotated[dict[str, Argument], Field(max_length=64)] = Field(default_factory=dict)
    """Variables for it, beside PATH, HOME and those that lead it to the model."""
    timeout_seconds: Seconds = 1800
    """How long it may run; what policy.py holds then is taken."""


class LlmBudget(Model):
    tokens: Annotated[int, Field(ge=0, le=1_000_000_000_000)] = 2_000_000
    """Tokens, in and out."""
    usd: Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)] = 20.0
    """US dollars, at the price in `llm.price`."""
    calls: Annotated[int, Field(ge=0, le=1_000_000)] = 60
    """Calls of the LLM."""


class Augmentation(Model):
    llm: LlmEndpoint
    """The model that rewrites what a policy asks for."""
    budget: LlmBudget = LlmBudget(calls=2000)
    """What rewriting may spend over the whole run; then the run ends."""


class Proposer(Model):
    type: ProposerType = ProposerType.RULES
    """llm and agent ask a model, rules tries a list of edits, replay reads recorded policies, manual waits for you."""
    llm: LlmEndpoint | None = None
    """The model that rewrites the policy, or that the agent asks."""
    agent: AgentProgram | None = None
    """For `agent`: the coding agent."""
    replay: Uri | None = None
    """For `replay`: a directory with recorded policies 001.py, 002.py, ..."""
    name_clusters: bool = False
    """Let the model of `llm` name and merge the clusters of failures that the rules found."""
    budget: LlmBudget = LlmBudget()
    """What the proposer may spend over the whole run; then the run ends."""


class Lora(Model):
    enabled: bool = True
    """Train an adapter; false: full fine-tuning."""
    r: Annotated[int, Field(ge=1, le=1024)] = 16
    """Rank."""
    alpha: Annotated[int, Field(ge=1, le=4096)] = 32
    """Scale: the update is multiplied by alpha / r."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)] = 0.05
    """Dropout within the adapter."""


class Sft(Model):
    enabled: bool = True
    """Train on the SFT data."""
    learning_rate: Positive = 2.5e-5
    """Peak learning rate."""
    max_steps: Steps = 140
    """Optimizer steps."""
    lora: Lora = Lora()
    """The adapter that is trained."""
    args: Args = Field(default_factory=dict)
    """Any field of TRL's SFTConfig."""


class Horizon(Model):
    from_step: Annotated[int, Field(ge=0, le=1_000_000)]
    """Steps done when it begins to hold; the earliest one holds from the start."""
    max_turns: Annotated[int, Field(ge=1, le=1000)]
    """Turns that call tools in a rollout, at most."""


class Grpo(Model):
    enabled: bool = True
    """Train on the RL tasks, after SFT."""
    learning_rate: Positive = 5.0e-6
    """Peak learning rate."""
    max_steps: Steps = 100
    """Optimizer steps."""
    beta: Annotated[float, Field(ge=0.0, le=1000.0, allow_inf_nan=False)] = 0.14
    """Weight of the KL to the SFT model."""
    epsilon: Annotated[float, Field(gt=0.0, lt=1.0, allow_inf_nan=False)] = 0.05
    """Ratio clip."""
    replay_fraction: Fraction = 0.5
    """Share of RL prompts that replay the task families which the policy did not aim at."""
    horizon: Annotated[tuple[Horizon, ...], Field(max_length=8)] = ()
    """How the turns of rollouts in environments grow, after ScalingInter-RL (arXiv 2509.08755), e.g. [{fromStep: 0,
    maxTurns: 5}, {fromStep: 100, maxTurns: 10}]. Empty: `args.max_tool_calling_iterations` (10) all the time."""
    args: Args = Field(default_factory=dict)
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
    """Supervised fine-tuning."""
    grpo: Grpo = Grpo()
    """Reinforcement learning by GRPO, from the SFT model."""
    gate: ReleaseGate = ReleaseGate()
    """What the model after GRPO must hold; otherwise the SFT model is released."""
    save_steps: Steps = 20
    """Steps between checkpoints: what a crash can cost."""
    seed: Seed = 0
    """Seed of training and of evaluation."""
    engine: Literal["Job", "TrainJob"] = "Job"
    """What runs the training on a cluster: a Job, or a Kubeflow TrainJob."""


class Memory(Model):
    enabled: bool = True
    """Let the policy keep notes, and give them to the agent."""
    retriever: Literal["bm25"] = "bm25"
    """How notes are found."""
    k: Annotated[int, Field(ge=1, le=64)] = 3
    """Notes per task, at most."""
    place: Literal["system", "user"] = "system"
    """Where retrieved notes go: a system message of their own, or before the user's text."""
    in_training: bool = True
    """Put the notes that a task would retrieve into its SFT and RL rows as well."""


class Serving(Model):
    engine: Literal["vllm", "transformers"] = "vllm"
    """vllm: a server per version; transformers: in process, for small models."""
    args: Annotated[tuple[Annotated[str, StringConstraints(max_length=4096)], ...], Field(max_length=64)] = ()
    """More arguments for the vLLM server."""


class Sandbox(Model):
    isolation: Literal["Container", "Pod"] = "Container"
    """Container: a container of the curate pod; Pod: a pod of its own."""
    timeout_seconds: Seconds = 600
    """How long the policy may run."""
    memory: Quantity = "8Gi"
    """Memory of the policy's process."""
    cpu: Quantity = "4"
    """CPU of the policy's pod or container."""
    runtime_class_name: Name | None = None
    """RuntimeClass of the policy's pod, e.g. gvisor."""


class Budget(Model):
    gpu_hours: Positive | None = None
    """GPU hours of training and evaluation."""
    wall_clock_hours: Positive | None = None
    """Hours since the start."""


class Storage(Model):
    uri: Uri
    """s3://bucket/prefix, or file:///path on one machine."""
    endpoint: Uri | None = None
    """Address of an S3 server other than AWS."""
    secret_ref: LocalRef | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; none: the identity of the service account."""


class Deadlines(Model):
    ingest_seconds: Seconds = 3600
    """Reading the corpus."""
    curate_seconds: Seconds = 3600
    """One run of a policy, with reading and writing."""
    train_seconds: Seconds = 86_400
    """One training."""
    serve_start_seconds: Seconds = 1200
    """A model server, until it answers."""
    evaluate_seconds: Seconds = 14_400
    """One evaluation."""
    propose_seconds: Seconds = 3600
    """One proposal."""
    pending_seconds: Seconds = 7200
    """A job that waits to be started."""
    manifest_seconds: Seconds = 60
    """How long a finished job's manifest may take to appear in the store."""


class Retries(Model):
    infrastructure: Annotated[int, Field(ge=0, le=100)] = 5
    """Retries after lost nodes, evictions and the like, per stage."""
    application: Annotated[int, Field(ge=0, le=100)] = 1
    """Retries after a program failed, per stage."""
    backoff_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    """First wait before a retry; doubled each time, at most 10 minutes."""


class Queue(Model):
    name: Name | None = None
    """A Kueue LocalQueue of the namespace of this object."""
    priority_class_name: Name | None = None
    """A Kueue WorkloadPriorityClass."""


class EvolutionSpec(Model):
    """One evolution: a corpus, a base model, an evaluation, and how to search."""

    corpus: Corpus
    """The raw trajectories. Can't change."""
    model: BaseModelRef
    """The base model that every training starts from. Can't change."""
    evaluation: Evaluation
    """The dev tasks that give the score. Can't change."""
    objective: Objective = Objective()
    """What is maximised: J = P - lambda * C. Can't change."""
    acceptance: Acceptance = Acceptance()
    """When a candidate becomes the champion."""
    rounds: Rounds = Rounds()
    """How many candidates are tried, and for what."""
    policy: PolicySource = PolicySource()
    """Where the search begins."""
    proposer: Proposer = Proposer()
    """Who rewrites the policy."""
    augmentation: Augmentation | None = None
    """Who rewrites text that a policy asks to have rewritten; null: policies may not ask."""
    training: Training = Training()
    """How a model is made of SFT data and RL tasks. seed and repeats can't change."""
    memory: Memory = Memory()
    """Notes that the agent is given. Can't change."""
    serving: Serving = Serving()
    """How a model is served for evaluation. engine can't change."""
    sandbox: Sandbox = Sandbox()
    """Where and within which limits policies run."""
    budget: Budget = Budget()
    """What the run may spend; then it ends."""
    storage: Storage
    """Where artifacts are kept. Can't change."""
    templates: dict[Literal["ingest", "curate", "train", "serve", "evaluate", "propose"], Args] = Field(
        default_factory=dict
    )
    """Pod templates by stage, merged into what the operator renders. Not read on one machine."""
    deadlines: Deadlines = Deadlines()
    """How long each stage may take, in seconds."""
    retries: Retries = Retries()
    """How often a stage is tried again."""
    queue: Queue = Queue()
    """Kueue, where it is used."""
    suspend: bool = False
    """true: jobs are removed, checkpoints kept; false: the run goes on."""
    stop: Literal["AfterRound", "Now"] | None = None
    """End the run: after the current round, or at once."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = None
    """Remove this object that long after its end; null: never."""
    reclaim_policy: Literal["Retain", "Delete"] = "Retain"
    """What happens to the artifacts when this object is removed."""
