"""What an attack could reach: secrets, files, servers, other processes. And whether it did."""

from __future__ import annotations

import _ctypes
import contextlib
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from curateevo.policy.confine import NOBODY
from curateevo.trajectories.corpus import DEV_PROMPTS, write_trajectories
from curateevo.trajectories.features import features_of
from curateevo.trajectories.grace import grace_columns
from curateevo.trajectories.model import Call, RunOutcome, TaskRef, Trajectory, Turn

ESCAPED, CANARY = "ESCAPED", "CANARY-"
KEY = "AWS_SECRET_ACCESS_KEY"
DYING_SECONDS = 5.0
"""What a killed process may take to be gone."""
PEAK_BYTES = 900 << 20
"""Of a process that may use 256 MiB beside its libraries."""
DEV = {"dev-1": "please use value4 now"}


def write_corpus(folder: Path, sealed: str) -> None:
    """Twelve trajectories of two families, some of them wrong; the last one without an environment."""
    tools = tuple(
        {"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {"x": {}}}}}
        for n in "fg"
    )
    made = []
    for number in range(12):
        name, wrong = "fg"[number % 2], number % 4 == 3
        asked = f"please use value{number} now"
        call = Call("c", name, f'{{"x": "value{number}"}}')
        made.append(
            Trajectory(
                id=f"t{number}",
                source=f"x:{number}",
                task=TaskRef(
                    f"task{number}", asked, *(("toolworld", sealed) if number < 11 else (None, None)), (name,)
                ),
                tools=tools,
                system=None,
                head=(asked,),
                turns=(
                    Turn((), "", (call,), ("error" if wrong else f"ok value{number} code k{number}",)),
                    Turn((), "Done."),
                ),
                outcome=RunOutcome(not wrong),
            )
        )
    folder.mkdir()
    write_trajectories(made, folder)
    features = features_of(made)
    signals = np.eye(4, dtype=np.float32)[np.arange(features["turns"].sum()) % 4]
    features.hstack(grace_columns(features, signals)).write_parquet(folder / "features.parquet")


class World:
    """Canaries in a folder that everybody may look into, servers that count, and a process to be hurt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._peak_before = _peak_bytes()
        self.hits: list[str] = []
        self.secrets = {
            name: CANARY + name + secrets.token_hex(8) for name in ("file", "env", "sealed", "dev", "request", "other")
        }
        folder.chmod(0o755)
        self.corpus = folder / "corpus"
        write_corpus(self.corpus, json.dumps({"answer": self.secrets["sealed"]}))
        (self.corpus / DEV_PROMPTS).write_text(json.dumps({"dev-2": self.secrets["dev"]}))
        self.out, self.secret, self.request, self.loose = (
            folder / n for n in ("out", "secret.txt", "request.json", "loose")
        )
        self.library = folder / "library.so"
        shutil.copy(_ctypes.__file__, self.library)
        self.code = folder / "code.py"
        self.code.write_text("x = 1")
        self.uid = NOBODY if os.getuid() == 0 else os.getuid()
        self._lay_out()
        self.secret.write_text(self.secrets["file"])
        self.request.write_text(json.dumps({"key": self.secrets["request"]}))
        self._real_key = os.environ.get(KEY)
        os.environ[KEY] = self.secrets["env"]
        self._servers = list(self._listen())
        self.victim = self._start_victim()

    def _start_victim(self) -> subprocess.Popen[bytes]:
        """A process of the policy's user, with a secret in its environment."""
        who: dict[str, Any] = {"user": self.uid, "group": self.uid, "extra_groups": []} if os.getuid() == 0 else {}
        return subprocess.Popen(
            ["sleep", "100000"], env={"KEY": self.secrets["other"]}, stdin=subprocess.DEVNULL, cwd="/", **who
        )

    def _lay_out(self) -> None:
        """Two folders that the policy's user may write to: an empty one, and one with files of its own."""
        for folder in (self.out, self.loose):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for name in ("changed", "moved", "gone"):
            (self.loose / name).write_text("loose")
        if os.getuid() == 0:
            for path in (self.out, self.loose, *self.loose.iterdir()):
                os.chown(path, self.uid, self.uid)
        self._laid_out = self._state()

    def _state(self) -> list[tuple[Any, ...]]:
        found = [(p, p.lstat()) for folder in (self.out, self.loose) for p in (folder, *sorted(folder.glob("*")))]
        return [
            (str(p.relative_to(self.folder)), s.st_mode, s.st_uid, s.st_size, s.st_mtime_ns, s.st_nlink)
            for p, s in found
        ]

    def _listen(self) -> Iterator[socket.socket]:
        self.mark = self.abstract = f"curateevo-{secrets.token_hex(4)}"
        tcp = socket.create_server(("127.0.0.1", 0))
        udp = socket.socket(type=socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        unix.bind(str(self.folder / "socket"))
        (self.folder / "socket").chmod(0o777)
        abstract.bind(f"\0{self.abstract}")
        self.tcp, self.udp = tcp.getsockname()[1], udp.getsockname()[1]
        for kind, server in (("TCP", tcp), ("UDP", udp), ("unix", unix), ("abstract unix", abstract)):
            if kind != "UDP":
                server.listen()
            threading.Thread(target=self._count, args=(kind, server), daemon=True).start()
            yield server

    def _count(self, kind: str, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                if kind == "UDP":
                    server.recvfrom(100)
                else:
                    server.accept()[0].close()
                self.hits.append(kind)

    def fill(self, source: str) -> str:
        names = {
            "SECRET": self.secret, "CORPUS": self.corpus, "OUT": self.out, "REQUEST": self.request, "LOOSE": self.loose, "LIBRARY": self.library, "CODE": self.code,
            "TCP": self.tcp, "UDP": self.udp, "UNIX": self.folder / "socket", "ABSTRACT": self.abstract, "MARK": self.mark,
            "VICTIM": self.victim.pid, "PARENT": os.getpid(),
        }  # fmt: skip
        for name, value in names.items():
            source = source.replace(f"${name}", str(value))
        return source

    def leaks(self, said: str) -> list[str]:
        """What a text shows that it must not."""
        found = [f"it said {said[said.index(ESCAPED) : said.index(ESCAPED) + 120]!r}"] if ESCAPED in said else []
        return found + [f"it knows the secret of {name}" for name, value in self.secrets.items() if value in said]

    def damage(self, policy: Path) -> list[str]:
        """What an attack has changed; put right again, for the next one."""
        found = [f"connected: {kind}" for kind in self.hits]
        self.hits.clear()
        if (state := self._state()) != self._laid_out:
            found.append(f"changed files: {sorted({line[0] for line in set(state) ^ set(self._laid_out)})}")
            self._lay_out()
        for path in [p for f in ("/tmp", "/dev/shm") for p in Path(f).glob(f"{self.mark}*")]:
            found.append(f"made {path}")
            path.unlink()
        if self.secret.read_text() != self.secrets["file"]:
            found.append("overwrote the secret")
            self.secret.write_text(self.secrets["file"])
        if self.victim.poll() is not None:
            found.append("killed a process")
            self.victim = self._start_victim()
        deadline = time.monotonic() + DYING_SECONDS
        while (survivors := _started_with(str(policy))) and time.monotonic() < deadline:
            time.sleep(0.02)
        if survivors:
            found.append(f"{len(survivors)} processes survive")
            for pid in survivors:
                os.kill(pid, signal.SIGKILL)
        if (peak := _peak_bytes()) > max(PEAK_BYTES, self._peak_before):
            found.append(f"a peak of {peak >> 20} MiB (this attack, or one before)")
        return found

    def close(self) -> None:
        os.environ.pop(KEY)
        if self._real_key is not None:
            os.environ[KEY] = self._real_key
        self.victim.kill()
        self.victim.wait()
        for server in self._servers:
            server.close()


def _peak_bytes() -> int:
    """Of this process and of the largest of its children, other tests' among them."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)) << 10


def _started_with(text: str) -> list[int]:
    """Processes that still run and have this text in their command."""
    out = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                out.append(int(path.parent.name))
    return out


@contextlib.contextmanager
def world() -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="curateevo-escape-"))
    made = World(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)
