"""One attempt of a stage as a Job: what all Jobs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from curateevo.api.base import JsonObject, canonical_json
from curateevo.api.errors import SpecInvalid
from curateevo.api.evolution import Stage
from curateevo.api.spec import EvolutionSpec
from curateevo.api.stage import StageRequest
from curateevo.evolution.names import MAX_NAME
from curateevo.evolution.plan_version import deadline_seconds
from curateevo_operator.render import labels
from curateevo_operator.render.settings import Owner, Parent, RenderSettings
from curateevo_operator.render.templates import apply_template

MAX_REQUEST_BYTES = 200 << 10
"""All annotations of an object together may take 256 KiB."""
SLACK_SECONDS = 600
"""How much later than the operator's plan a Job ends itself: only when no operator is there."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a stage. `name`: of its main Job."""

    settings: RenderSettings
    parent: Parent
    owner: Owner
    spec: EvolutionSpec
    name: str
    request: StageRequest

    def metadata(self, name: str, component: str, role: str, extra: Mapping[str, str] | None = None) -> JsonObject:
        """Of an object that belongs to this attempt."""
        return {
            "name": name,
            "namespace": self.parent.namespace,
            "labels": labels.of_attempt(self.parent, component, self.request, self.name, role) | dict(extra or {}),
            "ownerReferences": [self.owner.reference()],
        }

    @property
    def deadline_seconds(self) -> int:
        """When a Job of this attempt ends itself, counted from when it may start: a backstop behind the plan."""
        return deadline_seconds(self.spec, self.request.stage) + self.spec.deadlines.pending_seconds + SLACK_SECONDS


def request_text(request: StageRequest) -> str:
    """The request as it travels in an annotation. Raises SpecInvalid when it is too large for one."""
    text = canonical_json(request.to_wire())
    size = len(text.encode())
    if size > MAX_REQUEST_BYTES:
        raise SpecInvalid(
            f"the request of {request.stage} takes {size >> 10} KiB, and {MAX_REQUEST_BYTES >> 10} fit into an object",
            "shorten what the spec holds of text: model.chatTemplate, suites' params, sft.args, grpo.args; "
            "or train models with fewer files",
        )
    return text


def render_job(
    attempt: Attempt,
    pod: JsonObject,
    *,
    component: str,
    template: str,
    name: str = "",
    role: str = labels.MAIN,
    extra: Mapping[str, str] | None = None,
) -> JsonObject:
    """A Job that runs `pod` once. `template`: its key in spec.templates; `name`: where it isn't the main Job.

    Raises SpecInvalid.
    """
    metadata = attempt.metadata(name or attempt.name, component, role, extra)
    inner = {
        "metadata": {
            "labels": dict(metadata["labels"]),
            "annotations": {labels.REQUEST: request_text(attempt.request)},
        },
        "spec": pod,
    }
    queue = attempt.spec.queue
    job: JsonObject = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": attempt.deadline_seconds,
            "ttlSecondsAfterFinished": attempt.settings.job_ttl_seconds,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "template": apply_template(inner, attempt.spec, template),
        },
    }
    if queue.name is not None:
        metadata["labels"][labels.QUEUE] = queue.name
        job["spec"]["suspend"] = True
        if queue.priority_class_name is not None:
            metadata["labels"][labels.QUEUE_PRIORITY] = queue.priority_class_name
    return job


def check_names(parent: Parent, name: str) -> None:
    """Raise SpecInvalid for names that are no label values: they stand in labels."""
    for what in (parent.name, name):
        if len(what) > MAX_NAME:
            raise SpecInvalid(f"metadata.name: {what!r} is longer than {MAX_NAME} characters")


def template_key(stage: Stage) -> str:
    """The key in spec.templates of a stage's main Job."""
    return Stage.EVALUATE.value if stage in (Stage.FLOORS, Stage.SEAL) else stage.value
