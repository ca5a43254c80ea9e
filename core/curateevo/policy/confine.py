"""Confinement of the own process, for good: limits, user, Landlock, seccomp. No step needs root; none can be undone."""

from __future__ import annotations

import contextlib
import ctypes
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
CLONE_THREAD = 0x00010000
NOBODY = 65534
DENIED_CALLS = (
    "socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg",
    "recvfrom", "recvmsg", "recvmmsg", "io_uring_setup", "io_uring_enter", "io_uring_register",
    "fork", "vfork", "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_open",
    "pidfd_getfd", "pidfd_send_signal", "kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "move_mount", "open_tree", "fsopen", "fsmount",
    "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key", "open_by_handle_at",
    "name_to_handle_at", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
    "swapon", "swapoff", "acct", "quotactl", "syslog", "settimeofday", "clock_settime", "adjtimex", "sethostname",
    "setdomainname", "iopl", "ioperm", "setrlimit", "setpriority", "sched_setaffinity", "sched_setscheduler",
    "chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "mknod", "mknodat", "setxattr",
    "lsetxattr", "fsetxattr", "removexattr", "utime", "utimes", "utimensat", "futimesat", "memfd_create",
    "shmget", "shmat", "msgget", "semget", "mq_open", "setuid", "setgid", "setreuid", "setregid", "setresuid",
    "setresgid", "setgroups", "capset", "personality", "inotify_init1", "fanotify_init", "vmsplice",
)  # fmt: skip


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


def confine_self(limits: Limits, scratch: Path) -> str:
    """Apply every layer that this machine has; returns them as text, e.g. `rlimits+nobody+landlock6+seccomp`.

    Raises OSError when not even limits and seccomp can be had: without a wall no policy is run.
    """
    sys.dont_write_bytecode = True
    os.environ.clear()
    os.chdir(scratch)
    layers = ["rlimits"]
    _apply_limits(limits)
    if os.getuid() == 0 and _become_nobody(scratch):
        layers.append("nobody")
    refuse_inspection()
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if (abi := _landlock(scratch)) > 0:
        layers.append(f"landlock{abi}")
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


def _become_nobody(scratch: Path) -> bool:
    try:
        os.chown(scratch, NOBODY, NOBODY)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except PermissionError:
        return False
    return True


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _landlock(scratch: Path) -> int:
    """Allow files below `scratch` and no others, not even to read; 0 where the kernel has no Landlock."""
    if sandlock is None:
        return 0
    abi = int(sandlock.landlock_abi_version())
    if abi < 1:
        return 0
    rules = sandlock.Sandbox(fs_writable=[str(scratch)], allow_degraded=list(sandlock.Protection))
    try:
        sandlock.confine(rules)
    except sandlock.SandlockError:
        return 0
    return abi


def _seccomp() -> None:
    errno_eperm = seccomp.ERRNO(1)
    rules: Any = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in DENIED_CALLS:
        with contextlib.suppress(ValueError, RuntimeError, OSError):  # a call that this architecture does not have
            rules.add_rule(errno_eperm, name)
    rules.add_rule(seccomp.ERRNO(38), "clone3")  # ENOSYS: libc falls back to clone, whose flags can be looked at
    rules.add_rule(errno_eperm, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_THREAD, 0))
    rules.add_rule(errno_eperm, "prlimit64", seccomp.Arg(2, seccomp.NE, 0))
    rules.load()
