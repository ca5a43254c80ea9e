"""Stages that are one container: ingest, propose, train, and evaluate."""

from __future__ import annotations

from collections.abc import Mapping

from curateevo.api.base import JsonObject
from curateevo.api.spec import ProposerType
from curateevo.api.stage import EvaluateParams, SubjectKind
from curateevo_operator.render.access import base_downloads, claim_mounts, llm_env, store_env
from curateevo_operator.render.attempt import Attempt, render_job, template_key
from curateevo_operator.render.pods import (
    PROGRAM_ENVIRONMENT,
    REQUEST_MOUNT,
    SCRATCH,
    SCRATCH_MOUNT,
    SHM_MOUNT,
    Container,
    Mount,
    Resources,
    program_command,
    render_pod,
    tmp_mount,
)

INGEST = Resources("250m", "1Gi", "2", "8Gi")
PROPOSE = Resources("100m", "512Mi", "1", "2Gi")
PROPOSE_BY_AGENT = Resources("250m", "1Gi", "2", "8Gi")
"""An agent runs policies on a sample of the corpus."""
TRAIN = Resources("500m", "2Gi", "8", "32Gi")
EVALUATE = Resources("250m", "512Mi", "2", "4Gi")
EVALUATE_IN_PROCESS = Resources("500m", "2Gi", "8", "16Gi")
"""Defaults for small models without a GPU, so that pods start where a quota wants requests and limits."""
TRAIN_GRACE_SECONDS = 60
"""Time for a training's processes to let go of their GPUs; it goes on from its last checkpoint."""
SMALL_TMP, LARGE_TMP = "2Gi", "8Gi"
"""The larger one holds the caches of compilers."""


def render_ingest(attempt: Attempt) -> JsonObject:
    """Where the base model scores turns, in the trainer's image and with its resources."""
    if attempt.spec.corpus.grace:
        return _job(attempt, _with_base(attempt, "ingest"))
    env = {**PROGRAM_ENVIRONMENT, **store_env(attempt.spec)}
    return _job(attempt, _main(attempt, "ingest", attempt.settings.jobs_image, INGEST, env))


def render_propose(attempt: Attempt) -> JsonObject:
    """The only pod that holds the LLM's key. A coding agent is in the image of spec.templates.propose."""
    env = {**PROGRAM_ENVIRONMENT, **store_env(attempt.spec), **llm_env(attempt.spec)}
    resources = PROPOSE_BY_AGENT if attempt.spec.proposer.type is ProposerType.AGENT else PROPOSE
    return _job(attempt, _main(attempt, "propose", attempt.settings.jobs_image, resources, env))


def render_train(attempt: Attempt) -> JsonObject:
    return _job(attempt, train_container(attempt), grace_seconds=TRAIN_GRACE_SECONDS)


def train_container(attempt: Attempt) -> Container:
    """The trainer, whatever runs it."""
    return _with_base(attempt, "train")


def _with_base(attempt: Attempt, program: str) -> Container:
    """A program that loads the base model in process."""
    base = base_downloads(attempt.spec, SCRATCH)
    env = {**PROGRAM_ENVIRONMENT, **store_env(attempt.spec), **base.env}
    mounts = (SHM_MOUNT, *base.mounts)
    return _main(attempt, program, attempt.settings.trainer_image, TRAIN, env, mounts, LARGE_TMP)


def render_evaluate_in_process(attempt: Attempt, params: EvaluateParams) -> JsonObject:
    """The evaluator loads the models itself."""
    env: dict[str, str | JsonObject] = {**PROGRAM_ENVIRONMENT, **store_env(attempt.spec)}
    mounts: tuple[Mount, ...] = (SHM_MOUNT,)
    if params.wants_base:
        base = base_downloads(attempt.spec, SCRATCH)
        env, mounts = {**env, **base.env}, (*mounts, *base.mounts)
    image = attempt.settings.trainer_image
    return _job(attempt, _main(attempt, "evaluate", image, EVALUATE_IN_PROCESS, env, mounts, LARGE_TMP))


def render_evaluate(attempt: Attempt, params: EvaluateParams, servers: Mapping[str, str]) -> JsonObject:
    """The evaluator asks servers. `servers`: the variables that tell it of them."""
    env = {**PROGRAM_ENVIRONMENT, **store_env(attempt.spec), **servers}
    mounts = claim_mounts(attempt.spec) if params.wants_base else ()  # its digest is taken
    job = _job(attempt, _main(attempt, "evaluate", attempt.settings.jobs_image, EVALUATE, env, mounts))
    if sum(subject.kind is not SubjectKind.NOTHING for subject in params.subjects) > 1:
        # Begun anew it would wait for servers that have ended: an evicted pod ends the attempt.
        del job["spec"]["podFailurePolicy"]
    return job


def _main(
    attempt: Attempt,
    program: str,
    image: str,
    resources: Resources,
    env: Mapping[str, str | JsonObject],
    mounts: tuple[Mount, ...] = (),
    tmp: str = SMALL_TMP,
) -> Container:
    common = (REQUEST_MOUNT, tmp_mount(tmp), SCRATCH_MOUNT)
    return Container("main", image, program_command(program), resources, env, (*common, *mounts))


def _job(attempt: Attempt, main: Container, **pod: int) -> JsonObject:
    program = template_key(attempt.request.stage)
    spec = render_pod(attempt.settings, (), main, **pod)  # type: ignore[arg-type]
    return render_job(attempt, spec, component=program, template=program)
