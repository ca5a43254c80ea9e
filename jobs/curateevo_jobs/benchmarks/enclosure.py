"""Throw-away, confined processes for a benchmark's own code: one job in, one answer out, and the process is gone.

A benchmark's checkers and environments run on what a model wrote, some by `eval`. They are imported once, by a process
that keeps them at hand (`enclosed.py`); each job runs in a fork of it that has confined itself as a policy is confined.
So no job can touch a file, another job or this program, and none leaves anything behind for the next.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from threading import Lock

from curateevo.api.errors import ContractBroken, Transient
from curateevo.policy.confine import Limits
from curateevo_jobs.benchmarks.base import JsonObject

LIMITS = Limits(memory_bytes=512 << 20, cpu_seconds=20, file_bytes=0, open_files=16)
JOB_SECONDS = 60.0
"""A job's deadline. Above its CPU limit: only one that sleeps, or a machine that stands still, comes to it."""
START_SECONDS = 120.0
MAX_ANSWER_BYTES = 16 << 20
CHUNK_BYTES = 1 << 16
MAX_MESSAGE_CHARS = 2000


class Stopped(Exception):
    """A job ended without an answer: it ran into a limit, ended its process, or raised. The model's doing."""


@dataclass(slots=True)
class _Host:
    process: subprocess.Popen[bytes]
    control: socket.socket
    scratch: str


class Enclosure:
    """Runs jobs for one module, which has `answer(job) -> dict`. Safe to be used by several threads."""

    def __init__(self, module: str, limits: Limits = LIMITS, job_seconds: float = JOB_SECONDS) -> None:
        self._module = module
        self._limits = limits
        self._job_seconds = job_seconds
        self._host: _Host | None = None
        self._lock = Lock()
        self.tier = ""
        """The layers in force, once a job was run."""

    def ask(self, job: Mapping[str, object]) -> JsonObject:
        """The answer to a job.

        Raises Stopped; Transient when no process could be had or it could not be confined: without a wall nothing runs;
        ContractBroken when the module can't be imported.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = self._order(b"start", theirs)
            try:
                raw = _converse(ours, json.dumps(job).encode(), time.monotonic() + self._job_seconds)
            finally:
                self._order(process)
        tier, confined, body = raw.partition(b"\n")
        if not confined:
            raise Transient("a benchmark's code could not be confined", "see docs/sandbox.md for what a machine needs")
        self.tier = tier.decode("ascii", "replace")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Stopped("the process ended without an answer: a limit, or the code's own doing") from error
        if not isinstance(answer, dict):
            raise Stopped("the answer is no object")
        if "failed" in answer:
            raise Stopped(str(answer["failed"])[:MAX_MESSAGE_CHARS])
        return answer

    def close(self) -> None:
        """End the host, and with it every job."""
        with self._lock:
            if self._host is not None:
                _end(self._host)
                self._host = None

    def _order(self, message: bytes, descriptor: socket.socket | None = None) -> bytes:
        """Have the host start a process on `descriptor`, or end one: its answer is the process's id."""
        with self._lock:
            if self._host is None:
                self._host = _start(self._module, self._limits)
            try:
                socket.send_fds(self._host.control, [message], [] if descriptor is None else [descriptor.fileno()])
                answer = self._host.control.recv(64)
            except OSError:
                answer = b""
            if not answer:
                _end(self._host)
                self._host = None
                raise Transient(f"the process that keeps {self._module} is gone")
            return answer


@cache
def enclosure(module: str) -> Enclosure:
    """The enclosure of a module: one for the whole program."""
    opened = Enclosure(module)
    atexit.register(opened.close)
    return opened


def _start(module: str, limits: Limits) -> _Host:
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    scratch = tempfile.mkdtemp(prefix="curateevo-enclosure-")
    request = {"module": module, "limits": asdict(limits), "scratch": scratch, "control": theirs.fileno()}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "curateevo_jobs.benchmarks.enclosed", json.dumps(request)],
            env=environment_of(scratch),
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    host = _Host(process, control, scratch)
    control.settimeout(START_SECONDS)
    try:
        ready = control.recv(64)
    except OSError:
        ready = b""
    control.settimeout(None)
    if ready:
        return host
    process.kill()
    said = process.communicate()[1].decode("utf-8", "replace").strip()
    _end(host)
    raise ContractBroken(f"{module} can't be imported: {said.splitlines()[-1] if said else 'it does not answer'}")


def environment_of(scratch: str) -> dict[str, str]:
    """What a process with a benchmark's code sees of the environment: nothing of ours."""
    return {
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PATH": "/nonexistent",
        "HOME": scratch,
        "TMPDIR": scratch,
        "BFCL_PROJECT_ROOT": scratch,  # bfcl-eval makes folders as it is imported, by default beside itself
    }


def _converse(channel: socket.socket, job: bytes, deadline: float) -> bytes:
    """Send a job, read until the other side is done. What a process that dies, or is late, had to say is kept."""
    raw = bytearray()
    with contextlib.suppress(OSError):
        channel.settimeout(max(0.01, deadline - time.monotonic()))
        channel.sendall(job)
        channel.shutdown(socket.SHUT_WR)
        while len(raw) <= MAX_ANSWER_BYTES:
            channel.settimeout(max(0.01, deadline - time.monotonic()))
            chunk = channel.recv(CHUNK_BYTES)
            if not chunk:
                return bytes(raw)
            raw += chunk
    return bytes(raw.partition(b"\n")[0] + b"\n") if b"\n" in raw else bytes(raw)


def _end(host: _Host) -> None:
    host.control.close()
    try:
        host.process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.kill(host.process.pid, 9)
        host.process.wait()
    if host.process.stderr is not None:
        host.process.stderr.close()
    shutil.rmtree(host.scratch, ignore_errors=True)
