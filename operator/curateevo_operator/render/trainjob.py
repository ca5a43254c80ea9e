"""train as a Kubeflow TrainJob (trainer.kubeflow.org/v1alpha1), with a runtime of its own.

A TrainJob can override little of a runtime's pods: no security context, no labels, no annotations. So the runtime is
rendered as well, with the very pod that a Job would have; its one container has to be called `node`. The program is
no torchrun job and publishes by itself: one node.
"""

from __future__ import annotations

from curateevo.api.base import JsonObject
from curateevo_operator.render import labels
from curateevo_operator.render.attempt import Attempt, render_job
from curateevo_operator.render.pods import render_pod
from curateevo_operator.render.programs import TRAIN_GRACE_SECONDS, train_container

API_VERSION = "trainer.kubeflow.org/v1alpha1"
GROUP = "trainer.kubeflow.org"
NODE = "node"
"""Kubeflow's name of the trainer's job and of its container."""
ANCESTOR = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def render_train_job(attempt: Attempt) -> tuple[JsonObject, JsonObject]:
    """The runtime, then the TrainJob. Raises SpecInvalid."""
    pod = render_pod(attempt.settings, (), train_container(attempt), grace_seconds=TRAIN_GRACE_SECONDS)
    job = render_job(attempt, pod, component="train", template="train")
    template = job["spec"]["template"]
    main = next(c for c in template["spec"]["containers"] if c["name"] == "main")
    main["name"] = NODE
    return _runtime(attempt, job), _train_job(attempt, job, main)


def _runtime(attempt: Attempt, job: JsonObject) -> JsonObject:
    inner = {
        key: job["spec"][key]
        for key in ("backoffLimit", "activeDeadlineSeconds", "podReplacementPolicy", "podFailurePolicy")
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRuntime",
        "metadata": attempt.metadata(attempt.name, "train", labels.RUNTIME),
        "spec": {
            "mlPolicy": {"numNodes": 1},
            "template": {
                "spec": {
                    "ttlSecondsAfterFinished": attempt.settings.job_ttl_seconds,
                    "failurePolicy": {"maxRestarts": 0},
                    "replicatedJobs": [
                        {
                            "name": NODE,
                            "replicas": 1,
                            "template": {
                                "metadata": {"labels": dict(ANCESTOR)},
                                "spec": {**inner, "template": job["spec"]["template"]},
                            },
                        }
                    ],
                }
            },
        },
    }


def _train_job(attempt: Attempt, job: JsonObject, main: JsonObject) -> JsonObject:
    spec: JsonObject = {
        "runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": attempt.name},
        "trainer": {
            "image": main["image"],
            "command": list(main["command"]),
            "numNodes": 1,
            "resourcesPerNode": main["resources"],
        },
    }
    if job["spec"].get("suspend"):
        spec["suspend"] = True
    return {"apiVersion": API_VERSION, "kind": "TrainJob", "metadata": job["metadata"], "spec": spec}
