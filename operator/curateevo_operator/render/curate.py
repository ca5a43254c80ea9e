"""curate: trusted steps with keys around a container without any, in which the policy runs."""

from __future__ import annotations

import math

from curateevo.api.base import JsonObject
from curateevo.api.spec import Sandbox
from curateevo.api.stage import StageRequest
from curateevo.evolution.requests import CORPUS_FILES
from curateevo.policy.quantity import quantity
from curateevo_operator.render.access import rewrite_env, store_env
from curateevo_operator.render.attempt import Attempt, render_job
from curateevo_operator.render.isolate import claim_name, part, render_claim
from curateevo_operator.render.pods import (
    PROGRAM_ENVIRONMENT,
    REQUEST_MOUNT,
    SCRATCH_MOUNT,
    SKIP_IDENTITY,
    TERMINATION_LOG,
    Container,
    Mount,
    Resources,
    program_command,
    render_pod,
    tmp_mount,
)
from curateevo_operator.render.templates import POLICIES, POLICY, POLICY_AGAIN

FETCH = Resources("100m", "256Mi", "1", "2Gi")
PUBLISH = Resources("250m", "1Gi", "2", "8Gi")
POLICY_CPU, POLICY_MEMORY = 0.25, 512 << 20
"""What the policy's container asks for: little, so that it starts anywhere; its limits are the sandbox's."""
HEADROOM_BYTES = 1 << 30
"""Beside the policy's own memory: two interpreters, their libraries, an answer, the scratch folder."""
CORPUS_FACTOR = 16
"""A corpus as objects in memory against its files, at most."""
SCRATCH_SIZE = "256Mi"
ANSWERS = {POLICY: "answers", POLICY_AGAIN: "answers-again"}
"""Where each untrusted container may write."""
ANSWERS_BYTES = 1 << 30
"""Room for two answers of the largest size."""
CLAIM, CLAIM_FACTOR = "work", 2
"""The claim of isolation Pod holds the inputs, and some more."""
TMP_SIZE = "2Gi"
WORK = "/work"


def render_curate(attempt: Attempt) -> tuple[JsonObject, ...]:
    """One pod: fetch and publish with keys, the policy between them without. Or, with isolation Pod, one for each.
    With augmentation the policy runs again after a step that asks the model.

    Raises SpecInvalid.
    """
    sandbox = attempt.spec.sandbox
    pod = render_pod(
        attempt.settings,
        _steps(attempt, sandbox),
        _publish(attempt),
        runtime_class=sandbox.runtime_class_name,
    )
    job = render_job(attempt, pod, component="curate", template="curate")
    untrusted = [step["name"] for step in pod["initContainers"] if step["name"] in POLICIES]
    job["spec"]["template"]["metadata"]["annotations"][SKIP_IDENTITY] = ",".join(untrusted)
    if sandbox.isolation == "Container":
        return (job,)
    size = ANSWERS_BYTES + CLAIM_FACTOR * sum(ref.size_bytes for ref in attempt.request.inputs.values())
    return (render_claim(attempt, size), *part(attempt, job))


def _steps(attempt: Attempt, sandbox: Sandbox) -> tuple[Container, ...]:
    """What runs before `publish`, in order."""
    if attempt.spec.augmentation is None:
        return _fetch(attempt), _policy(attempt, sandbox)
    return _fetch(attempt), _policy(attempt, sandbox), _fulfil(attempt), _policy(attempt, sandbox, again=True)


def _folder(attempt: Attempt, name: str, *, read_only: bool = False) -> Mount:
    """A folder that steps share: a volume of the pod, or a part of the claim."""
    path = f"{WORK}/{name}"
    if attempt.spec.sandbox.isolation == "Pod":
        return Mount(CLAIM, path, {"persistentVolumeClaim": {"claimName": claim_name(attempt)}}, read_only, name)
    size = {"sizeLimit": f"{ANSWERS_BYTES >> 20}Mi"} if name in ANSWERS.values() else {}
    return Mount(name, path, {"emptyDir": size}, read_only)


def _wait(attempt: Attempt) -> tuple[str, ...]:
    """For steps that start together: how long the one before may take."""
    if attempt.spec.sandbox.isolation == "Container":
        return ()
    deadlines = attempt.spec.deadlines
    return ("--wait", str(deadlines.pending_seconds + deadlines.curate_seconds))


def _fetch(attempt: Attempt) -> Container:
    folders = (_folder(attempt, name) for name in ("visible", "trusted"))
    return Container(
        "fetch",
        attempt.settings.jobs_image,
        program_command("curate", "--step", "fetch", "--work", WORK),
        FETCH,
        {**PROGRAM_ENVIRONMENT, **store_env(attempt.spec)},
        (REQUEST_MOUNT, tmp_mount(TMP_SIZE), SCRATCH_MOUNT, *folders),
    )


def _policy(attempt: Attempt, sandbox: Sandbox, *, again: bool = False) -> Container:
    """No request, no keys, nothing of the trusted folder, and a scratch of its own: /tmp of the others isn't its."""
    name = POLICY_AGAIN if again else POLICY
    scratch = Mount(f"{name}-tmp", "/tmp", {"emptyDir": {"medium": "Memory", "sizeLimit": SCRATCH_SIZE}})
    folders = ("--visible", f"{WORK}/visible", "--answers", f"{WORK}/{ANSWERS[name]}")
    command = ("python", "-m", "curateevo.policy.contained", *folders, "--termination-log", TERMINATION_LOG)
    return Container(
        name,
        attempt.settings.sandbox_image,
        (*command, *(("--again",) if again else ()), *_wait(attempt)),
        policy_resources(sandbox, attempt.request),
        {"HOME": "/tmp"},
        (scratch, _folder(attempt, "visible", read_only=True), _folder(attempt, ANSWERS[name])),
    )


def _fulfil(attempt: Attempt) -> Container:
    """The only container that holds the key of the model that rewrites."""
    folders = (_folder(attempt, name) for name in ("visible", "trusted"))
    return Container(
        "fulfil",
        attempt.settings.jobs_image,
        program_command("curate", "--step", "fulfil", "--work", WORK),
        PUBLISH,
        {**PROGRAM_ENVIRONMENT, **store_env(attempt.spec), **rewrite_env(attempt.spec)},
        (
            REQUEST_MOUNT,
            tmp_mount(TMP_SIZE),
            SCRATCH_MOUNT,
            *folders,
            _folder(attempt, ANSWERS[POLICY], read_only=True),
        ),
    )


def _publish(attempt: Attempt) -> Container:
    answers = [ANSWERS[POLICY]] if attempt.spec.augmentation is None else list(ANSWERS.values())
    folders = (_folder(attempt, name, read_only=True) for name in ("visible", "trusted", *answers))
    return Container(
        "main",
        attempt.settings.jobs_image,
        program_command("curate", "--step", "publish", "--work", WORK, *_wait(attempt)),
        PUBLISH,
        {**PROGRAM_ENVIRONMENT, **store_env(attempt.spec)},
        (REQUEST_MOUNT, tmp_mount(TMP_SIZE), SCRATCH_MOUNT, *folders),
    )


def policy_resources(sandbox: Sandbox, request: StageRequest) -> Resources:
    """The sandbox's limits, with room for the corpus and the interpreters that hold it."""
    corpus = sum(request.inputs[path].size_bytes for path in CORPUS_FILES if path in request.inputs)
    memory = int(quantity(sandbox.memory)) + HEADROOM_BYTES + CORPUS_FACTOR * corpus
    cpu = min(POLICY_CPU, quantity(sandbox.cpu))
    return Resources(f"{math.ceil(cpu * 1000)}m", f"{POLICY_MEMORY >> 20}Mi", sandbox.cpu, f"{-(-memory >> 20)}Mi")
