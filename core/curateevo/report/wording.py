"""Numbers, times and reasons as a reader sees them. What is missing or not a number becomes a dash."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import UTC, datetime
from typing import assert_never

from curateevo.api.evolution import EvolutionPhase, Reason, VersionPhase

DASH = "–"
ELLIPSIS = "…"
KIB = 1024
MINUTE, HOUR, DAY = 60, 3600, 86_400
LATEST_SECONDS = 253_402_300_799.0
"""The last second of the year 9999: later ones have no date."""

PHASES: dict[EvolutionPhase, str] = {
    EvolutionPhase.PENDING: "Not started",
    EvolutionPhase.INGESTING: "In progress: reading the corpus and scoring the floors",
    EvolutionPhase.PROPOSING: "In progress: proposing the next policy",
    EvolutionPhase.TESTING: "In progress: testing a version",
    EvolutionPhase.SEALING: "In progress: running the sealed test",
    EvolutionPhase.SUSPENDED: "Suspended",
    EvolutionPhase.COMPLETE: "Complete",
    EvolutionPhase.FAILED: "Failed",
}

VERSION_PHASES: dict[VersionPhase, str] = {
    VersionPhase.PENDING: "not started",
    VersionPhase.CURATING: "curating",
    VersionPhase.TRAINING: "training",
    VersionPhase.EVALUATING: "evaluating",
    VersionPhase.MEASURED: "measured, not judged yet",
    VersionPhase.REJECTED: "rejected, not recorded yet",
    VersionPhase.FAILED: "failed, not recorded yet",
}

REASONS: dict[Reason, str] = {
    Reason.ALREADY_EXISTS: "something of the same name belongs to somebody else",
    Reason.AWAITING_POLICY: "waiting for a policy",
    Reason.BASELINE: "the first version: what later ones are compared with",
    Reason.BASELINE_FAILED: "version 0 could not be measured, so there is nothing to improve on",
    Reason.BUDGET_SPENT: "a budget is used up",
    Reason.CHEAPER: "cheaper, and not worse by more than the margin",
    Reason.CONTRACT_BROKEN: "an input broke its contract",
    Reason.DEADLINE_EXCEEDED: "a deadline passed",
    Reason.DELETED: "a job was removed from outside",
    Reason.DENIED: "refused: permissions, credentials, quota or disk",
    Reason.GOAL_REACHED: "the goal was reached",
    Reason.IMPROVED: "the objective improved",
    Reason.INFRASTRUCTURE: "the infrastructure failed too often",
    Reason.MAX_ROUNDS: "all rounds are done",
    Reason.METRICS_UNAVAILABLE: "no usable measurement came out",
    Reason.NOT_CHEAPER: "not cheaper",
    Reason.NOT_IMPROVED: "the objective did not improve, or not beyond noise",
    Reason.NO_PROPOSAL: "the proposer made nothing to test",
    Reason.PATIENCE: "too many rounds without a commit",
    Reason.PENDING_TOO_LONG: "a job waited too long to start",
    Reason.POLICY_REJECTED: "the policy broke its contract",
    Reason.PROGRAM_FAILED: "a stage program failed",
    Reason.RELEASE_GATE: "the trained model did not pass the release gate",
    Reason.RUNNING: "running",
    Reason.SPEC_INVALID: "the spec is not valid",
    Reason.STOPPED: "stopped by the spec",
    Reason.SUSPENDED: "suspended by the spec",
    Reason.TOO_MANY_ERRORS: "too many tasks could not be measured",
    Reason.WORSE: "cheaper, but success may have fallen by more than the margin",
}


def reason_words(reason: str) -> str:
    """A reason in words; nothing for one that is not known."""
    try:
        return REASONS[Reason(reason)]
    except ValueError:
        return ""


def number(value: float | None, digits: int = 3) -> str:
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{value:.{digits}f}"
    return f"−{text[1:]}" if text.startswith("-") and float(text) != 0 else text.lstrip("-")


def signed(value: float | None, digits: int = 3) -> str:
    text = number(value, digits)
    return f"+{text}" if text != DASH and not text.startswith("−") and float(text) != 0 else text


def count(value: float | None) -> str:
    """A whole number with thousands apart."""
    return DASH if value is None or not math.isfinite(value) else f"{round(value):,}"


def share(value: float | None) -> str:
    """0..1 as a percentage."""
    return DASH if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return DASH
    if seconds < MINUTE:
        return f"{seconds:.1f} s" if seconds else "0 s"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def size(byte_count: float | None) -> str:
    if byte_count is None or not math.isfinite(byte_count):
        return DASH
    value = float(byte_count)
    for unit in ("B", "KiB", "MiB"):
        if value < KIB:
            return f"{value:.0f} {unit}"
        value /= KIB
    return f"{value:.1f} GiB"


def when(seconds: float | None) -> str:
    """Seconds since the epoch as a minute in UTC."""
    if seconds is None or not 0 < seconds < LATEST_SECONDS:
        return DASH
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def clip(text: str, limit: int) -> str:
    """At most `limit` characters, and how many were left out."""
    return text if len(text) <= limit else f"{text[:limit]}{ELLIPSIS} ({len(text) - limit:,} more characters)"


def short(text: str, limit: int) -> str:
    """At most `limit` characters, the cut marked by an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n\t]")


def clean(text: str) -> str:
    """`text` with every character made visible that can't be seen or encoded, or turns the direction of writing."""
    return _NOT_PLAIN.sub(lambda found: _visible(found[0]), text)


def _visible(char: str) -> str:
    match unicodedata.category(char):
        case "Cc" | "Cf" | "Cs" | "Cn" | "Co" | "Zl" | "Zp":
            return f"‹U+{ord(char):04X}›"
        case _:
            return char


def plural(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def is_end(phase: EvolutionPhase) -> bool:
    """Whether nothing more happens by itself."""
    match phase:
        case EvolutionPhase.COMPLETE | EvolutionPhase.FAILED:
            return True
        case (
            EvolutionPhase.PENDING
            | EvolutionPhase.INGESTING
            | EvolutionPhase.PROPOSING
            | EvolutionPhase.TESTING
            | EvolutionPhase.SEALING
            | EvolutionPhase.SUSPENDED
        ):
            return False
        case _:
            assert_never(phase)
