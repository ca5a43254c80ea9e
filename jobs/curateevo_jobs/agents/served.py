"""Models that are served elsewhere: one server per subject, started by others, checked before it is asked.

They are asked one after another, whichever is ready, and told to end when they were: where GPUs are few the next one
starts when the one before has gone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from curateevo.api.errors import ContractBroken, Transient
from curateevo.api.stage import EvaluateParams, StageRequest, Subject, SubjectKind
from curateevo.evolution.pods import ENDPOINTS_VARIABLE, SERVE_GPUS_VARIABLE, SERVE_WAIT_VARIABLE
from curateevo_jobs.agents.ending import end_server
from curateevo_jobs.agents.hardware import count_gpus
from curateevo_jobs.agents.identity import expected_name
from curateevo_jobs.agents.vllm import served_models

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and the name of the only model that it may serve."""

    base_url: str
    model: str


def served_elsewhere() -> bool:
    """Whether this program's models are served by others."""
    return ENDPOINTS_VARIABLE in os.environ


def gpus_in_use() -> int:
    """GPUs that the model that is asked holds: those of its server, or of this machine. Raises ContractBroken."""
    return _whole_number(SERVE_GPUS_VARIABLE, 0) if served_elsewhere() else count_gpus()


def find_servers(request: StageRequest, params: EvaluateParams) -> dict[str, Address]:
    """The server of every subject with a model, by the subject's name; nothing when this program starts its own.

    Raises ContractBroken for an address that is missing or none, and what `expected_name` raises.
    """
    if not served_elsewhere():
        return {}
    urls = parse_endpoints(os.environ[ENDPOINTS_VARIABLE])
    out = {}
    for subject in params.subjects:
        if subject.kind is SubjectKind.NOTHING:
            continue
        if subject.name not in urls:
            raise ContractBroken(f"{ENDPOINTS_VARIABLE} has no server for subject {subject.name}")
        out[subject.name] = Address(urls[subject.name], expected_name(request, params, subject))
    return out


def parse_endpoints(text: str) -> dict[str, str]:
    """Subject to base URL. Raises ContractBroken."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ContractBroken(f"{ENDPOINTS_VARIABLE} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ContractBroken(f"{ENDPOINTS_VARIABLE} must be an object: subject to base URL")
    for subject, url in found.items():
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ContractBroken(f"{ENDPOINTS_VARIABLE}: {url!r} of {subject} is no base URL", "e.g. http://server/v1")
    return {subject: url.rstrip("/") for subject, url in found.items()}


def in_turn(subjects: Sequence[Subject], servers: Mapping[str, Address], default_seconds: int) -> Iterator[Subject]:
    """The subjects, each once its server is ready; first those without one. A server is told to end when the next
    subject is asked for. Raises what `await_one` raises."""
    yield from (subject for subject in subjects if subject.name not in servers)
    waiting = {subject.name: subject for subject in subjects if subject.name in servers}
    while waiting:
        ready = await_one({name: servers[name] for name in waiting}, default_seconds)
        yield waiting.pop(ready)
        end_server(servers[ready].base_url)


def await_one(servers: Mapping[str, Address], default_seconds: int, poll_seconds: float = POLL_SECONDS) -> str:
    """The first of the servers that is ready and serves its subject's very model.

    Raises ContractBroken as soon as one serves another model, and Transient when none answers in time.
    """
    seconds = _whole_number(SERVE_WAIT_VARIABLE, default_seconds)
    deadline = time.monotonic() + seconds
    while True:
        for subject, server in servers.items():
            served = served_models(server.base_url)
            if served == [server.model]:
                return subject
            if served is not None:
                raise ContractBroken(
                    f"the server of {subject} at {server.base_url} serves {served}, not {server.model}"
                )
        if time.monotonic() >= deadline:
            late = ", ".join(f"{subject} at {server.base_url}" for subject, server in servers.items())
            raise Transient(f"no model server within {seconds} s: {late}", "raise deadlines.serveStartSeconds")
        time.sleep(min(poll_seconds, max(0.0, deadline - time.monotonic())))


def _whole_number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ContractBroken(f"{variable} is no whole number: {text!r}")
    return int(text)
