"""The places where attacks are run: as root, as a user, with and without Landlock, in a pod."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.escape.layers import LAYERS
from tests.escape.world import world

ROOT = Path(__file__).resolve().parents[2]
UID = 54321
"""A user that no machine knows."""
FILES = ("__init__.py", "armed.py", "attacks.py", "benign.py", "runner.py", "world.py")
NOBODY, USER, USER_PLAIN, POD, POD_PLAIN = "root", "user", "user, no Landlock", "pod", "pod, no Landlock"
LOCAL, IN_PODS = (NOBODY, USER, USER_PLAIN), (POD, POD_PLAIN)
TIERS = {
    NOBODY: r"process\+rlimits\+nobody(\+landlock[0-9]+)?\+seccomp",
    USER: r"process\+rlimits(\+landlock[0-9]+)?\+seccomp",
    USER_PLAIN: r"process\+rlimits\+seccomp",
    POD: r"process\+rlimits(\+landlock[0-9]+)?\+seccomp",
    POD_PLAIN: r"process\+rlimits\+seccomp",
}
"""What the sandbox says of itself there."""
ENTER = f"""
set -e
exec 3</root
mount -t tmpfs -o mode=755 tmpfs /root
for path in "$@"; do
  test "$path" = -- && break
  case "$path" in /root/*) mkdir -p "$path"; mount -c --bind "/proc/self/fd/3/${{path#/root/}}" "$path";; esac
  shift
done
shift
exec 3<&-
exec setpriv --reuid={UID} --regid={UID} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all env -i "$@"
"""
"""A mount namespace in which a user can read the Python and the sources that lie below /root, and nothing else there."""


def arguments(tier: str) -> list[str]:
    """Of the runner."""
    return ["--wall", "without-landlock"] if tier in (USER_PLAIN, POD_PLAIN) else []


def run(tier: str, *more: str, seconds: float = 900.0) -> dict[str, Any]:
    """What the runner says at a tier of this machine. As root it runs as root, or as a user; else as who it is."""
    command = [sys.executable, "-m", "tests.escape.runner", *arguments(tier), *more]
    environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if tier != NOBODY and os.getuid() == 0:
        given = [f"{name}={value}" for name, value in environment.items()]
        seen = [sys.prefix, sys.base_prefix, str(ROOT), "--"]
        command = ["unshare", "-m", "--propagation", "private", "bash", "-c", ENTER, "x", *seen, *given, *command]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode != 0:
        raise AssertionError(f"{tier}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def whole(tier: str) -> list[str]:
    """Arguments for all that a tier matters for; at the first one, for all."""
    return ["--benign", "--shared"] + ([] if tier == NOBODY else ["--everywhere"])


def layers() -> dict[str, dict[str, str]]:
    """What each layer stops by itself: layer to probe to `held` or `open`. Needs root."""
    with world() as there, socket.socket(socket.AF_UNIX) as abstract:
        private = there.folder / "private.txt"
        private.write_text("x")
        private.chmod(0o600)
        abstract.bind(f"\0{there.abstract}-layers")
        abstract.listen()
        facts = {
            "open": str(there.secret), "private": str(private), "folder": str(there.out), "pid": os.getpid(),
            "tcp": there.tcp, "abstract": f"{there.abstract}-layers",
        }  # fmt: skip
        return {name: json.loads(_layer(name, json.dumps(facts))) for name in LAYERS}


def calls() -> list[int]:
    """System calls that are not listed, and not refused."""
    found: list[int] = json.loads(_layer("calls", ""))
    return found


def _layer(name: str, facts: str) -> str:
    command = [sys.executable, "-I", str(Path(__file__).with_name("layers.py")), name, facts]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd="/").stdout
