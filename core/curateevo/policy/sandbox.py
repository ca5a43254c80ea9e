"""Running a policy: a separate process with an empty environment, watched, bounded and killed with its group."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from curateevo.api.errors import PolicyRejected, Transient
from curateevo.policy import recipe
from curateevo.policy.confine import Limits, die_with_parent
from curateevo.policy.recipe import Recipe
from curateevo.trajectories.corpus import read_features

MAX_ANSWER_BYTES = 1 << 30
MAX_PRINT_BYTES = 1 << 20
KEPT_PRINT_BYTES = 4096
CHUNK_BYTES = 1 << 16
REMEDIES = {
    "policy-error": "run `curateevo policy check FILE --corpus CORPUS` to see it again",
    "memory": "select on features first, and materialise less",
    "timeout": "do less work per item; check for loops without an end",
    "cpu": "do less work per item; check for loops without an end",
    "output": "print less: use ctx.log and ctx.metric",
    "policy-exit": "return from prune",
    "resources": "return what operators give",
}


@dataclass(frozen=True, slots=True)
class SandboxRun:
    """A finished run of a policy."""

    recipe: Recipe
    tier: str
    """The layers in force, e.g. `process+rlimits+nobody+landlock7+seccomp`."""
    printed: str
    """The end of what it printed."""
    seconds: float


def run_policy(
    policy: Path,
    corpus: Path,
    *,
    context: Path | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    timeout_seconds: float = 600.0,
    hash_seed: int = 0,
) -> SandboxRun:
    """Run the policy file on a corpus folder. Raises PolicyRejected when it broke its contract or its bounds, and
    Transient when the sandbox itself could not be started."""
    limits = limits or Limits()
    scratch = Path(tempfile.mkdtemp(prefix="curateevo-policy-"))
    started = time.monotonic()
    try:
        answer, printed, tier = _run_child(policy, corpus, context, seed, limits, timeout_seconds, hash_seed, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if "rejected" in answer:
        refused = answer["rejected"]
        raise _rejected(str(refused["rule"]), str(refused["message"]), refused["line"])
    turns = read_features(corpus)["turns"].to_list()
    return SandboxRun(recipe.decode(answer, turns), tier, printed, time.monotonic() - started)


def _run_child(
    policy: Path,
    corpus: Path,
    context: Path | None,
    seed: int,
    limits: Limits,
    timeout_seconds: float,
    hash_seed: int,
    scratch: Path,
) -> tuple[dict[str, Any], str, str]:
    read_end, write_end = os.pipe()
    request = {
        "policy": str(policy.resolve()),
        "corpus": str(corpus.resolve()),
        "context": str(context.resolve()) if context else None,
        "seed": seed,
        "limits": asdict(limits),
        "scratch": str(scratch),
        "answer_fd": write_end,
    }
    command = [sys.executable, "-I", "-m", "curateevo.policy.child", json.dumps(request)]
    environment = {
        "PYTHONHASHSEED": str(hash_seed),
        "POLARS_MAX_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": "/nonexistent",
    }
    try:
        child = subprocess.Popen(
            command,
            env=environment,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end,),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    except OSError as error:
        os.close(read_end)
        raise Transient(f"the sandbox could not be started: {error}") from error
    finally:
        os.close(write_end)
    try:
        raw, printed = _watch(child, read_end, timeout_seconds)
    finally:
        _kill_group(child)
        os.close(read_end)
    return _outcome(child, raw, printed)


def _watch(child: subprocess.Popen[bytes], answer: int, timeout_seconds: float) -> tuple[bytes, str]:
    """The answer and the end of what was printed, read until the child ends. Raises PolicyRejected at a bound."""
    raw, printed, total = bytearray(), b"", 0
    deadline = time.monotonic() + timeout_seconds
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(answer, selectors.EVENT_READ)
        selector.register(child.stdout, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise _rejected("timeout", f"the policy ran past its deadline of {timeout_seconds:g} s")
            for key, _ in selector.select(timeout=min(left, 1.0)):
                chunk = os.read(key.fd, CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fd == answer:
                    raw += chunk
                else:
                    total += len(chunk)
                    printed = (printed + chunk)[-KEPT_PRINT_BYTES:]
            if total > MAX_PRINT_BYTES:
                raise _rejected("output", f"the policy printed more than {MAX_PRINT_BYTES >> 20} MiB")
            if len(raw) > MAX_ANSWER_BYTES:
                raise _rejected("output", f"the policy returned more than {MAX_ANSWER_BYTES >> 20} MiB")
    child.wait()
    return bytes(raw), printed.decode("utf-8", "replace")


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.stdout is not None:
        child.stdout.close()


def _outcome(child: subprocess.Popen[bytes], raw: bytes, printed: str) -> tuple[dict[str, Any], str, str]:
    """The answer of a child that ended by itself. Its first line, the tier, says that the wall stood."""
    tier, confined, body = raw.partition(b"\n")
    if not confined:
        last = printed.strip().splitlines()[-1][:500] if printed.strip() else f"exit code {child.returncode}"
        raise Transient(f"the sandbox could not be set up: {last}")
    if not body:
        raise _death(child.returncode)
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise _rejected("resources", "the policy's answer was cut off") from error
    if not isinstance(answer, dict):
        raise _rejected("resources", "the policy's answer is no object")
    return answer, printed, f"process+{tier.decode('ascii', 'replace')}"


def _death(code: int) -> PolicyRejected:
    if code == -signal.SIGXCPU:
        return _rejected("cpu", "the policy used more CPU time than it may")
    if code in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
        return _rejected("memory", f"the policy's process died of {signal.Signals(-code).name}")
    return _rejected("policy-exit", f"the policy's process ended by itself ({code}) without an answer")


def _rejected(rule: str, message: str, line: int | None = None) -> PolicyRejected:
    return PolicyRejected(rule, message, REMEDIES.get(rule, ""), line)
