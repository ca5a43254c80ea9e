"""What Jobs and their pods say, as the plans see it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from curateevo.evolution.decision import JobState
from curateevo_operator.adapters.jobs import group_jobs, without_pods

MADE, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
T0 = 1767225600.0
Object = dict[str, Any]


def job(name: str = "evo-v1-train-a1", *, role: str = "main", main: str = "", **status: Any) -> Object:
    labels = {"curateevo.io/job": main or name, "curateevo.io/role": role}
    meta = {"name": name, "labels": labels, "creationTimestamp": MADE}
    return {"metadata": meta, "spec": {}, "status": status}


def pod(of: str = "evo-v1-train-a1", *, phase: str = "Pending", made: str = MADE, **status: Any) -> Object:
    meta = {"name": f"{of}-x", "labels": {"batch.kubernetes.io/job-name": of}, "creationTimestamp": made}
    return {"metadata": meta, "status": {"phase": phase, **status}}


def ended(kind: str, **more: Any) -> Object:
    return {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": LATER, **more}]}


def stopped(code: int, message: str = "", reason: str = "Error", name: str = "main", **more: Any) -> Object:
    return {"name": name, "state": {"terminated": {"exitCode": code, "message": message, "reason": reason}}, **more}


def seen(jobs: list[Object], pods: list[Object], words: dict[str, str] | None = None) -> Any:
    return group_jobs(jobs, pods, words or {}).seen("evo-v1-train-a1")


def test_no_job_is_absent_and_a_new_one_is_pending_in_the_words_of_quota() -> None:
    assert seen([], []).state is JobState.ABSENT
    found = seen([job()], [], {"evo-v1-train-a1": "exceeded quota: gpus"})
    assert (found.state, found.message, found.since) == (JobState.PENDING, "exceeded quota: gpus", T0)


def test_a_queued_job_is_pending() -> None:
    queued = job()
    queued["spec"]["suspend"] = True
    assert (seen([queued], []).state, seen([queued], []).since) == (JobState.PENDING, T0)
    assert without_pods([queued], []) == []


def test_what_was_preempted_or_evicted_is_pending_since_then() -> None:
    preempted = job(**ended("Suspended"))
    preempted["spec"]["suspend"] = True
    assert (seen([preempted], []).state, seen([preempted], []).since) == (JobState.PENDING, T0 + 60)
    evicted = pod(phase="Running")
    evicted["metadata"]["deletionTimestamp"] = LATER
    assert (seen([job()], [evicted]).state, seen([job()], [evicted]).since) == (JobState.PENDING, T0 + 60)


def test_an_unscheduled_pod_speaks_with_the_schedulers_words() -> None:
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    waiting = pod(conditions=[{"type": "PodScheduled", "status": "False", "message": said}])
    assert (seen([job()], [waiting]).state, seen([job()], [waiting]).message) == (JobState.PENDING, said)


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerConfigError", "ErrImageNeverPull"])
def test_a_container_that_cannot_start_is_pending_with_its_reason(reason: str) -> None:
    state = {"waiting": {"reason": reason, "message": "no such image"}}
    stuck = pod(startTime=MADE, initContainerStatuses=[{"name": "fetch", "state": state}])
    found = seen([job()], [stuck])
    assert found.state is JobState.PENDING and found.message == f"fetch: {reason}: no such image"


def test_a_scheduled_pod_runs_since_its_start() -> None:
    found = seen([job()], [pod(phase="Running", startTime=LATER)])
    assert (found.state, found.since) == (JobState.RUNNING, T0 + 60)
    assert seen([job()], [pod(startTime=LATER)]).state is JobState.RUNNING


def test_the_newest_living_pod_counts() -> None:
    gone = pod(phase="Running", startTime=MADE)
    gone["metadata"]["deletionTimestamp"] = LATER
    assert seen([job()], [gone, pod(made=LATER)]).state is JobState.PENDING


def test_success_and_stopping() -> None:
    done = job(**ended("Complete"), completionTime=LATER)
    assert (seen([done], []).state, seen([done], []).since) == (JobState.SUCCEEDED, T0 + 60)
    done["metadata"]["deletionTimestamp"] = LATER
    assert seen([done], []).state is JobState.STOPPING


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ({"containerStatuses": [stopped(65, '{"message": "no corpus"}')]}, 65, "no corpus"),
        ({"containerStatuses": [stopped(1, "Traceback")]}, 1, "Traceback"),
        ({"initContainerStatuses": [stopped(77, '{"message": "denied"}', name="fetch")]}, 77, "denied"),
        ({"containerStatuses": [stopped(137, reason="OOMKilled")]}, 137, "out of memory"),
        ({"reason": "Evicted", "message": "disk pressure"}, None, "Evicted: disk pressure"),
        ({}, None, "Job has reached the specified backoff limit"),
    ],
)
def test_a_failure_has_the_programs_code_and_words(status: Object, code: int | None, message: str) -> None:
    failed = job(
        **ended("Failed", reason="BackoffLimitExceeded", message="Job has reached the specified backoff limit")
    )
    found = seen([failed], [pod(phase="Failed", **status)])
    assert (found.state, found.exit_code) == (JobState.FAILED, code) and message in found.message


def test_a_passed_deadline_is_no_failure_of_the_program() -> None:
    failed = job(**ended("Failed", reason="DeadlineExceeded", message="Job was active longer than specified deadline"))
    found = seen([failed], [pod(phase="Failed", containerStatuses=[stopped(143)])])
    assert found.exit_code is None and "longer" in found.message


MAIN, SERVER = "evo-v1-train-a1", "evo-v1-train-a1-s0"


def group(server: Object, *pods: Object) -> tuple[list[Object], list[Object]]:
    return [job(MAIN), server], [pod(MAIN, phase="Running", startTime=MADE), *pods]


def test_an_attempt_waits_while_its_server_waits() -> None:
    jobs, pods = group(job(SERVER, role="serve", main=MAIN), pod(SERVER))
    found = seen(jobs, pods)
    assert found.state is JobState.PENDING and found.message.startswith("the model server")


def test_an_attempt_runs_since_its_server_does() -> None:
    jobs, pods = group(job(SERVER, role="serve", main=MAIN), pod(SERVER, phase="Running", startTime=LATER))
    assert (seen(jobs, pods).state, seen(jobs, pods).since) == (JobState.RUNNING, T0 + 60)


def test_a_server_may_wait_while_another_is_asked_and_then_for_as_long_as_any() -> None:
    other = "evo-v1-train-a1-s1"
    jobs, pods = group(job(SERVER, role="serve", main=MAIN), pod(SERVER, phase="Running", startTime=LATER), pod(other))
    jobs.append(job(other, role="serve", main=MAIN))
    assert (seen(jobs, pods).state, seen(jobs, pods).since) == (JobState.RUNNING, T0 + 60)
    jobs[1] = job(SERVER, role="serve", main=MAIN, **ended("Complete"), completionTime=LATER)
    found = seen(jobs, [pods[0], pods[2]])
    assert (found.state, found.since) == (JobState.PENDING, T0 + 60)
    pods[2]["status"] = {"phase": "Running", "startTime": LATER}
    assert seen(jobs, [pods[0], pods[2]]).state is JobState.RUNNING


def test_a_server_that_never_got_ready_fails_the_attempt_and_frees_its_client() -> None:
    server = job(SERVER, role="serve", main=MAIN, **ended("Failed", reason="BackoffLimitExceeded"))
    jobs, pods = group(server, pod(SERVER, phase="Failed", containerStatuses=[stopped(137, started=False)]))
    found = group_jobs(jobs, pods, {})
    assert found.seen(MAIN).state is JobState.FAILED and found.seen(MAIN).exit_code is None
    assert "serveStartSeconds" in found.seen(MAIN).message
    assert [j["metadata"]["name"] for j in found.leftovers] == [MAIN]


def test_a_step_that_fails_fails_the_attempt_with_its_own_code() -> None:
    step = job("fetch", role="step", main=MAIN, **ended("Failed", reason="BackoffLimitExceeded"))
    jobs, pods = group(step, pod("fetch", phase="Failed", containerStatuses=[stopped(77, '{"message": "denied"}')]))
    found = seen(jobs, pods)
    assert (found.state, found.exit_code, found.message) == (JobState.FAILED, 77, "denied")
    done = job("fetch", role="step", main=MAIN, **ended("Complete"), completionTime=LATER)
    assert seen([jobs[0], done], pods[:1]).state is JobState.RUNNING


def test_a_trainjobs_pods_are_those_of_the_job_that_it_makes() -> None:
    gang = job(MAIN) | {"kind": "TrainJob"}
    inner = pod("evo-v1-train-a1-node-0", phase="Running", startTime=LATER)
    inner["metadata"]["labels"]["curateevo.io/job"] = MAIN
    assert seen([gang], [inner]).state is JobState.RUNNING and without_pods([gang], [inner]) == []
    failed = job(MAIN, **ended("Failed", reason="JobsFailed")) | {"kind": "TrainJob"}
    inner["status"] = {"phase": "Failed", "containerStatuses": [stopped(65, '{"message": "no rows"}', name="node")]}
    assert (seen([failed], [inner]).exit_code, seen([failed], [inner]).message) == (65, "no rows")


def test_a_server_goes_when_its_client_is_done() -> None:
    jobs, pods = group(job(SERVER, role="serve", main=MAIN), pod(SERVER, phase="Running", startTime=MADE))
    assert group_jobs(jobs, pods, {}).leftovers == []
    jobs[0] = job(MAIN, **ended("Complete"), completionTime=LATER)
    assert [j["metadata"]["name"] for j in group_jobs(jobs, pods, {}).leftovers] == [SERVER]
    gone = copy.deepcopy(jobs[1])
    gone["metadata"]["deletionTimestamp"] = LATER
    assert group_jobs([jobs[0], gone], pods, {}).leftovers == []


def test_a_server_without_its_client_is_as_if_nothing_were_there_yet() -> None:
    server = job(SERVER, role="serve", main=MAIN)
    assert seen([server], []).state is JobState.ABSENT
    server["metadata"]["deletionTimestamp"] = LATER
    assert seen([server], []).state is JobState.STOPPING
