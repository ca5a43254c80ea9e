"""The offline proposer: from failure modes to parameter edits, deterministic. A default, a baseline, a test oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from curateevo.api.errors import PolicyRejected
from curateevo.api.evolution import Verdict
from curateevo.api.spec import Focus
from curateevo.evolver.diagnosis import Diagnosis, Mode
from curateevo.evolver.patch import Patch, apply_patch, params_edit
from curateevo.evolver.proposal import Proposal, ProposalInput
from curateevo.policy.source import params_of

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Method:
    """A known move: what it changes, and which failures it should mend. `changes` is empty when it does not apply."""

    name: str
    focus: Focus
    mends: frozenset[Mode]
    hypothesis: str
    expected: str
    changes: Callable[[Params], dict[str, Any]]


def _filter(params: Params) -> dict[str, Any]:
    return {
        "refine_malformed": True,
        "select_recovered": True,
        "select_reliable": 0.5,
        "select_success": True,
    }


def _refine(params: Params) -> dict[str, Any]:
    return {"refine_malformed": True, "refine_repeats": True, "refine_unused": True}


def _ground(params: Params) -> dict[str, Any]:
    return {"select_max_ungrounded": 0}


def _memory(params: Params) -> dict[str, Any]:
    return {"memory_facts": 300}


def _balance(params: Params) -> dict[str, Any]:
    return {"augment_per_family": 40} if params.get("augment_per_family") == 0 else {}


def _boost(params: Params) -> dict[str, Any]:
    boost = float(params.get("augment_boost", 1.0))
    return {"augment_boost": boost + 1.0} if params.get("augment_per_family") and boost < 3 else {}


def _aim(params: Params) -> dict[str, Any]:
    return {"rl_aim_below": 0.6}


def _deduplicate(params: Params) -> dict[str, Any]:
    return {"prune_exact": True}


def _near(params: Params) -> dict[str, Any]:
    return {"prune_near": 0.85}


def _cap(params: Params) -> dict[str, Any]:
    per = int(params.get("prune_per_family", 0))
    return {"prune_per_family": 20 if per == 0 else per // 2} if per != 5 else {}


def _drop_errors(params: Params) -> dict[str, Any]:
    return {"prune_error_turns": True}


EFFECT, EFFICIENT = Focus.EFFECTIVENESS, Focus.EFFICIENCY
SFT_NOISE = frozenset(
    {
        Mode.MALFORMED_CALL,
        Mode.NO_CALL,
        Mode.STOPPED_EARLY,
        Mode.WRONG_TOOL,
        Mode.WRONG_ARGUMENT,
        Mode.SCHEMA_VIOLATION,
        Mode.EXECUTION_GAP,
    }
)
WASTE = frozenset({Mode.REPEATED_FAILURE, Mode.LOOP, Mode.OVER_LONG, Mode.NEEDLESS_CALL, Mode.RECOVERY_FAILURE})
METHODS: tuple[Method, ...] = (
    Method(
        "filter-failures",
        EFFECT,
        SFT_NOISE,
        "rows that end badly are imitated",
        "fewer calls missing, malformed or to the wrong tool",
        _filter,
    ),
    Method(
        "refine-turns",
        EFFECT,
        WASTE | {Mode.MALFORMED_CALL},
        "insisting and detours are imitated; what is left after cutting them is worth keeping",
        "recoveries after an error, no needless calls",
        _refine,
    ),
    Method(
        "balance-families",
        EFFECT,
        frozenset({Mode.WRONG_TOOL, Mode.NO_CALL, Mode.STOPPED_EARLY, Mode.WRONG_ARGUMENT, Mode.RECOVERY_FAILURE}),
        "rare families drown under common ones at a fixed number of steps",
        "success on rare families",
        _balance,
    ),
    Method(
        "memory-of-facts",
        EFFECT,
        frozenset({Mode.INVENTED_ARGUMENT}),  # notes that mislead, or go unread, are there already
        "a value is needed that no request holds, but tool results of other runs do",
        "arguments taken from notes instead of invented",
        _memory,
    ),
    Method(
        "ground-arguments",
        EFFECT,
        frozenset({Mode.INVENTED_ARGUMENT, Mode.WRONG_ARGUMENT, Mode.BINDING_DRIFT}),
        "rows with values from nowhere teach to invent",
        "values copied from the request",
        _ground,
    ),
    Method(
        "boost-failing",
        EFFECT,
        frozenset(Mode) - {Mode.NOISY_LABEL},
        "families that fail need more rows",
        "success on failing families",
        _boost,
    ),
    Method(
        "aim-rl",
        EFFECT,
        frozenset({Mode.WRONG_TOOL, Mode.WRONG_ARGUMENT, Mode.STOPPED_EARLY, Mode.BINDING_DRIFT}),
        "families with mixed outcomes gain from practice",
        "success on families below 0.6",
        _aim,
    ),
    Method(
        "cap-families",
        EFFICIENT,
        frozenset(),
        "common families repeat one lesson",
        "fewer turns, same success",
        _cap,
    ),
    Method(
        "drop-duplicates",
        EFFICIENT,
        frozenset(),
        "exact duplicates teach nothing",
        "fewer turns",
        _deduplicate,
    ),
    Method("drop-near-duplicates", EFFICIENT, frozenset(), "near duplicates teach little", "fewer turns", _near),
    Method(
        "drop-error-turns",
        EFFICIENT,
        frozenset(),
        "turns that failed may be noise",
        "fewer turns",
        _drop_errors,
    ),
)


class RulesProposer:
    """Tries the applicable method whose failures are the most; one that lost on this champion is not tried again."""

    def propose(self, given: ProposalInput) -> Proposal | None:
        params = params_of(given.source)
        lost = {entry.method for entry in given.history if entry.verdict is not Verdict.COMMITTED}
        for method in ranked(given.focus, given.diagnosis):
            changes = {k: v for k, v in method.changes(params).items() if params.get(k) != v}
            if not changes or not set(changes) <= set(params) or method.name in lost:
                continue
            patch = Patch(method.name, method.hypothesis, method.expected, params_edit(given.source, changes))
            try:
                source = apply_patch(given.source, patch)
            except PolicyRejected:
                continue
            return Proposal(source, method.name, method.hypothesis, method.expected, patch)
        return None


def ranked(focus: Focus, diagnosis: Diagnosis) -> list[Method]:
    """Methods of the focus (all for Combined), those that mend the most failures first."""
    counts = {cluster.mode: cluster.count for cluster in diagnosis.clusters}
    chosen = [m for m in METHODS if focus is Focus.COMBINED or m.focus is focus]
    weights = {m.name: sum(counts.get(mode, 0) for mode in m.mends) / max(1, len(m.mends)) ** 0.5 for m in chosen}
    return sorted(chosen, key=lambda m: -weights[m.name])
