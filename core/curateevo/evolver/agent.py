"""The agent proposer: a coding agent, any command, rewrites the policy in a workspace on disk (see docs/evolver.md).

It runs in a session of its own with an environment of its own; its model is reached through a meter that holds the key.
At its end, or at its deadline, all of its processes are killed; then what it left in policy.py is judged.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from curateevo.api.errors import Denied, PolicyRejected, SpecInvalid, Transient
from curateevo.api.spec import AgentProgram, LlmBudget, LlmEndpoint
from curateevo.api.stage import PROPOSAL_REFUSED
from curateevo.evolver.llm import Limits
from curateevo.evolver.meter import Meter
from curateevo.evolver.proposal import Proposal, ProposalInput, ProposalRefused
from curateevo.evolver.spending import Ledger
from curateevo.evolver.workspace import ARCHIVE, POLICY, lay_out, read_bytes, read_plain
from curateevo.policy.confine import PR_SET_NO_NEW_PRIVS, die_with_parent
from curateevo.policy.source import MAX_SOURCE_BYTES
from curateevo.trajectories.model import JsonObject

PR_SET_CHILD_SUBREAPER = 36
MAX_LOG_BYTES = 1 << 20
MAX_ARCHIVE_BYTES, MAX_ARCHIVE_FILES = 32 << 20, 200
GRACE_SECONDS = 10.0
"""For an agent that is told that its budget is spent."""
POLL_SECONDS = 0.1
SAID_CHARS = 300
LOG = "agent.log"


@dataclass(frozen=True, slots=True)
class Ended:
    """How the agent's program ended."""

    how: str
    """`exit`, `deadline` or `budget`."""
    code: int
    log: bytes
    """The end of what it printed."""

    @property
    def text(self) -> str:
        said = " ".join(self.log.decode("utf-8", "replace").split())[-SAID_CHARS:]
        return f"the agent {self._way()}" + (f"; it said last: {said}" if said else "")

    def _way(self) -> str:
        match self.how:
            case "deadline":
                return "was ended at its deadline"
            case "budget":
                return "was ended as its budget was spent"
            case _:
                return f"ended with exit code {self.code}"


class AgentProposer:
    """Runs the agent once. `scratch`: an empty folder for it; `kept`: where its log and archive are left."""

    def __init__(
        self,
        program: AgentProgram,
        endpoint: LlmEndpoint,
        budget: LlmBudget,
        *,
        scratch: Path,
        kept: Path,
        corpus: Path | None = None,
        episodes: Iterable[JsonObject] = (),
        api_key: str = "",
        limits: Limits | None = None,
        recorded: Iterable[JsonObject] = (),
        record: Callable[[JsonObject], None] = lambda entry: None,
    ) -> None:
        self._program = program
        self._scratch, self._kept, self._corpus, self._episodes = scratch, kept, corpus, episodes
        ledger = Ledger(budget, endpoint.price)
        self._meter = Meter(endpoint, ledger, api_key=api_key, limits=limits, recorded=recorded, record=record)

    def propose(self, given: ProposalInput) -> Proposal:
        """The next policy. Raises ProposalRefused, Transient, Denied or SpecInvalid."""
        meter = self._meter
        folder, home, temporary = (self._scratch / name for name in ("workspace", "home", "tmp"))
        for made in (folder, home, temporary):
            made.mkdir()
        workspace = lay_out(folder, given, corpus=self._corpus, episodes=self._episodes)
        with meter.serving() as url:
            environment = self._environment(url, home, temporary)
            ended = run_agent(self._program, folder, environment, meter.spent)
        self._keep(folder / ARCHIVE, ended.log)
        try:
            source, claim = workspace.take()
        except PolicyRejected as error:
            raise self._refusal(folder, ended, error) from error
        spent = meter.ledger
        return Proposal(
            source,
            claim.method,
            claim.hypothesis,
            claim.expected,
            tokens=spent.tokens,
            usd=spent.usd,
            calls=spent.calls,
            transcript=tuple(meter.transcript),
        )

    def _environment(self, url: str, home: Path, temporary: Path) -> dict[str, str]:
        """Nothing of ours but where programs lie; what leads it to its model; what the spec gives."""
        meter = self._meter
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "LANG": "C.UTF-8",
            "OPENAI_BASE_URL": url,
            "OPENAI_API_BASE": url,
            "OPENAI_API_KEY": meter.token,
            "CURATEEVO_MODEL": meter.model,
            **self._program.env,
        }

    def _refusal(self, folder: Path, ended: Ended, error: PolicyRejected) -> Exception:
        """Why there is no proposal: the endpoint's fault, the budget's end, or the agent's."""
        meter = self._meter
        if meter.denied:
            return Denied(meter.denied, "check the key and the quota")
        if meter.failed and not meter.answered:
            return Transient(f"proposer.llm: {meter.failed}, and no call was answered", "it is tried again later")
        source = ""
        with contextlib.suppress(PolicyRejected):
            source = read_plain(folder / POLICY, MAX_SOURCE_BYTES)
        reason = "BudgetSpent" if meter.no_room else PROPOSAL_REFUSED
        text = "; ".join(filter(None, (meter.no_room, error.message, ended.text)))
        meter.transcript.append({"role": "check", "content": f"{reason}: {text}"})
        return ProposalRefused(reason, text, meter.ledger, tuple(meter.transcript), source)

    def _keep(self, archive: Path, log: bytes) -> None:
        """Keep the log, and the plain files of the archive as far as they are not too many or too large."""
        self._kept.mkdir(parents=True, exist_ok=True)
        (self._kept / LOG).write_bytes(log)
        left = MAX_ARCHIVE_BYTES
        if archive.is_symlink() or not archive.is_dir():
            return
        for path, name in islice(_files(archive), MAX_ARCHIVE_FILES):
            try:
                data = read_bytes(path, left)
            except PolicyRejected:
                continue
            left -= len(data)
            target = self._kept / ARCHIVE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def run_agent(program: AgentProgram, folder: Path, environment: dict[str, str], spent: threading.Event) -> Ended:
    """Run the program until it ends, its time is over, or a while after `spent`. None of its processes is left.

    Raises SpecInvalid for a program that is not there.
    """
    with _adopting():
        try:
            process = subprocess.Popen(
                program.command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_begin,
            )
        except (OSError, ValueError) as error:
            raise SpecInvalid(
                f"spec.proposer.agent.command: {program.command[0]!r} can't be run: {error}",
                "install it where propose runs, or name an image that has it in spec.templates.propose",
            ) from error
        log = bytearray()
        reader = threading.Thread(target=_read_log, args=(process, log), daemon=True)
        reader.start()
        try:
            how = _wait(process, program.timeout_seconds, spent)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    reader.join(timeout=GRACE_SECONDS)
    return Ended(how, process.returncode, bytes(log))


def _begin() -> None:
    """In the agent's process, before its program: it ends with us, and no program gives it another user's rights."""
    die_with_parent()
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _wait(process: subprocess.Popen[bytes], seconds: float, spent: threading.Event) -> str:
    deadline, told = time.monotonic() + seconds, False
    while process.poll() is None:
        if spent.is_set() and not told:
            told, deadline = True, min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            return "budget" if told else "deadline"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=POLL_SECONDS)
    return "exit"


def _read_log(process: subprocess.Popen[bytes], log: bytearray) -> None:
    assert process.stdout is not None
    with process.stdout:
        while chunk := os.read(process.stdout.fileno(), 1 << 16):
            log += chunk
            del log[:-MAX_LOG_BYTES]


@contextmanager
def _adopting() -> Iterator[None]:
    """Processes that left the agent's session come to us when their parents end: they are killed at the end, too."""
    libc, before = ctypes.CDLL(None), _children()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        while strays := _children() - before:
            for pid in strays:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children() -> set[int]:
    """Processes whose parent is this one."""
    own, out = str(os.getpid()), set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if path.read_text().rpartition(")")[2].split()[1] == own:
                out.add(int(path.parent.name))
    return out


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files below a folder, no link followed, in order, each with its path within."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root) / name
            yield path, path.relative_to(folder).as_posix()
