"""What Jobs, TrainJobs and their pods say, as the plans want to see it. Pure: dicts in, values out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from curateevo.api.base import JsonObject
from curateevo.evolution.decision import JobState
from curateevo.loop.observe import JobSeen
from curateevo_operator.render import labels

ABSENT = JobSeen(JobState.ABSENT)
STUCK = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Why a container waits that will not start before somebody mends something."""


@dataclass(frozen=True, slots=True)
class Group:
    """One attempt: its main Job, and the Jobs beside it: model servers that it asks, earlier steps of its program."""

    name: str
    main: JsonObject | None
    beside: tuple[JsonObject, ...]
    seen: JobSeen

    @property
    def jobs(self) -> list[JsonObject]:
        return [*self.beside, *([self.main] if self.main is not None else [])]

    @property
    def over(self) -> bool:
        return self.main is not None and self.seen.state in (JobState.SUCCEEDED, JobState.FAILED)


@dataclass(frozen=True, slots=True)
class JobsSeen:
    """All attempts of one evolution, by the name of their main Job. A listing: nothing is asked of the server."""

    groups: Mapping[str, Group]

    def seen(self, name: str) -> JobSeen:
        found = self.groups.get(name)
        return found.seen if found is not None else ABSENT

    @property
    def quiet(self) -> bool:
        """Every Job has ended."""
        return all(ended(j) or terminating(j) for g in self.groups.values() for j in g.jobs)

    @property
    def leftovers(self) -> list[JsonObject]:
        """Jobs without a purpose: servers of an attempt that has ended, and the client of a server that has failed."""
        over = (g for g in self.groups.values() if g.over)
        return [j for g in over for j in g.jobs if not ended(j) and not terminating(j)]


def group_jobs(jobs: Sequence[JsonObject], pods: Sequence[JsonObject], words: Mapping[str, str]) -> JobsSeen:
    """Jobs and pods of one evolution as attempts. `words`: by Job name, why it got no pod."""
    names = {j["metadata"]["name"] for j in jobs}
    pods_of: dict[str, list[JsonObject]] = {}
    for pod in pods:
        own = _job_of(pod)  # a TrainJob's pods are those of a Job that it makes
        pods_of.setdefault(own if own in names else label(pod, labels.JOB), []).append(pod)
    members: dict[str, list[JsonObject]] = {}
    for job in jobs:
        members.setdefault(label(job, labels.JOB), []).append(job)
    groups = {}
    for name, found in members.items():
        main = next((j for j in found if j["metadata"]["name"] == name), None)
        beside = tuple(j for j in found if j is not main)
        seen = {
            j["metadata"]["name"]: job_seen(
                j, pods_of.get(j["metadata"]["name"], []), words.get(j["metadata"]["name"], "")
            )
            for j in found
        }
        groups[name] = Group(name, main, beside, _together(main, beside, seen))
    return JobsSeen(groups)


def _together(main: JsonObject | None, beside: Iterable[JsonObject], seen: Mapping[str, JobSeen]) -> JobSeen:
    """An attempt is as far as the one of its Jobs that is least far, and fails with the first that does. A server may
    wait as long as another is asked: it starts when that one has gone."""
    if main is None:
        # Made before the main Job, which says that all is there: it is as if nothing were there yet.
        stopping = any(terminating(j) for j in beside)
        return JobSeen(JobState.STOPPING) if stopping else ABSENT
    own = seen[main["metadata"]["name"]]
    if own.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPING):
        return own
    servers = [_of_server(seen[j["metadata"]["name"]]) for j in beside if label(j, labels.ROLE) == labels.SERVE]
    steps = [seen[j["metadata"]["name"]] for j in beside if label(j, labels.ROLE) != labels.SERVE]
    over = [its.since for its in servers if its.state is JobState.SUCCEEDED]
    servers = [its for its in servers if its.state is not JobState.SUCCEEDED]
    for its in (*steps, *servers):
        if its.state is JobState.FAILED:
            return its
    asked = any(its.state is JobState.RUNNING for its in servers)
    for its in steps if asked else [*steps, *servers]:
        if its.state is JobState.PENDING:
            return replace(its, since=_latest(its.since, *over))
    return replace(own, since=_latest(own.since, *(its.since for its in (*steps, *servers))))


def _of_server(its: JobSeen) -> JobSeen:
    return replace(its, message=f"the model server: {its.message}")


def _latest(*times: float | None) -> float | None:
    return max(filter(None, times), default=None)


def job_seen(job: JsonObject, pods: Sequence[JsonObject], why_no_pod: str = "") -> JobSeen:
    """One Job. An exit code of None means that the infrastructure failed, not the program."""
    status = job.get("status") or {}
    if terminating(job):
        return JobSeen(JobState.STOPPING)
    if (done := _condition(job, "Complete")) is not None:
        return JobSeen(JobState.SUCCEEDED, 0, since=_time(status.get("completionTime")) or _since(done))
    if (failed := _condition(job, "Failed")) is not None:
        code, message = _why_failed(job, failed, pods)
        return JobSeen(JobState.FAILED, code, message, _since(failed))
    if (job.get("spec") or {}).get("suspend"):
        preempted = _condition(job, "Suspended")
        since = (_since(preempted) if preempted else None) or _created(job)
        return JobSeen(JobState.PENDING, message="suspended: it waits for its queue", since=since)
    alive = [p for p in pods if not terminating(p)]
    if not alive:
        began = (_created(job), *(_time(p["metadata"]["deletionTimestamp"]) for p in pods))
        return JobSeen(JobState.PENDING, message=why_no_pod, since=max(filter(None, began), default=None))
    newest = max(alive, key=lambda p: str(p["metadata"].get("creationTimestamp", "")))
    return _pod_seen(newest)


def ended(job: JsonObject) -> bool:
    return _condition(job, "Complete") is not None or _condition(job, "Failed") is not None


def terminating(manifest: JsonObject) -> bool:
    return manifest["metadata"].get("deletionTimestamp") is not None


def label(manifest: JsonObject, name: str) -> str:
    return str((manifest["metadata"].get("labels") or {}).get(name, ""))


def without_pods(jobs: Iterable[JsonObject], pods: Iterable[JsonObject]) -> list[JsonObject]:
    """Jobs that should have a pod and have none: quota or admission may refuse it."""
    having = {name for p in pods for name in (_job_of(p), label(p, labels.JOB))}
    return [
        j
        for j in jobs
        if j["metadata"]["name"] not in having
        and not ended(j)
        and not terminating(j)
        and not (j.get("spec") or {}).get("suspend")
    ]


def _pod_seen(pod: JsonObject) -> JobSeen:
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in STUCK:
            text = f"{container['name']}: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
            return JobSeen(JobState.PENDING, message=text, since=_created(pod))
    if status.get("phase") == "Pending" and not status.get("startTime"):
        scheduled: JsonObject = next((c for c in status.get("conditions") or () if c["type"] == "PodScheduled"), {})
        return JobSeen(JobState.PENDING, message=str(scheduled.get("message", "")), since=_created(pod))
    return JobSeen(JobState.RUNNING, since=_time(status.get("startTime")))


def _why_failed(job: JsonObject, failed: JsonObject, pods: Sequence[JsonObject]) -> tuple[int | None, str]:
    """Exit code and words of the program that failed; of the Job where no container says more."""
    if failed.get("reason") == "DeadlineExceeded":
        return None, str(failed.get("message") or "the Job ran past its deadline")
    for pod in sorted(pods, key=lambda p: str(p["metadata"].get("creationTimestamp", "")), reverse=True):
        status = pod.get("status") or {}
        for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            stopped = (container.get("state") or {}).get("terminated") or {}
            if stopped.get("exitCode", 0) != 0:
                return _container_failure(container, stopped, job)
        if status.get("reason"):
            return None, f"{status['reason']}: {status.get('message', '')}".rstrip(": ")
    return None, str(failed.get("message") or failed.get("reason") or "the Job failed")


def _container_failure(container: JsonObject, stopped: JsonObject, job: JsonObject) -> tuple[int | None, str]:
    name, code = container["name"], int(stopped["exitCode"])
    if stopped.get("reason") == "OOMKilled":
        return code, f"{name} was killed: out of memory; raise its limit in spec.templates"
    said = _termination_message(stopped)
    if label(job, labels.ROLE) == labels.SERVE:
        if not container.get("started") and container.get("name") == "main" and code in (137, 143):
            said = said or "it was not ready within deadlines.serveStartSeconds and was stopped"
        return None, said or f"{name} ended with {code}"
    return code, said or f"{name} ended with exit code {code}"


def _termination_message(stopped: JsonObject) -> str:
    raw = str(stopped.get("message") or "")
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        return raw.strip()[-1500:]


def _job_of(pod: JsonObject) -> str:
    return label(pod, "batch.kubernetes.io/job-name")


def _condition(manifest: JsonObject, kind: str) -> JsonObject | None:
    found = ((manifest.get("status") or {}).get("conditions")) or ()
    return next((c for c in found if c["type"] == kind and c["status"] == "True"), None)


def _since(condition: JsonObject) -> float | None:
    return _time(condition.get("lastTransitionTime"))


def _created(manifest: JsonObject) -> float | None:
    return _time(manifest["metadata"].get("creationTimestamp"))


def _time(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
