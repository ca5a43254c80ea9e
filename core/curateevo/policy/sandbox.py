"""Running a policy: a separate process with an empty environment, watched, bounded and killed with its group."""

from __future__ import annotations

import contextlib
import json
import os
import re
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
from curateevo.trajectories.model import JsonObject

MAX_ANSWER_BYTES = 256 << 20
"""Ten bytes an item are little: this is a recipe of millions of rows, and as objects it still fits into memory."""
MAX_ANSWER_VALUES = 30_000_000
"""Three bytes can be an object of seventy. Nine values an item are usual."""
MAX_PRINT_BYTES = 1 << 20
KEPT_PRINT_BYTES = 4096
CHUNK_BYTES = 1 << 16
MAX_MESSAGE_CHARS = 1000
MAX_LINE = 1_000_000
CHILD = ("-I", "-m", "curateevo.policy.child")
END_SECONDS = 1.0
"""What a process may take to end once it has closed its pipes."""
RULE_NAME = r"[a-z][a-z-]{0,39}"
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
class Answer:
    """What one run of a policy left, not checked yet."""

    body: JsonObject
    """References into the corpus; or `rejected`, with rule, message and line."""
    tier: str
    """The layers in force, e.g. `process+rlimits+nobody+landlock7+seccomp`."""
    printed: str
    """The end of what it printed."""


@dataclass(frozen=True, slots=True)
class SandboxRun:
    """A finished run of a policy, checked."""

    recipe: Recipe
    tier: str
    printed: str


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
    answer = ask_policy(
        policy,
        corpus,
        context=context,
        seed=seed,
        limits=limits,
        timeout_seconds=timeout_seconds,
        hash_seed=hash_seed,
    )
    return check_answer(answer, read_features(corpus, ["turns"])["turns"].to_list())


def ask_policy(
    policy: Path,
    corpus: Path,
    *,
    context: Path | None = None,
    seed: int = 0,
    limits: Limits | None = None,
    timeout_seconds: float = 600.0,
    hash_seed: int = 0,
) -> Answer:
    """What the policy answers. Raises as `run_policy` does, and for its bounds only: the answer is not checked."""
    scratch = Path(tempfile.mkdtemp(prefix="curateevo-policy-"))
    try:
        return _run_child(policy, corpus, context, seed, limits or Limits(), timeout_seconds, hash_seed, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_answer(answer: Answer, turns: list[int]) -> SandboxRun:
    """An answer against the corpus (`turns` per row): the trusted side. Raises PolicyRejected."""
    if "rejected" in answer.body:
        raise parse_rejection(answer.body["rejected"])
    return SandboxRun(recipe.decode(answer.body, turns), answer.tier, answer.printed)


def parse_rejection(raw: Any) -> PolicyRejected:
    """What a sandbox says of its own refusal, bounded: it may be forged, and is shown to people and to the evolver."""
    if not isinstance(raw, dict) or not re.fullmatch(RULE_NAME, str(raw.get("rule"))):
        return rejected("resources", "what the policy's process says of its end can't be read")
    line = raw.get("line")
    message = recipe.clean_text(raw.get("message", ""), MAX_MESSAGE_CHARS)
    return rejected(raw["rule"], message, line if type(line) is int and 0 < line <= MAX_LINE else None)


def _run_child(
    policy: Path,
    corpus: Path,
    context: Path | None,
    seed: int,
    limits: Limits,
    timeout_seconds: float,
    hash_seed: int,
    scratch: Path,
) -> Answer:
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
    command = [sys.executable, *CHILD, json.dumps(request)]
    environment = {
        "PYTHONHASHSEED": str(hash_seed),
        "POLARS_MAX_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": "/nonexistent",
        "HOME": str(scratch),  # libraries ask for it as they are loaded, and in a pod no user's name leads to one
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
                raise _late(timeout_seconds)
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
                raise rejected("output", f"the policy printed more than {MAX_PRINT_BYTES >> 20} MiB")
            if len(raw) > MAX_ANSWER_BYTES:
                raise rejected("output", f"the policy returned more than {MAX_ANSWER_BYTES >> 20} MiB")
    try:
        child.wait(timeout=max(END_SECONDS, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise _late(timeout_seconds) from error
    return bytes(raw), printed.decode("utf-8", "replace")


def _late(timeout_seconds: float) -> PolicyRejected:
    return rejected("timeout", f"the policy ran past its deadline of {timeout_seconds:g} s")


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.stdout is not None:
        child.stdout.close()


def _outcome(child: subprocess.Popen[bytes], raw: bytes, printed: str) -> Answer:
    """The answer of a child that ended by itself. Its first line, the tier, says that the wall stood."""
    tier, confined, body = raw.partition(b"\n")
    if not confined:
        last = printed.strip().splitlines()[-1][:500] if printed.strip() else f"exit code {child.returncode}"
        raise Transient(f"the sandbox could not be set up: {last}")
    if not body:
        raise _death(child.returncode)
    if sum(body.count(character) for character in b"[{,") > MAX_ANSWER_VALUES:
        raise rejected("output", f"the policy returned more than {MAX_ANSWER_VALUES} values")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise rejected("resources", "the policy's answer was cut off") from error
    if not isinstance(answer, dict):
        raise rejected("resources", "the policy's answer is no object")
    return Answer(answer, f"process+{tier.decode('ascii', 'replace')}", printed)


def _death(code: int) -> PolicyRejected:
    if code == -signal.SIGXCPU:
        return rejected("cpu", "the policy used more CPU time than it may")
    if code in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
        return rejected("memory", f"the policy's process died of {signal.Signals(-code).name}")
    return rejected("policy-exit", f"the policy's process ended by itself ({code}) without an answer")


def rejected(rule: str, message: str, line: int | None = None) -> PolicyRejected:
    """A refusal with the rule's remedy."""
    return PolicyRejected(rule, message, REMEDIES.get(rule, ""), line)
