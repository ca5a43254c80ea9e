"""Training as a Kubeflow TrainJob: the same pod, with the same rights, in Kubeflow's terms."""

from __future__ import annotations

import copy

import jsonschema
import pytest

from curateevo.api.evolution import Stage
from curateevo_operator.render import labels
from tests.operator.render import crds
from tests.operator.render.cases import GPU_TEMPLATE, SPECS, pod_of, render, spec_of

AS_JOB = spec_of(queue={"name": "gpus"}, templates={"train": GPU_TEMPLATE})


def test_both_objects_are_valid_for_kubeflow() -> None:
    for manifest in render(Stage.TRAIN, SPECS["train-job"]):
        crds.validate(manifest)


def test_the_schemas_know_what_is_wrong() -> None:
    _, train_job = render(Stage.TRAIN, SPECS["train-job"])
    for change in ({"trainer": {"imagine": "x"}}, {"runtimeRef": {}}, {"podTemplateOverrides": []}):
        broken = copy.deepcopy(train_job)
        broken["spec"].update(change)
        with pytest.raises(jsonschema.ValidationError):
            crds.validate(broken)


def test_the_runtime_comes_first_and_is_the_train_jobs_own() -> None:
    runtime, train_job = render(Stage.TRAIN, SPECS["train-job"])
    assert train_job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }
    assert train_job["spec"]["suspend"] is True
    assert train_job["metadata"]["labels"][labels.QUEUE] == "gpus"
    assert labels.QUEUE not in runtime["metadata"]["labels"]
    assert runtime["metadata"]["labels"][labels.JOB] == train_job["metadata"]["name"]


def test_the_pod_is_the_one_of_a_job() -> None:
    runtime, train_job = render(Stage.TRAIN, SPECS["train-job"])
    [job] = render(Stage.TRAIN, AS_JOB)
    expected = copy.deepcopy(job["spec"]["template"])
    assert expected["spec"]["containers"][0]["name"] == "main"
    expected["spec"]["containers"][0]["name"] = "node"
    pod = copy.deepcopy(pod_of(runtime))
    assert pod is not None
    requests = [p["metadata"]["annotations"].pop(labels.REQUEST) for p in (pod, expected)]
    assert requests[0].replace('"TrainJob"', '"Job"') == requests[1]
    assert pod == expected
    node = expected["spec"]["containers"][0]
    trainer = train_job["spec"]["trainer"]
    assert (trainer["image"], trainer["command"]) == (node["image"], node["command"])
    assert trainer["resourcesPerNode"] == node["resources"]
    assert trainer["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == 1


def test_kubeflow_counts_no_attempts() -> None:
    runtime, _ = render(Stage.TRAIN, SPECS["train-job"])
    job_set = runtime["spec"]["template"]["spec"]
    [job] = job_set["replicatedJobs"]
    assert job_set["failurePolicy"] == {"maxRestarts": 0}
    assert job["template"]["spec"]["backoffLimit"] == 0
    [alone] = render(Stage.TRAIN, AS_JOB)
    assert job["template"]["spec"]["activeDeadlineSeconds"] == alone["spec"]["activeDeadlineSeconds"]
