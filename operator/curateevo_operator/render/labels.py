"""Labels: an explicit list. The parent's own are never copied, they may carry a GitOps tool's tracking labels."""

from __future__ import annotations

from curateevo.api.stage import StageRequest
from curateevo_operator.render.settings import Parent

PREFIX = "curateevo.io/"
EVOLUTION, EVOLUTION_UID = f"{PREFIX}evolution", f"{PREFIX}evolution-uid"
VERSION, STAGE, ATTEMPT = f"{PREFIX}version", f"{PREFIX}stage", f"{PREFIX}attempt"
JOB = f"{PREFIX}job"
"""Name of the attempt's main Job: what belongs together."""
ROLE = f"{PREFIX}role"
SERVER = f"{PREFIX}server"
"""Name of a model server: its Job and its Service."""
MAIN, SERVE, STEP, RUNTIME = "main", "serve", "step", "runtime"
"""Roles: what writes the manifest, a model server, an earlier step of the main Job's program, a TrainJob's runtime."""
REQUEST = f"{PREFIX}request"
"""The annotation with the stage's request."""
NAME, MANAGED_BY = "app.kubernetes.io/name", "app.kubernetes.io/managed-by"
COMPONENT, PART_OF = "app.kubernetes.io/component", "app.kubernetes.io/part-of"
APPLICATION, OPERATOR = "curateevo", "curateevo-operator"
OWN = frozenset({NAME, MANAGED_BY, COMPONENT, PART_OF})
"""Labels without our prefix that are ours as well."""
QUEUE, QUEUE_PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"


def selector(parent_uid: str) -> str:
    """Selects all objects of an evolution in a LIST."""
    return f"{EVOLUTION_UID}={parent_uid},{MANAGED_BY}={OPERATOR}"


def of_evolution(parent: Parent, component: str) -> dict[str, str]:
    """On every object of an evolution. `component`: what runs there, e.g. `train`, `policy` or `serve`."""
    return {
        NAME: APPLICATION,
        MANAGED_BY: OPERATOR,
        COMPONENT: component,
        PART_OF: parent.name,
        EVOLUTION: parent.name,
        EVOLUTION_UID: parent.uid,
    }


def of_version(parent: Parent, number: int) -> dict[str, str]:
    """On a PolicyVersion."""
    return of_evolution(parent, "version") | {VERSION: str(number)}


def of_attempt(parent: Parent, component: str, request: StageRequest, job: str, role: str) -> dict[str, str]:
    """On everything that one attempt of a stage is made of."""
    version = {} if request.version is None else {VERSION: str(request.version)}
    return (
        of_evolution(parent, component)
        | version
        | {STAGE: request.stage.value, ATTEMPT: str(request.attempt), JOB: job, ROLE: role}
    )
