"""The diagnosis against planted truth, on a seed that set none of its thresholds: precision and recall of each family."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.diagnosis import Beside, Case, Tally, airline, corpus_cases, dev_cases
from curateevo.evolver.diagnosis import FailureFamily

SEED, PER_SKILL = 42, 20
LEAST_PRECISION, LEAST_RECALL = 0.9, 0.8


@pytest.mark.parametrize("place", ["corpus", *Beside])
def test_planted_failures_are_found_and_nothing_else_is_claimed(place: str | Beside) -> None:
    cases = dev_cases(SEED, PER_SKILL, place) if isinstance(place, Beside) else corpus_cases(SEED)
    tally = Tally()
    tally.add(cases)
    planted = {name for name in FailureFamily if tally.planted[name]}
    assert len(planted) == 9 if isinstance(place, Beside) else 6
    for family in planted:
        assert tally.right[family] >= LEAST_PRECISION * tally.claimed[family], family
        assert tally.right[family] >= LEAST_RECALL * tally.planted[family], family


def test_the_truth_is_no_part_of_what_is_diagnosed() -> None:
    known = {"task", "family", "subject", "repeat", "success", "messages", "tools"}
    cases: list[Case] = [*corpus_cases(SEED)[:50], *dev_cases(SEED, 3, Beside.PEERS)]
    assert all(set(case.row) == known for case in cases)
    assert any(case.truth for case in cases)


def test_what_is_claimed_wrongly_is_counted_against_it() -> None:
    cases = dev_cases(SEED, PER_SKILL, Beside.PEERS)
    right, wrong = Tally(), Tally()
    right.add(cases)
    truths = [case.truth for case in cases if case.truth is not None]
    shifted = iter([*truths[1:], truths[0]])
    wrong.add([Case(c.row, c.checks, None if c.truth is None else next(shifted)) for c in cases])
    assert sum(wrong.right.values()) < 0.7 * sum(right.right.values())
    assert sum(wrong.confused.values()) > sum(right.confused.values())


def test_claims_on_tools_agree_with_the_reference_of_real_tasks(airline_runs: Path) -> None:
    judged = [(int(a), int(b)) for a, b in re.findall(r"(\d+) +(\d+) agree", airline(airline_runs))]
    assert sum(claimed for claimed, _ in judged) >= 40
    assert sum(agreed for _, agreed in judged) >= LEAST_PRECISION * sum(claimed for claimed, _ in judged)
