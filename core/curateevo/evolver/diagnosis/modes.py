"""What can go wrong in an episode: modes, the families they belong to, and what each asks of curation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """What went wrong in a failed episode. docs/evolver.md says what each is."""

    MALFORMED_CALL = "malformed_call"
    REPEATED_FAILURE = "repeated_failing_call"
    LOOP = "loop"
    OVER_LONG = "over_long"
    SCHEMA_VIOLATION = "schema_violation"
    MEMORY_MISLED = "memory_misled"
    MEMORY_IGNORED = "memory_ignored"
    EXECUTION_GAP = "execution_gap"
    NO_CALL = "no_call_where_needed"
    STOPPED_EARLY = "stopped_early"
    WRONG_TOOL = "wrong_tool"
    NEEDLESS_CALL = "needless_call"
    BINDING_DRIFT = "binding_drift"
    INVENTED_ARGUMENT = "invented_argument"
    RECOVERY_FAILURE = "recovery_failure"
    NOISY_LABEL = "noisy_label"
    WRONG_ARGUMENT = "wrong_argument"
    UNKNOWN = "unknown"


class FailureFamily(StrEnum):
    """Families of failures, after CurateEvo (arXiv 2607.06140) and the design of this project."""

    TOOL_SELECTION = "wrong tool selection"
    GROUNDING = "wrong argument grounding"
    PLANNING = "weak multi-turn planning"
    REPETITION = "repeating a failed action"
    MEMORY = "memory mismatch"
    SUPERVISION = "noisy supervision"
    BINDING = "state binding drift"
    RECOVERY = "adaptive recovery failure"
    EXECUTION = "grounded execution gap"
    OTHER = "not explained"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a mode suggests to who curates."""

    family: FailureFamily
    seen: str
    """What the quote shows."""
    hypothesis: str
    hint: str
    target: str
    """The resource that should change: sft, rl or memory."""
    metric: str
    """What should move when the hypothesis holds."""


READINGS: dict[Mode, Reading] = {
    Mode.MALFORMED_CALL: Reading(
        FailureFamily.EXECUTION,
        "text that was meant to be a call, or arguments that do not parse",
        "SFT rows show broken call syntax",
        "drop malformed turns",
        "sft",
        "calls that parse",
    ),
    Mode.REPEATED_FAILURE: Reading(
        FailureFamily.REPETITION,
        "a call that had failed, made again as it was",
        "SFT rows insist on a failing call",
        "fold repeats, keep the recovery",
        "sft",
        "failing calls made again",
    ),
    Mode.LOOP: Reading(
        FailureFamily.PLANNING,
        "one call, three times, with one result",
        "SFT rows repeat themselves",
        "fold repeats, cap turns",
        "sft",
        "calls made three times",
    ),
    Mode.OVER_LONG: Reading(
        FailureFamily.PLANNING,
        "all turns or the whole context were used up",
        "SFT rows wander, and so does the agent until its turns are used up",
        "keep short segments, cut detours",
        "sft",
        "episodes that end by themselves",
    ),
    Mode.SCHEMA_VIOLATION: Reading(
        FailureFamily.EXECUTION,
        "a tool that does not exist, or arguments that do not fit it",
        "SFT rows break tool schemas",
        "keep schema-valid rows only",
        "sft",
        "calls that fit their schema",
    ),
    Mode.MEMORY_MISLED: Reading(
        FailureFamily.MEMORY,
        "a value that only a note gave, in a call that was wrong",
        "a retrieved note was wrong or beside the point",
        "believe successful results only",
        "memory",
        "success where notes are used",
    ),
    Mode.MEMORY_IGNORED: Reading(
        FailureFamily.MEMORY,
        "a value from nowhere, though a note held the right kind",
        "the note that was needed stood there, and the agent did not read it",
        "show notes in SFT rows whose values they explain",
        "memory",
        "arguments taken from notes",
    ),
    Mode.EXECUTION_GAP: Reading(
        FailureFamily.EXECUTION,
        "the answer tells of an action that no call made",
        "SFT rows say that a thing is done without doing it",
        "drop rows whose answer claims an action that no call made",
        "sft",
        "claims that a call backs",
    ),
    Mode.NO_CALL: Reading(
        FailureFamily.EXECUTION,
        "an answer without any call",
        "SFT rows answer without the call that was needed",
        "drop rows that stop early",
        "sft",
        "episodes with a call",
    ),
    Mode.STOPPED_EARLY: Reading(
        FailureFamily.PLANNING,
        "the last call after which successes go on",
        "SFT rows end before the work is done",
        "keep reliable kinds of work",
        "sft",
        "episodes that reach the last step",
    ),
    Mode.WRONG_TOOL: Reading(
        FailureFamily.TOOL_SELECTION,
        "a tool that successes do not use, in place of one that they do",
        "SFT rows use a wrong tool, or the right one is rare",
        "keep reliable kinds of work, balance families",
        "sft",
        "episodes with the right tools",
    ),
    Mode.NEEDLESS_CALL: Reading(
        FailureFamily.PLANNING,
        "a call that successes do not make, or that nobody asked for",
        "SFT rows hold detours",
        "drop unused calls",
        "sft",
        "calls per episode",
    ),
    Mode.BINDING_DRIFT: Reading(
        FailureFamily.BINDING,
        "a value other than the one that was settled before",
        "SFT rows change a value that was already settled",
        "drop rows whose later calls leave the values of earlier ones, practise by RL",
        "rl",
        "later calls that keep what was settled",
    ),
    Mode.INVENTED_ARGUMENT: Reading(
        FailureFamily.GROUNDING,
        "a value that stands in no earlier text",
        "a value is needed that no request holds",
        "supply facts by memory, drop ungrounded rows",
        "memory",
        "arguments that stand in an earlier text",
    ),
    Mode.RECOVERY_FAILURE: Reading(
        FailureFamily.RECOVERY,
        "an error, after which nothing else was tried",
        "too few rows show what to do after an error",
        "keep recoveries, fold repeats, upsample them",
        "sft",
        "episodes that go on after an error",
    ),
    Mode.NOISY_LABEL: Reading(
        FailureFamily.SUPERVISION,
        "an episode without a fault that a rule could find",
        "the label says failed, the episode looks like those that succeed",
        "trust the rate of a kind of work, not one label",
        "sft",
        "failures that look like successes",
    ),
    Mode.WRONG_ARGUMENT: Reading(
        FailureFamily.GROUNDING,
        "arguments other than those of successes",
        "SFT rows copy the wrong value",
        "drop rows with lazy defaults, practise by RL",
        "rl",
        "episodes with the right arguments",
    ),
    Mode.UNKNOWN: Reading(
        FailureFamily.OTHER,
        "the last words of the episode",
        "no rule explains them",
        "read the episodes",
        "sft",
        "success",
    ),
}
