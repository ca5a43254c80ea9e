"""Model servers: one Job and one Service for each subject with a model, so that a deadline frees the GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass

from curateevo.api.base import JsonObject
from curateevo.api.stage import EvaluateParams, Subject, SubjectKind
from curateevo.evolution.names import serve_name
from curateevo.evolution.pods import ENDPOINTS_VARIABLE, SERVE_GPUS_VARIABLE, SERVE_PORT, SERVE_WAIT_VARIABLE
from curateevo_operator.render import labels
from curateevo_operator.render.access import BaseAccess, base_downloads, base_files, store_env
from curateevo_operator.render.attempt import Attempt, render_job
from curateevo_operator.render.pods import (
    BASE_ENVIRONMENT,
    PROGRAM_ENVIRONMENT,
    REQUEST_MOUNT,
    SCRATCH_MOUNT,
    SHM_MOUNT,
    SKIP_IDENTITY,
    Container,
    Mount,
    Resources,
    program_command,
    render_pod,
    tmp_mount,
)
from curateevo_operator.render.templates import gpus_of

FETCH = Resources("100m", "256Mi", "2", "8Gi")
"""The hub's client holds some gigabytes of a large model in memory where the network is faster than the disk."""
SERVE = Resources("500m", "3Gi", "8", "32Gi")
"""Defaults for a small model without a GPU."""
MODEL = "/model"
TMP_SIZE = "8Gi"
"""The caches of compilers."""
PROBE_SECONDS = 5
PROBE_TIMEOUT_SECONDS = 10
LIVENESS_SECONDS, LIVENESS_FAILURES = 20, 6
"""A busy server answers late; one that does not within two minutes has died inside."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Objects to create before the evaluator, and what it is told of them."""

    objects: tuple[JsonObject, ...]
    variables: dict[str, str]


def render_servers(attempt: Attempt, params: EvaluateParams) -> Servers:
    """A server for each subject that has a model. Raises SpecInvalid."""
    objects: list[JsonObject] = []
    endpoints: dict[str, str] = {}
    gpus = 0
    subjects = (s for s in params.subjects if s.kind is not SubjectKind.NOTHING)
    for index, subject in enumerate(subjects):
        name = serve_name(attempt.name, index)
        job = _job(attempt, subject, name)
        objects += [_service(attempt, name), job]
        endpoints[subject.name] = f"http://{name}.{attempt.parent.namespace}.svc:{SERVE_PORT}/v1"
        gpus = gpus_of(job["spec"]["template"]["spec"])
    deadlines = attempt.spec.deadlines
    variables = {
        ENDPOINTS_VARIABLE: json.dumps(endpoints, sort_keys=True),
        SERVE_WAIT_VARIABLE: str(deadlines.pending_seconds + deadlines.serve_start_seconds),
        SERVE_GPUS_VARIABLE: str(gpus),
    }
    return Servers(tuple(objects), variables)


def _service(attempt: Attempt, name: str) -> JsonObject:
    """Reaches the pod of one server. By the evolution's uid as well: a name may be used again."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": attempt.metadata(name, "serve", labels.SERVE, {labels.SERVER: name}),
        "spec": {
            "type": "ClusterIP",
            "selector": {labels.EVOLUTION_UID: attempt.parent.uid, labels.SERVER: name},
            "ports": [{"name": "http", "port": SERVE_PORT, "targetPort": SERVE_PORT, "protocol": "TCP"}],
        },
    }


def _job(attempt: Attempt, subject: Subject, name: str) -> JsonObject:
    model = Mount("model", MODEL, {"emptyDir": {}})
    pod = render_pod(attempt.settings, (_fetch(attempt, subject, model),), _server(attempt, subject, model))
    extra = {labels.SERVER: name}
    job = render_job(attempt, pod, component="serve", template="serve", name=name, role=labels.SERVE, extra=extra)
    job["spec"]["template"]["metadata"]["annotations"][SKIP_IDENTITY] = "main"
    return job


def _fetch(attempt: Attempt, subject: Subject, model: Mount) -> Container:
    """Holds the keys, and the hub's token where it downloads the base model."""
    base = base_downloads(attempt.spec, MODEL) if subject.kind is SubjectKind.BASE else BaseAccess()
    return Container(
        "fetch",
        attempt.settings.serve_image,
        program_command("serve", "--subject", subject.name, "--step", "fetch", "--model", MODEL),
        FETCH,
        {**PROGRAM_ENVIRONMENT, **store_env(attempt.spec), **base.env},
        (REQUEST_MOUNT, tmp_mount(TMP_SIZE), SCRATCH_MOUNT, model, *base.mounts),
    )


def _server(attempt: Attempt, subject: Subject, model: Mount) -> Container:
    base = base_files(attempt.spec) if subject.kind is SubjectKind.BASE else BaseAccess()
    read_only = Mount(model.name, model.path, model.source, read_only=True)
    arguments = ("--subject", subject.name, "--step", "run", "--model", MODEL, "--port", str(SERVE_PORT))
    return Container(
        "main",
        attempt.settings.serve_image,
        program_command("serve", *arguments),
        SERVE,
        BASE_ENVIRONMENT,
        (REQUEST_MOUNT, tmp_mount(TMP_SIZE), SHM_MOUNT, read_only, *base.mounts),
        {
            "ports": [{"name": "http", "containerPort": SERVE_PORT, "protocol": "TCP"}],
            **_probes(attempt.spec.deadlines.serve_start_seconds),
        },
    )


def _probes(start_seconds: int) -> JsonObject:
    health = {"httpGet": {"path": "/health", "port": SERVE_PORT}, "timeoutSeconds": PROBE_TIMEOUT_SECONDS}
    return {
        "startupProbe": {
            **health,
            "periodSeconds": PROBE_SECONDS,
            "failureThreshold": max(1, -(-start_seconds // PROBE_SECONDS)),
        },
        "readinessProbe": {**health, "periodSeconds": PROBE_SECONDS, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": LIVENESS_SECONDS, "failureThreshold": LIVENESS_FAILURES},
    }
