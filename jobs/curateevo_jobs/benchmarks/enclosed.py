"""The other side of `enclosure.py`: keeps a module at hand, and forks a confined process for each job.

Started as `python -I -m curateevo_jobs.benchmarks.enclosed REQUEST_JSON`. Over the control socket comes `start` with a
descriptor, or the id of a process to end; both are answered with the id. A process is reaped when it is ended and not
before, so that an id never names another one. The end of the control socket is the end of all.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType

from curateevo.policy.confine import Limits, confine_self


def main() -> int:
    request = json.loads(sys.argv[1])
    module = importlib.import_module(request["module"])
    limits = Limits(**request["limits"])
    control = socket.socket(fileno=request["control"])
    null = os.open(os.devnull, os.O_RDWR)
    control.send(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            return 0
        if descriptors:
            process = os.fork()
            if process == 0:
                os.dup2(null, 2)
                serve(module, descriptors[0], limits, Path(request["scratch"]))
            os.close(descriptors[0])
        else:
            process = int(message)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        control.send(str(process).encode())


def serve(module: ModuleType, channel: int, limits: Limits, scratch: Path) -> None:
    """Confine this process, say by which layers, do one job, end."""
    try:
        tier = confine_self(limits, scratch, channel)
        send(channel, f"{tier}\n".encode())
        job = json.loads(receive(channel))
        try:
            answer = module.answer(job)
        except BaseException as error:  # noqa: BLE001  the sandbox's edge: whatever a model's text raises is a result
            answer = {"failed": f"{type(error).__name__}: {error}"}
        send(channel, json.dumps(answer).encode())
    finally:
        os._exit(0)


def send(channel: int, data: bytes) -> None:
    while data:
        data = data[os.write(channel, data) :]


def receive(channel: int) -> bytes:
    """All that comes until the other side is done. Plain reads: `recv` is not among the allowed calls."""
    chunks = []
    while chunk := os.read(channel, 1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


if __name__ == "__main__":
    sys.exit(main())
