"""The release gate: what training made must act at all, have learnt from a signal, and not have forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from curateevo.api.spec import ReleaseGate
from curateevo_jobs.agents.chat import ChatModel, Conversation, Generation
from curateevo_jobs.agents.episode import Episode, Rules, State, play
from curateevo_jobs.benchmarks.base import Suite
from curateevo_jobs.training.rewards import match_first_call
from curateevo_jobs.training.rows import RewardKind, RlRow, SftRow

REASON = "ReleaseGate"
CALL_PROMPTS = 32
"""SFT prompts that the call rate is measured on, at most."""
FAMILY_TASKS = 8
"""RL tasks per family that forgetting is measured on, at most."""
LEAST_TASKS, OTHERS = 4, "others"
"""Families with fewer tasks are measured as one: of a single task one answer would decide."""


class NotReleased(Exception):
    """Training made nothing that may be released: a result, not an error."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the gate saw of one training. None: there was nothing to measure."""

    call_rate: float | None
    dead_group_fraction: float | None = None
    family_before: Mapping[str, float] | None = None
    family_after: Mapping[str, float] | None = None


def require_calls(rate: float | None, gate: ReleaseGate) -> None:
    """Raise NotReleased when the model hardly calls tools where it was shown to."""
    if rate is not None and rate < gate.min_call_rate:
        raise NotReleased(
            f"after SFT {rate:.0%} of first answers hold a tool call where the rows show one, "
            f"{gate.min_call_rate:.0%} are required (training.gate.minCallRate)"
        )


def reasons_against_grpo(finding: Finding, gate: ReleaseGate) -> list[str]:
    """Why the SFT model is released in place of the GRPO model; empty: GRPO's is."""
    reasons = []
    dead = finding.dead_group_fraction
    if dead is not None and dead > gate.max_dead_group_fraction:
        reasons.append(
            f"{dead:.0%} of GRPO groups had no reward variance, "
            f"at most {gate.max_dead_group_fraction:.0%} may (training.gate.maxDeadGroupFraction)"
        )
    after = finding.family_after or {}
    for family, before in sorted((finding.family_before or {}).items()):
        drop = before - after.get(family, 0.0)
        if drop > gate.max_family_drop:
            reasons.append(
                f"family {family} fell from {before:.2f} to {before - drop:.2f} in GRPO, "
                f"by more than {gate.max_family_drop:.2f} (training.gate.maxFamilyDrop)"
            )
    return reasons


def measure_call_rate(model: ChatModel, rows: Sequence[SftRow], max_tokens: int) -> float | None:
    """Share of greedy first answers with a call, on prompts whose first answer shows one."""
    prompts = [c for row in rows if (c := _prompt_of(row)) is not None]
    step = max(1, -(-len(prompts) // CALL_PROMPTS))
    sample = prompts[::step]
    if not sample:
        return None
    answers = model.answer(sample, Generation(0.0, max_tokens), [0] * len(sample))
    return fmean(bool(a.calls) for a in answers)


def _prompt_of(row: SftRow) -> Conversation | None:
    """What stands before a row's first answer, if that answer is learnt from and holds a call."""
    for n, message in enumerate(row.messages):
        if message["role"] == "assistant":
            if 0 in row.masked:
                return None
            return Conversation(row.messages[:n], row.tools) if message.get("tool_calls") else None
    return None


def sample_families(rows: Sequence[RlRow]) -> list[RlRow]:
    """The first FAMILY_TASKS rows of each family, by id: the same before and after GRPO."""
    taken: dict[str, int] = {}
    sample = []
    for row in sorted(rows, key=lambda r: r.id):
        taken[row.family] = taken.get(row.family, 0) + 1
        if taken[row.family] <= FAMILY_TASKS:
            sample.append(row)
    return sample


def measure_families(
    model: ChatModel, rows: Sequence[RlRow], suites: Mapping[str, Suite], rules: Rules
) -> dict[str, float]:
    """Mean greedy success on `rows`: of each family, and of all together that have hardly a row."""
    counts = Counter(row.family for row in rows)
    name_of = {family: family if count >= LEAST_TASKS else OTHERS for family, count in counts.items()}
    acting = [r for r in rows if r.reward is RewardKind.ENVIRONMENT]
    episodes = [
        Episode(0, [dict(m) for m in r.messages], r.tools, suites[r.suite].environment(r.state)) for r in acting
    ]
    play(model, episodes, rules)
    scores: dict[str, list[float]] = {}
    for row, episode in zip(acting, episodes, strict=True):
        success = episode.score().success if episode.state is State.FINISHED else 0.0
        scores.setdefault(name_of[row.family], []).append(success)
    matching = [r for r in rows if r.reward is RewardKind.ACTION_MATCH]
    answers = model.answer([Conversation(r.messages, r.tools) for r in matching], rules.generation, [0] * len(matching))
    for row, answer in zip(matching, answers, strict=True):
        first = (answer.calls[0].name, answer.calls[0].arguments) if answer.calls else None
        scores.setdefault(name_of[row.family], []).append(float(match_first_call(first, row.reference) == 1.0))
    return {family: fmean(values) for family, values in sorted(scores.items())}
