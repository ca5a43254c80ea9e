"""The folders between the trusted and the untrusted containers of a curate pod.

`visible` is written by the trusted side and mounted read-only beside the policy: its source, the corpus, the context,
the settings. `answers` is written beside the policy, so that whatever lies in it may be forged, of any size, or no
regular file at all.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from curateevo.api.errors import ContractBroken, PolicyRejected, Transient
from curateevo.policy.confine import Limits
from curateevo.policy.gate import HASH_SEEDS, GateSettings
from curateevo.policy.recipe import clean_text
from curateevo.policy.sandbox import KEPT_PRINT_BYTES, MAX_ANSWER_BYTES, Answer, rejected

POLICY, CONTEXT, SETTINGS = "policy.py", "context.json", "settings.json"
CONTEXT_AGAIN = "context-again.json"
"""Of the second pass; only where the first one has requested rewrites."""
DONE, READY = "done", "ready"
"""In `visible`: there is nothing to do; all is laid out."""
ANSWERED = "answered"
"""In `answers`: nothing more will come."""
MAX_FILE_BYTES = MAX_ANSWER_BYTES + (1 << 20)
TIER = re.compile(r"[a-z0-9+]{1,100}")
FORGED_TIER = "unknown"
POLL_SECONDS = 0.5


def await_any(paths: Sequence[Path], seconds: float, poll_seconds: float = POLL_SECONDS) -> None:
    """Return when one of the paths exists: steps in pods of their own wait for each other. Raises Transient."""
    deadline = time.monotonic() + seconds
    while not any(os.path.lexists(path) for path in paths):
        if time.monotonic() >= deadline:
            raise Transient(f"the step before has left nothing within {seconds:g} s")
        time.sleep(poll_seconds)


def write_settings(visible: Path, settings: GateSettings) -> None:
    """How the policy is to be run."""
    (visible / SETTINGS).write_text(json.dumps(asdict(settings)), encoding="utf-8")


def read_settings(visible: Path) -> GateSettings:
    raw = json.loads((visible / SETTINGS).read_text(encoding="utf-8"))
    return GateSettings(Limits(**raw.pop("limits")), **raw)


def write_answer(folder: Path, number: int, answer: Answer) -> None:
    _write(folder, number, {"answer": answer.body, "tier": answer.tier, "printed": answer.printed})


def write_rejection(folder: Path, number: int, refused: PolicyRejected) -> None:
    """The policy was refused before there was an answer: at the static rules, or at its bounds."""
    where = f" (line {refused.line})" if refused.line else ""
    message = refused.message.removeprefix(f"{refused.rule}{where}: ")
    told = {"rule": refused.rule, "message": message, "line": refused.line}
    _write(folder, number, {"answer": {"rejected": told}, "tier": "", "printed": ""})


def read_answers(folder: Path) -> Iterator[Answer]:
    """The answers of both runs, as far as they are asked for. Raises PolicyRejected for one that can't be read, and
    ContractBroken for one that is missing or no regular file."""
    for number in range(1, len(HASH_SEEDS) + 1):
        yield _parse(_read(folder / _name(number)))


def _name(number: int) -> str:
    return f"answer-{number}.json"


def _write(folder: Path, number: int, value: object) -> None:
    (folder / _name(number)).write_text(json.dumps(value), encoding="utf-8")


def _read(path: Path) -> bytes:
    """The bytes of a regular file, not followed where it is a link, not waited for where it is a pipe."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ContractBroken(f"the policy's container left no {path.name}: {error.strerror}") from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise ContractBroken(f"the policy's container left a {path.name} that is no file")
        if found.st_size > MAX_FILE_BYTES:
            raise rejected("output", f"the policy returned more than {MAX_ANSWER_BYTES >> 20} MiB")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(MAX_FILE_BYTES)
    finally:
        os.close(handle)


def _parse(data: bytes) -> Answer:
    try:
        raw = json.loads(data)
        body, tier, printed = raw["answer"], raw["tier"], raw["printed"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise rejected("resources", "what the policy's container left can't be read") from error
    if not isinstance(body, dict) or not isinstance(tier, str) or not isinstance(printed, str):
        raise rejected("resources", "what the policy's container left is no answer")
    return Answer(
        body, tier if TIER.fullmatch(tier) else FORGED_TIER, clean_text(printed[-KEPT_PRINT_BYTES:], KEPT_PRINT_BYTES)
    )
