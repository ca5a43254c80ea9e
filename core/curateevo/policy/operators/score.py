"""Numbers for items, one each, in their order. What is kept for a number is the matter of `decide.py`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from curateevo.policy.operators.items import Context, Item, Items, TurnFlag
from curateevo.trajectories.grace import ALIGNMENT, CONSISTENCY

NOISE = TurnFlag.MALFORMED | TurnFlag.BAD_SCHEMA | TurnFlag.REPEAT | TurnFlag.UNUSED | TurnFlag.NO_OP
UNKNOWN = 0.5
"""A rate of which nothing is known."""
Scores: TypeAlias = tuple[float, ...]


def score_feature(items: Items, name: str, *, missing: float = 0.0) -> Scores:
    """A numeric feature of the trajectory, in its unit; `missing` where it is null.

    A score that a model computes (a gradient's norm, a perplexity) comes in as a column of the corpus's features.
    """
    return tuple(missing if value is None else float(value) for value in items.feature(name))


def score_grace(items: Items, *, consistency: float = 0.5) -> Scores:
    """(1 - `consistency`) * turn_alignment + `consistency` * turn_consistency (-1..1), means over the turns trained on.

    An item of first turns alone has the consistency 0, one without scores is -1.

    GRACE (Li et al. 2026, arXiv 2605.13130); `curateevo.trajectories.grace` says what is simplified. Raises ValueError
    for a corpus without these columns.
    """
    if not 0 <= consistency <= 1:
        raise ValueError(f"score_grace: consistency {consistency} must be within 0..1")
    try:
        columns = [items.corpus.column(name) for name in (ALIGNMENT, CONSISTENCY)]
    except KeyError as error:
        raise ValueError(
            "score_grace: the corpus has no columns turn_alignment and turn_consistency; the base model makes them at "
            "ingest: set spec.corpus.grace to true, or run `curateevo ingest --grace MODEL`"
        ) from error

    def score(item: Item) -> float:
        aligned, consistent = (
            [float(value) for t in item.trained if (value := column[item.row][t]) is not None] for column in columns
        )
        alike = fmean(consistent) if consistent else 0.0
        return (1 - consistency) * fmean(aligned) + consistency * alike if aligned else -1.0

    return tuple(map(score, items))


def score_outcome(items: Items) -> Scores:
    """The reward where the source gives one, else 1 for a success and 0 for a failure, 0.5 when unknown."""
    pairs = zip(items.feature("reward"), items.feature("success"), strict=True)
    return tuple(
        float(reward) if reward is not None else UNKNOWN if success is None else float(success)
        for reward, success in pairs
    )


def score_turns(items: Items) -> Scores:
    """Kept turns."""
    return tuple(float(len(item.turns)) for item in items)


def score_tokens(items: Items) -> Scores:
    """Tokens (characters / 4) of the kept turns, without opening and tools."""
    return tuple(float(sum(items.of_turns(item, "turn_tokens"))) for item in items)


def score_noise(items: Items) -> Scores:
    """Share (0..1) of kept turns that are malformed, break a schema, repeat, change nothing or lead nowhere."""
    return tuple(sum(bool(f & NOISE) for f in items.flags(item)) / len(item.turns) for item in items)


def score_rarity(items: Items) -> Scores:
    """Share (0..1) of the items that do not call the item's rarest tool; 0 for items without a call."""
    count = Counter(tool for tools in items.feature("tools") for tool in tools)
    return tuple(1 - min(count[t] for t in tools) / len(items) if tools else 0.0 for tools in items.feature("tools"))


def score_difficulty(items: Items, ctx: Context, *, by: str = "family") -> Scores:
    """1 - pass rate (0..1) of the item's group: the items', or for families that of the parent on diag, where known."""
    rates = pass_rates(items, ctx, by=by)
    return tuple(1 - rates.get(key, UNKNOWN) for key in items.feature(by))


def score_learnability(items: Items, ctx: Context, *, by: str = "task_id") -> Scores:
    """p(1 - p) of the group's pass rate p: 0 where all or none succeed, which GRPO can't learn from, 0.25 at most.

    After Foster et al. 2025, "Learning to Reason at the Frontier of Learnability" (arXiv 2502.12272), where p is
    measured anew on the model in training; here it is that of the items' agents, or for families the parent's.
    """
    rates = pass_rates(items, ctx, by=by)
    return tuple(rates.get(key, 0.0) * (1 - rates.get(key, 0.0)) for key in items.feature(by))


def score_failures(items: Items, ctx: Context, *, modes: Iterable[str] = ()) -> Scores:
    """Share (0..1) of the parent's failures on diag that are of the item's family; of the clusters in `modes` alone."""
    wanted = set(modes)
    count: Counter[str] = Counter()
    for cluster in ctx.failures:
        if not wanted or cluster.get("mode") in wanted:
            count.update(cluster.get("families", {}))
    total = sum(count.values())
    return tuple(count[family] / total if total else 0.0 for family in items.feature("family"))


def score_rank(items: Items, scores: Sequence[float], *, by: str = "family") -> Scores:
    """Share (0..1) of the item's group that it outranks, itself counted half: for scores that differ between groups.

    Of equals the earlier outranks the later.
    """
    groups: dict[object, list[int]] = defaultdict(list)
    for k, key in enumerate(items.feature(by)):
        groups[key].append(k)
    ranks: dict[int, float] = {}
    for group in groups.values():
        ordered = sorted(group, key=lambda k: (-scores[k], k))
        ranks |= {k: 1 - (place + 0.5) / len(group) for place, k in enumerate(ordered)}
    return tuple(ranks[k] for k in range(len(items)))


def pass_rates(items: Items, ctx: Context, *, by: str) -> Mapping[object, float]:
    """Mean success of each group of items that have a label; for families the parent's on diag, where known."""
    seen: dict[object, list[float]] = defaultdict(list)
    for key, success in zip(items.feature(by), items.feature("success"), strict=True):
        if success is not None:
            seen[key].append(float(success))
    rates = {key: sum(values) / len(values) for key, values in seen.items()}
    if by == "family":
        rates.update(ctx.family_success)
    return rates
