"""One layer at a time, so that none hides behind another: what each of them stops when it stands alone.

`python -I layers.py LAYER FACTS_JSON`, as root; prints which probes got through as JSON.
"""

from __future__ import annotations

import _thread
import ctypes
import encodings.idna  # noqa: F401  asked for by name when a socket connects
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyseccomp

from curateevo.policy import confine

LAYERS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "rlimits": lambda: confine._apply_limits(confine.Limits(memory_bytes=256 << 20, file_bytes=1 << 20)),
    "nobody": confine._become_nobody,
    "Landlock": confine._landlock,
    "seccomp": confine._seccomp,
}
LIMITED = ("tgkill", "prlimit64", "ioctl", "fcntl")
MAX_CALL = 700
NOT_FILTERED = (335, 336)
"""uretprobe and uprobe on x86-64: no filter is asked about them, and a caller that is no trampoline is killed."""
EPERM, ENOSYS = 1, 38


def probes(facts: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Each raises OSError, MemoryError or RuntimeError where it is held."""
    return {
        "reads a file that all may read": lambda: os.close(os.open(facts["open"], os.O_RDONLY)),
        "reads a file of root's alone": lambda: os.close(os.open(facts["private"], os.O_RDONLY)),
        "writes where all may write": lambda: os.close(
            os.open(f"{facts['folder']}/{os.getpid()}", os.O_WRONLY | os.O_CREAT)
        ),
        "learns whether a file is there": lambda: Path(facts["open"]).stat(),
        "writes more to an open file than it may": lambda: _write(facts["inherited"], 2 << 20),
        "signals a process of root's": lambda: os.kill(facts["pid"], 0),
        "becomes root": _become_root,
        "connects by TCP": lambda: socket.create_connection(("127.0.0.1", facts["tcp"]), 1).close(),
        "connects to an abstract socket": lambda: socket.socket(socket.AF_UNIX).connect("\0" + facts["abstract"]),
        "starts a process": _fork,
        "starts a thread": lambda: _thread.start_new_thread(lambda: None, ()),
        "takes 1 GiB": lambda: mmap.mmap(-1, 1 << 30).close(),
    }


def _write(fd: int, size: int) -> None:
    while size > 0:
        size -= os.write(fd, bytes(min(size, 1 << 20)))


def _become_root() -> None:
    os.setresuid(0, 0, 0)
    if os.geteuid() != 0:
        raise PermissionError


def _fork() -> None:
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def calls_that_are_not_refused() -> list[int]:
    """System calls, by number, that are not on the list and yet do not fail with EPERM."""
    listed = {_number(name) for name in (*confine.ALLOWED_CALLS, *LIMITED)}
    libc = ctypes.CDLL(None, use_errno=True)
    confine._seccomp()
    out = []
    for number in range(MAX_CALL):
        if number not in listed and number not in NOT_FILTERED:
            ctypes.set_errno(0)
            if libc.syscall(number, *[ctypes.c_long(-1)] * 6) != -1 or ctypes.get_errno() != EPERM:
                out.append(number)
    return out


def _number(name: str) -> int:
    try:
        return int(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name))
    except (ValueError, RuntimeError, OSError):
        return -1


def main() -> int:
    if sys.argv[1] == "calls":
        print(json.dumps(calls_that_are_not_refused()))
        return 0
    facts = json.loads(sys.argv[2])
    facts["inherited"] = os.open(Path(facts["folder"]) / "inherited", os.O_WRONLY | os.O_CREAT)
    tries = probes(facts)
    LAYERS[sys.argv[1]]()
    out = {}
    for name, probe in tries.items():
        try:
            probe()
            out[name] = "open"
        except (OSError, MemoryError, RuntimeError, ValueError):
            out[name] = "held"
    os.write(1, json.dumps(out).encode())
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
