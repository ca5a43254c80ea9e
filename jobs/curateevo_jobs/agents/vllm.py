"""A vLLM server for one model folder: started, checked that it serves these very weights, and always stopped.

The server has a process group of its own and dies with this process (PR_SET_PDEATHSIG), also on SIGKILL.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import IO

from curateevo.api.errors import ContractBroken, Transient
from curateevo_jobs.agents.hardware import LOOPBACK, count_gpus, free_port
from curateevo_jobs.agents.identity import digest_model, served_name

PR_SET_PDEATHSIG = 1
PROBE_SECONDS = 5.0
"""How long a server may take to say which models it serves."""
STOP_SECONDS = 20.0
"""How long the group may take to end after SIGTERM, before SIGKILL."""
LOG_LINES = 15
"""Last lines of the server's log that an error shows."""
CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
OFFLINE_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
CPU_ARGUMENTS = ("--enforce-eager", "--max-num-seqs", "16")
"""Eager: otherwise torch compiles with g++, which slim images lack."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready."""

    base_url: str
    model: str
    """The served name: it is derived from the model's files."""
    process_group: int


@contextmanager
def serve(
    folder: Path, *, arguments: Sequence[str], chat_template: str | None, start_seconds: float, scratch: Path
) -> Iterator[Server]:
    """Serve the model in `folder` while the context lasts.

    Raises Transient when the server ends or is not ready within `start_seconds`, with its last log lines, and
    ContractBroken when it serves another model.
    """
    name = served_name(digest_model(folder))
    scratch.mkdir(parents=True, exist_ok=True)
    port = free_port()
    log = scratch / f"vllm-{name[7:15]}-{port}.log"
    with log.open("wb") as output:
        process = start(
            server_command(folder, name, LOOPBACK, port, with_template(arguments, chat_template, scratch)), output
        )
    try:
        base_url = f"http://{LOOPBACK}:{port}/v1"
        _await_ready(process, base_url, name, log, start_seconds)
        yield Server(base_url, name, process.pid)
    finally:
        stop(process)


def with_template(arguments: Sequence[str], chat_template: str | None, scratch: Path) -> list[str]:
    """The arguments, with the chat template as a file where there is one."""
    if chat_template is None:
        return list(arguments)
    path = scratch / f"template-{sha256(chat_template.encode()).hexdigest()[:16]}.jinja"
    path.write_text(chat_template, encoding="utf-8")
    return ["--chat-template", str(path), *arguments]


def server_command(folder: Path, name: str, host: str, port: int, arguments: Sequence[str]) -> list[str]:
    """The server's command. `arguments` come last, so that they win."""
    config = json.loads((folder / "config.json").read_text())
    dtype = config.get("dtype") or config.get("torch_dtype") or "auto"
    return [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *("--model", str(folder), "--served-model-name", name),
        *("--host", host, "--port", str(port)),
        *("--dtype", str(dtype), "--generation-config", "vllm"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *(() if count_gpus() else CPU_ARGUMENTS),
        *arguments,
    ]


def start(command: Sequence[str], output: IO[bytes] | int, **variables: str) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own; in its environment `variables` win, then what this process was
    given. All that it says goes to `output`."""
    mine = {} if count_gpus() else CPU_ENVIRONMENT
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**mine, **OFFLINE_ENVIRONMENT, **os.environ, **variables},
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def _die_with_parent() -> None:
    """In the child: ask the kernel for SIGTERM when the parent is gone; vLLM then ends its engine as well."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _await_ready(process: subprocess.Popen[bytes], base_url: str, name: str, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        served = served_models(base_url)
        if served is not None:
            if served != [name]:
                raise ContractBroken(f"the server at {base_url} serves {served}, not {name}")
            return
        try:
            code = process.wait(timeout=min(0.5, max(0.05, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            continue
        raise Transient(f"the vLLM server ended with {code} before it was ready\n{_tail(log)}")
    raise Transient(
        f"the vLLM server was not ready within {seconds:.0f} s\n{_tail(log)}",
        "raise deadlines.serveStartSeconds",
    )


def served_models(base_url: str) -> list[str] | None:
    """Ids of the served models; None when the server does not answer yet."""
    try:
        with urllib.request.urlopen(f"{base_url}/models", timeout=PROBE_SECONDS) as response:
            return [str(m["id"]) for m in json.load(response)["data"]]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: politely, then at once. Returns when its leader is gone."""
    for stop, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        try:
            os.killpg(process.pid, stop)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
