"""Stage requests, built from the spec and from what earlier stages left: the same for every shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from curateevo.api.evolution import Spent, Stage, VersionSpec
from curateevo.api.spec import EvolutionSpec, Focus, ProposerType
from curateevo.api.stage import (
    AGAINST_SCORES,
    Against,
    CurateParams,
    CurateSummary,
    EvaluateParams,
    FileRef,
    HistoryEntry,
    IngestParams,
    IngestSummary,
    Manifest,
    ProposeParams,
    StageParams,
    StageRequest,
    StoreRef,
    Subject,
    SubjectKind,
    TrainParams,
)
from curateevo.evolution.budget import budget_left
from curateevo.evolution.decision import ChampionScores
from curateevo.evolution.names import attempt_prefix, checkpoint_prefix
from curateevo.evolution.objective import cost_of

POLICY, CONTEXT, SUBMISSION = "policy.py", "context.json", "submission.py"
AGENT_CORPUS_FILES = ("trajectories.parquet", "features.parquet", "tasks.parquet")
CORPUS_FILES = (*AGENT_CORPUS_FILES, "dev_prompts.json")
TRIED = "tried"
CHAMPION_PROFILE = "champion/profile.json"
SPLITS, HELD_OUT, PROFILE = "splits.json", "held_out.jsonl", "profile.json"
SFT, RL, MEMORY = "sft.jsonl", "rl.jsonl", "memory.jsonl"
DIAG_FILES = ("diag/trajectories.jsonl", "diag/results.jsonl")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which evolution a request belongs to."""

    name: str
    uid: str


def seed_subject(index: int) -> str:
    """The subject of the model that was trained with the index-th seed."""
    return f"seed-{index}"


def ingest_request(who: Identity, spec: EvolutionSpec, attempt: int) -> StageRequest:
    params = IngestParams(
        corpus=spec.corpus,
        suites=spec.evaluation.suites,
        splits=spec.evaluation.splits,
        model=spec.model if spec.corpus.grace else None,
    )
    return _request(who, spec, Stage.INGEST, None, attempt, {}, params)


def floors_request(who: Identity, spec: EvolutionSpec, attempt: int, ingest: Manifest) -> StageRequest:
    """A do-nothing agent and the untrained base, on sel and on test: what every number is to be read against."""
    subjects = (
        Subject(name="do-nothing", kind=SubjectKind.NOTHING),
        Subject(name="untrained", kind=SubjectKind.BASE),
    )
    return _request(
        who,
        spec,
        Stage.FLOORS,
        None,
        attempt,
        _task_inputs(ingest),
        evaluate_params(spec, subjects, ("sel", "test")),
    )


def seal_request(
    who: Identity,
    spec: EvolutionSpec,
    attempt: int,
    ingest: Manifest,
    versions: Mapping[str, tuple[Manifest, Manifest]],
) -> StageRequest:
    """The first and the last champion on the sealed test. `versions`: name to (curate, train)."""
    inputs = _task_inputs(ingest)
    subjects: list[Subject] = []
    for name, (curate, train) in versions.items():
        for index in range(spec.training.repeats):
            subject = f"{name}-{seed_subject(index)}"
            subjects.append(Subject(name=subject, kind=SubjectKind.MODEL))
            inputs |= _model_inputs(subject, index, curate, train, spec)
    return _request(who, spec, Stage.SEAL, None, attempt, inputs, evaluate_params(spec, tuple(subjects), ("test",)))


def propose_request(
    who: Identity,
    spec: EvolutionSpec,
    number: int,
    attempt: int,
    focus: Focus,
    ingest: Manifest,
    champion_policy: FileRef,
    champion_curation: Manifest,
    champion_evaluation: Manifest,
    history: tuple[HistoryEntry, ...],
    tried: Mapping[int, FileRef],
    spent: Spent,
    submission: FileRef | None,
) -> StageRequest:
    """`tried`: policies that were tested, by version; who asks a model must not propose them again. An agent gets the
    corpus as well, without what is known of dev tasks."""
    inputs = {POLICY: champion_policy, PROFILE: ingest.file(PROFILE).ref}
    inputs[CHAMPION_PROFILE] = champion_curation.file(PROFILE).ref
    inputs |= {path: champion_evaluation.file(path).ref for path in DIAG_FILES}
    if submission is not None:
        inputs[SUBMISSION] = submission
    if spec.proposer.type.asks_model:
        inputs |= {f"{TRIED}/{n:03d}.py": ref for n, ref in tried.items()}
    if spec.proposer.type is ProposerType.AGENT:
        inputs |= {path: ingest.file(path).ref for path in AGENT_CORPUS_FILES}
    proposer = spec.proposer.model_copy(update={"budget": budget_left(spec.proposer.budget, spent)})
    rewriting = None if spec.augmentation is None else True
    params = ProposeParams(number=number, focus=focus, proposer=proposer, history=history, rewriting=rewriting)
    return _request(who, spec, Stage.PROPOSE, number, attempt, inputs, params)


def curate_request(
    who: Identity,
    version: VersionSpec,
    attempt: int,
    ingest: Manifest,
    policy: FileRef,
    context: FileRef | None,
) -> StageRequest:
    spec = version.evolution_spec
    inputs = {POLICY: policy} | {path: ingest.file(path).ref for path in CORPUS_FILES}
    if context is not None:
        inputs[CONTEXT] = context
    params = CurateParams(
        sandbox=spec.sandbox, memory=spec.memory, seed=spec.training.seed, augmentation=spec.augmentation
    )
    return _request(who, spec, Stage.CURATE, version.number, attempt, inputs, params)


def train_request(who: Identity, version: VersionSpec, attempt: int, curate: Manifest) -> StageRequest:
    """Its inputs are the SFT and RL rows alone: an edit that leaves them unchanged trains nothing."""
    spec = version.evolution_spec
    inputs = {SFT: curate.file(SFT).ref, RL: curate.file(RL).ref}
    params = TrainParams(model=spec.model, training=spec.training)
    return _request(who, spec, Stage.TRAIN, version.number, attempt, inputs, params)


def evaluate_request(
    who: Identity,
    version: VersionSpec,
    attempt: int,
    ingest: Manifest,
    curate: Manifest,
    train: Manifest,
    champion: ChampionScores | None = None,
) -> StageRequest:
    """`champion`: what the version must beat; with it, and `acceptance.stopEarly`, the evaluation may end early."""
    spec = version.evolution_spec
    inputs = _task_inputs(ingest)
    subjects = []
    for index in range(spec.training.repeats):
        subject = seed_subject(index)
        subjects.append(Subject(name=subject, kind=SubjectKind.MODEL))
        inputs |= _model_inputs(subject, index, curate, train, spec)
    params = evaluate_params(spec, tuple(subjects), ("diag", "sel"))
    if champion is not None and (against := against_of(version, ingest, curate, champion)) is not None:
        params = params.model_copy(update={"against": against})
        inputs[AGAINST_SCORES] = champion.scores
    return _request(who, spec, Stage.EVALUATE, version.number, attempt, inputs, params)


def against_of(version: VersionSpec, ingest: Manifest, curate: Manifest, champion: ChampionScores) -> Against | None:
    """What a curated version must beat; None when its measurement is not to end early."""
    spec = version.evolution_spec
    curated, ingested = curate.summary, ingest.summary
    if not (spec.acceptance.stop_early and isinstance(curated, CurateSummary) and isinstance(ingested, IngestSummary)):
        return None
    return Against(
        focus=focus_of(spec, version.number),
        acceptance=spec.acceptance,
        lambda_=spec.objective.lambda_,
        champion_c=champion.c,
        c=cost_of(spec.objective, curated, ingested),
        seed=version.number,
    )


def focus_of(spec: EvolutionSpec, number: int) -> Focus:
    """The focus of round `number` (1, 2, ...): the spec's list, in turn."""
    return spec.rounds.focus[(max(1, number) - 1) % len(spec.rounds.focus)]


def evaluate_params(
    spec: EvolutionSpec, subjects: tuple[Subject, ...], splits: tuple[Literal["diag", "sel", "test"], ...]
) -> EvaluateParams:
    return EvaluateParams(
        subjects=subjects,
        splits=splits,
        model=spec.model,
        evaluation=spec.evaluation,
        memory=spec.memory,
        serving=spec.serving,
        serve_start_seconds=spec.deadlines.serve_start_seconds,
        seed=spec.training.seed,
    )


def _task_inputs(ingest: Manifest) -> dict[str, FileRef]:
    inputs = {SPLITS: ingest.file(SPLITS).ref}
    if ingest.has(HELD_OUT):
        inputs[HELD_OUT] = ingest.file(HELD_OUT).ref
    return inputs


def _model_inputs(
    subject: str, index: int, curate: Manifest, train: Manifest, spec: EvolutionSpec
) -> dict[str, FileRef]:
    folder = f"model-{index}/"
    inputs = {f"{subject}/model/{path.removeprefix(folder)}": ref for path, ref in train.under(folder).items()}
    if spec.memory.enabled:
        inputs[f"{subject}/{MEMORY}"] = curate.file(MEMORY).ref
    return inputs


def _request(
    who: Identity,
    spec: EvolutionSpec,
    stage: Stage,
    version: int | None,
    attempt: int,
    inputs: dict[str, FileRef],
    params: StageParams,
) -> StageRequest:
    return StageRequest(
        evolution_uid=who.uid,
        version=version,
        stage=stage,
        attempt=attempt,
        store=StoreRef(uri=spec.storage.uri, endpoint=spec.storage.endpoint),
        prefix=attempt_prefix(who.uid, stage, version, attempt),
        checkpoint_prefix=checkpoint_prefix(who.uid, stage, version),
        inputs=inputs,
        params=params,
    )
