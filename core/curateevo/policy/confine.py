"""Confinement of the own process, for good: limits, user, Landlock, seccomp. No step needs root; none can be undone.

Landlock and seccomp hold for the thread that asks for them and for what it starts: a process that has other threads
already is not confined (see docs/sandbox.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyseccomp as seccomp

try:
    import sandlock
except (ImportError, OSError):
    sandlock = None

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE = 1, 38, 4
NOBODY = 65534
TCGETS = 0x5401
ALLOWED_CALLS = (
    "read", "readv", "pread64", "write", "writev", "close", "fstat", "lseek",
    "mmap", "munmap", "mremap", "mprotect", "madvise", "brk",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall",
    "futex", "sched_yield", "sched_getaffinity", "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep",
    "gettimeofday", "time", "getrandom", "getrusage", "getrlimit",
    "getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "exit", "exit_group",
)  # fmt: skip
"""What Python needs once everything is loaded: memory, open pipes, time. Whatever is not listed fails with EPERM: no
file is opened, looked at or made, no socket, no process, no thread; also what later kernels bring."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a policy may use. Memory is counted on top of the interpreter and the corpus."""

    memory_bytes: int = 2 << 30
    cpu_seconds: int = 600
    file_bytes: int = 64 << 20
    open_files: int = 64


def die_with_parent() -> None:
    """In a new child: ask the kernel for SIGKILL when the parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def refuse_inspection() -> None:
    """Keep other processes of this user out of this one's memory: they may be a policy that got out of its sandbox."""
    _prctl(PR_SET_DUMPABLE, 0)


def confine_self(limits: Limits, scratch: Path, answer_fd: int) -> str:
    """Apply every layer that this machine has; returns them as text, e.g. `rlimits+nobody+landlock6+seccomp`.

    Of the open files, the standard ones and `answer_fd` are kept. Raises OSError when not even limits and seccomp can
    be had, or when they would not hold for every thread: without a wall no policy is run.
    """
    parent = os.getppid()
    sys.dont_write_bytecode = True
    os.environ.clear()
    os.chdir(scratch)
    os.closerange(3, answer_fd)
    os.closerange(answer_fd + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    layers = ["rlimits"]
    _apply_limits(limits)
    if os.getuid() == 0 and _become_nobody():
        layers.append("nobody")
    refuse_inspection()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
    if os.getppid() != parent:
        raise OSError("the process that watches is gone")
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    with Path("/proc/self/stat").open() as stat:  # opened now: after Landlock it can only be read
        if (abi := _landlock()) > 0:
            layers.append(f"landlock{abi}")
        threads = int(stat.read().rpartition(")")[2].split()[17])
    if threads != 1:
        raise OSError(f"{threads} threads: the wall would not hold for all of them")
    _seccomp()
    return "+".join([*layers, "seccomp"])


def _apply_limits(limits: Limits) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _lower(resource.RLIMIT_AS, used + limits.memory_bytes)
    _lower(resource.RLIMIT_CPU, limits.cpu_seconds, grace=1)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_MEMLOCK, 0)
    _lower(resource.RLIMIT_MSGQUEUE, 0)


def _lower(kind: int, value: int, grace: int = 0) -> None:
    """Set a limit for good; the hard one is `grace` higher, so that the soft one's signal tells the reason."""
    hard = resource.getrlimit(kind)[1]
    bound = value + grace if hard == resource.RLIM_INFINITY else min(value + grace, hard)
    resource.setrlimit(kind, (min(value, bound), bound))


def _become_nobody() -> bool:
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:  # a root without the right to, or in a user namespace that has no nobody
        return False
    return True


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _landlock() -> int:
    """Allow no file at all, not even to read; 0 where the kernel has no Landlock."""
    if sandlock is None:
        return 0
    abi = int(sandlock.landlock_abi_version())
    if abi < 1:
        return 0
    try:
        sandlock.confine(sandlock.Sandbox(allow_degraded=list(sandlock.Protection)))
    except sandlock.SandlockError:
        return 0
    return abi


def _seccomp() -> None:
    rules: Any = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in ALLOWED_CALLS:
        with contextlib.suppress(ValueError, RuntimeError, OSError):  # a call that this architecture does not have
            rules.add_rule(seccomp.ALLOW, name)
    rules.add_rule(seccomp.ALLOW, "tgkill", seccomp.Arg(0, seccomp.EQ, os.getpid()))  # abort() of one's own
    rules.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(2, seccomp.EQ, 0))  # look at limits, change none
    rules.add_rule(seccomp.ALLOW, "ioctl", seccomp.Arg(1, seccomp.EQ, TCGETS))  # isatty()
    for command in (fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL):  # not F_SETOWN: it has the kernel signal others
        rules.add_rule(seccomp.ALLOW, "fcntl", seccomp.Arg(1, seccomp.EQ, command))
    rules.load()
