"""Steps within a trajectory: which of them are worth a loss."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

from curateevo.policy.operators.items import Item, Items
from curateevo.trajectories.flags import words
from curateevo.trajectories.model import Trajectory


def pick_steps(items: Items, *, share: float = 0.5, diversity: float = 1.0) -> Items:
    """Train on a `share` (0..1) of each item's turns, at least one: the important and diverse ones. Others before the
    last of them are masked, those after it dropped. Reads the items' text.

    Weasel (Pesaran zadeh et al. 2026, arXiv 2605.20291): from the best pair on, add the turn with the largest gain
    of importance + `diversity` * sum of distances to those chosen. Importance is the similarity of goal and state; the
    distance of two turns is that of their states or of their actions, whichever is larger. Simplified: similarity is
    the Dice coefficient of word sets in place of BERTScore, and reasoning is not written anew.
    """
    if not 0 < share <= 1:
        raise ValueError(f"pick_steps: share {share} must be above 0, and 1 at most")
    texts = items.corpus.trajectories({i.row for i in items})

    def pick(item: Item) -> Item:
        trained = item.trained
        chosen = _greedy(texts[item.row], trained, math.ceil(share * len(trained)), diversity)
        turns = tuple(t for t in item.turns if t <= max(chosen))
        return replace(item, turns=turns, masked=tuple(t for t in turns if t not in chosen))

    return items.change(pick, "pick_steps")


def _greedy(source: Trajectory, turns: tuple[int, ...], count: int, diversity: float) -> set[int]:
    """`count` of `turns`; ties go to the earlier ones."""
    if count >= len(turns):
        return set(turns)
    goal = frozenset(words(" ".join(source.head)))
    states = {t: _state(source, t) for t in turns}
    actions = {t: _action(source, t) for t in turns}
    value = {t: _dice(goal, states[t]) for t in turns}
    pairs = list(combinations(turns, 2))
    apart = {
        frozenset((a, b)): diversity * max(1 - _dice(states[a], states[b]), 1 - _dice(actions[a], actions[b]))
        for a, b in pairs
    }
    if count == 1:
        return {max(turns, key=lambda t: (value[t], -t))}
    chosen = set(max(pairs, key=lambda pair: sum(value[t] for t in pair) + apart[frozenset(pair)]))
    gain = {t: value[t] + sum(apart[frozenset((t, c))] for c in chosen) for t in turns if t not in chosen}
    while len(chosen) < count:
        best = max(gain, key=lambda t: (gain[t], -t))
        chosen.add(best)
        del gain[best]
        for t in gain:
            gain[t] += apart[frozenset((t, best))]
    return chosen


def _state(source: Trajectory, turn: int) -> frozenset[str]:
    """What the agent has just seen: the last results and what the user said since, or the opening."""
    before = " ".join(source.turns[turn - 1].results if turn else source.head)
    return frozenset(words(" ".join([before, *source.turns[turn].users])))


def _action(source: Trajectory, turn: int) -> frozenset[str]:
    """What it thinks, says and calls."""
    made = source.turns[turn]
    calls = [f"{c.name} {c.arguments}" for c in made.calls]
    return frozenset(words(" ".join([made.reasoning or "", made.content, *calls])))


def _dice(left: frozenset[str], right: frozenset[str]) -> float:
    return 2 * len(left & right) / (len(left) + len(right)) if left or right else 1.0
