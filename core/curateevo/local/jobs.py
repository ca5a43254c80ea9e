"""Jobs as subprocesses. A job dies with the loop that started it; the next loop sees it as lost and starts it again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curateevo.api.stage import StageRequest
from curateevo.evolution.decision import JobState
from curateevo.evolution.pods import DEFAULT_ENVIRONMENT
from curateevo.loop.observe import JobSeen
from curateevo.policy.confine import die_with_parent

STOP_SECONDS = 10.0
LOG_TAIL_BYTES = 4000
REQUEST, STARTED, EXITED, TERMINATION, LOG = (
    "request.json",
    "started.json",
    "exit.json",
    "termination.json",
    "log.txt",
)
ProgressLine = Callable[[str, dict[str, Any]], None]


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    reader: threading.Thread


@dataclass(slots=True)
class LocalJobs:
    """Jobs below `root`, one folder each, named like the cluster's."""

    root: Path
    on_progress: ProgressLine = lambda name, line: None
    _running: dict[str, _Running] = field(default_factory=dict)

    def start(self, name: str, request: StageRequest) -> None:
        """Start a job unless it runs already. A lost one starts again in the same folder."""
        if name in self._running:
            return
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (EXITED, TERMINATION):
            (folder / stale).unlink(missing_ok=True)
        (folder / REQUEST).write_text(json.dumps(request.to_wire()), encoding="utf-8")
        scratch = folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        command = [
            sys.executable,
            "-m",
            "curateevo_jobs",
            request.params.stage,
            "--request",
            str(folder / REQUEST),
        ]
        command += ["--termination-log", str(folder / TERMINATION), "--progress", "json"]
        environment = {**os.environ, "CURATEEVO_SCRATCH": str(scratch), "PYTHONUNBUFFERED": "1"}
        for variable, value in DEFAULT_ENVIRONMENT.items():
            environment.setdefault(variable, value)
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        (folder / STARTED).write_text(
            json.dumps({"pid": process.pid, "start": _start_ticks(process.pid), "time": time.time()})
        )
        reader = threading.Thread(target=self._read, args=(name, process), daemon=True)
        reader.start()
        self._running[name] = _Running(process, reader)

    def seen(self, name: str) -> JobSeen:
        """The state of a job."""
        folder = self.root / name
        running = self._running.get(name)
        if running is not None:
            if running.process.poll() is None:
                return JobSeen(JobState.RUNNING, since=self._time(folder))
            self._reap(name, running)
        if (code := _read_json(folder / EXITED).get("code")) is not None:
            state = JobState.SUCCEEDED if code == 0 else JobState.FAILED
            return JobSeen(state, code, self._message(folder, code), _read_json(folder / EXITED).get("time"))
        return JobSeen(JobState.LOST if (folder / STARTED).exists() else JobState.ABSENT)

    def stop(self, name: str) -> None:
        """End a job and its whole group, politely first. It is lost, not failed."""
        running = self._running.pop(name, None)
        if running is None:
            return
        _end_group(running.process)
        running.reader.join(timeout=STOP_SECONDS)

    def stop_all(self) -> None:
        for name in list(self._running):
            self.stop(name)

    def clear_orphans(self) -> None:
        """End jobs that an earlier loop left running: it was killed in a way that spared them."""
        for started in self.root.glob(f"*/{STARTED}"):
            noted = _read_json(started)
            pid = noted.get("pid")
            if (started.parent / EXITED).exists() or not isinstance(pid, int):
                continue
            if _start_ticks(pid) == noted.get("start") is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)

    @property
    def active(self) -> bool:
        return any(r.process.poll() is None for r in self._running.values())

    def _reap(self, name: str, running: _Running) -> None:
        running.reader.join(timeout=STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(running.process.pid, signal.SIGKILL)
        folder = self.root / name
        partial = folder / f".{EXITED}"
        partial.write_text(json.dumps({"code": running.process.returncode, "time": time.time()}))
        partial.replace(folder / EXITED)
        shutil.rmtree(folder / "scratch", ignore_errors=True)
        del self._running[name]

    def _read(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            with contextlib.suppress(ValueError):
                line = json.loads(raw)
                if isinstance(line, dict):
                    self.on_progress(name, line)
        process.stdout.close()

    def _time(self, folder: Path) -> float | None:
        return _read_json(folder / STARTED).get("time")

    def _message(self, folder: Path, code: int) -> str:
        if code == 0:
            return ""
        told = _read_json(folder / TERMINATION)
        if said := str(told.get("message", "")):
            return f"{said} (log: {folder / LOG})" if told.get("outcome") == "Bug" else said
        with contextlib.suppress(OSError):
            lines = (folder / LOG).read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip().splitlines()
            if lines:
                return f"exit code {code}: {lines[-1][:500]} (log: {folder / LOG})"
        return f"exit code {code}"


def _start_ticks(pid: int) -> str | None:
    """The kernel's start time of a process: tells it from another one with its number."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    return None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
