"""Acceptance: simulations of what each rule does to candidates whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.api.evolution import Reason, Stage
from curateevo.api.spec import Acceptance, AcceptanceRule, Focus
from curateevo.api.stage import ScoreTable
from curateevo.evolution.acceptance import Comparison, Measured, compare, detectable_gain
from curateevo.evolution.names import job_name, version_name
from curateevo.evolution.objective import cost, objective, performance

PAIRED, PAPER = Acceptance(), Acceptance(rule=AcceptanceRule.PAPER)


def table(rows: np.ndarray, subject: str = "seed-0") -> ScoreTable:
    """Scores of one subject: tasks by repeats."""
    names = tuple(f"t{i:04d}" for i in range(rows.shape[0]))
    return ScoreTable(
        tasks=names, families=("f",) * len(names), scores={subject: tuple(tuple(map(float, r)) for r in rows)}
    )


def judged(
    old: ScoreTable, new: ScoreTable, rule: Acceptance, focus: Focus, c: tuple[float, float], seed: int = 0
) -> Comparison:
    return compare(Measured(old, c[0]), Measured(new, c[1]), focus, rule, 0.3, seed)


def false_commits(rule: Acceptance, tasks: int, repeats: int, runs: int = 400) -> float:
    """Share of commits among candidates that are in truth identical to the champion, noise drawn anew for each side."""
    generator = np.random.default_rng(5)
    commits = 0
    for run in range(runs):
        truth = generator.beta(1.2, 1.2, size=(tasks, 1))
        old, new = (generator.random((2, tasks, repeats)) < truth).astype(float)
        commits += judged(table(old), table(new), rule, Focus.EFFECTIVENESS, (0.7, 0.7), seed=run).commit
    return commits / runs


@pytest.mark.parametrize(("tasks", "repeats"), [(40, 1), (100, 1), (100, 4), (400, 1)])
def test_paired_commits_at_most_one_identical_candidate_in_ten(tasks: int, repeats: int) -> None:
    share = false_commits(PAIRED, tasks, repeats)
    print(f"Paired: {share:.1%} false commits with {tasks} tasks x {repeats}")
    assert share <= 0.10 + 2 * (0.1 * 0.9 / 400) ** 0.5


def test_paired_is_at_or_under_ten_percent_over_all_sizes() -> None:
    shares = [false_commits(PAIRED, n, k) for n, k in ((40, 1), (100, 1), (100, 4), (400, 1))]
    assert sum(shares) / len(shares) <= 0.10


def test_tasks_of_one_group_are_resampled_together() -> None:
    """Ten decisions of a run, good or bad together, are no ten tasks: taken as such they pass noise for progress."""

    def share(grouped: bool, runs: int = 300) -> float:
        generator = np.random.default_rng(3)
        group = np.arange(100) // 10
        names = tuple(f"g{n}" for n in group) if grouped else ()

        def side(level: np.ndarray) -> ScoreTable:
            chance = 1 / (1 + np.exp(-level - generator.normal(0, 1, 10)[group]))
            rows = (generator.random(100) < chance).astype(float)
            return table(rows[:, None]).model_copy(update={"groups": names})

        levels = [generator.normal(0, 1.2, 100) for _ in range(runs)]
        return (
            sum(
                judged(side(level), side(level), PAIRED, Focus.EFFECTIVENESS, (0.5, 0.5), run).commit
                for run, level in enumerate(levels)
            )
            / runs
        )

    alone, together = share(grouped=False), share(grouped=True)
    print(f"groups of ten: {together:.1%} false commits, taken one by one {alone:.1%}")
    assert together <= 0.10 + 2 * (0.1 * 0.9 / 300) ** 0.5 < alone


def test_one_group_alone_commits_nothing() -> None:
    zeros, ones = (
        table(rows).model_copy(update={"groups": ("g",) * 5}) for rows in (np.zeros((5, 1)), np.ones((5, 1)))
    )
    found = judged(zeros, ones, PAIRED, Focus.EFFECTIVENESS, (0.5, 0.5))
    assert not found.commit and (found.lower, found.upper) == (-1.0, 1.0)


def test_the_papers_rule_commits_about_half_of_identical_candidates() -> None:
    share = false_commits(PAPER, 100, 1)
    print(f"Paper: {share:.1%} false commits")
    assert 0.40 <= share <= 0.55


def test_paired_sees_a_real_gain() -> None:
    generator = np.random.default_rng(6)
    commits = 0
    for run in range(200):
        truth = generator.beta(1.2, 1.2, size=(400, 1))
        old = (generator.random((400, 1)) < truth).astype(float)
        new = (generator.random((400, 1)) < np.clip(truth + 0.1, 0, 1)).astype(float)
        commits += judged(table(old), table(new), PAIRED, Focus.EFFECTIVENESS, (0.7, 0.7), run).commit
    assert commits / 200 > 0.9


def test_efficiency_needs_a_lower_cost_and_a_p_that_is_not_worse_by_the_margin() -> None:
    same = table(np.tile([[1.0], [0.0]], (50, 1)))
    assert judged(same, same, PAIRED, Focus.EFFICIENCY, (0.7, 0.6)).reason is Reason.CHEAPER
    assert judged(same, same, PAIRED, Focus.EFFICIENCY, (0.7, 0.7)).reason is Reason.NOT_CHEAPER
    worse = table(np.tile([[1.0], [0.0], [0.0], [0.0]], (25, 1)))
    assert judged(same, worse, PAIRED, Focus.EFFICIENCY, (0.7, 0.1)).reason is Reason.WORSE


def test_effectiveness_pays_for_its_cost() -> None:
    zeros, better = table(np.zeros((100, 1))), table(np.tile([[1.0], [0.0]], (50, 1)))
    assert judged(zeros, better, PAIRED, Focus.EFFECTIVENESS, (0.5, 0.6)).commit
    assert not judged(zeros, zeros, PAIRED, Focus.EFFECTIVENESS, (0.5, 0.5)).commit
    assert judged(zeros, zeros, PAPER, Focus.EFFECTIVENESS, (0.6, 0.5)).commit


def test_errors_are_left_out_of_pairs_and_none_in_common_is_an_error() -> None:
    rows = ScoreTable(tasks=("a", "b"), families=("f", "f"), scores={"seed-0": ((1.0,), (None,))})
    full = ScoreTable(tasks=("a", "b"), families=("f", "f"), scores={"seed-0": ((0.0,), (0.0,))})
    assert judged(full, rows, PAIRED, Focus.EFFECTIVENESS, (0.5, 0.5)).tasks == 1
    nothing = ScoreTable(tasks=("a",), families=("f",), scores={"seed-0": ((None,),)})
    with pytest.raises(ValueError, match="no task"):
        judged(full, nothing, PAIRED, Focus.EFFECTIVENESS, (0.5, 0.5))


def test_training_seeds_are_resampled_too() -> None:
    """Two trainings that differ much make the bounds wide: one lucky seed is no progress."""
    tasks = tuple(f"t{i}" for i in range(200))

    def two(p: float, q: float) -> ScoreTable:
        rows = {n: tuple((float(i < r * 200),) for i in range(200)) for n, r in (("seed-0", p), ("seed-1", q))}
        return ScoreTable(tasks=tasks, families=("f",) * 200, scores=rows)

    steady = judged(two(0.4, 0.4), two(0.5, 0.5), PAIRED, Focus.EFFECTIVENESS, (0.5, 0.5))
    lucky = judged(two(0.4, 0.4), two(0.3, 0.7), PAIRED, Focus.EFFECTIVENESS, (0.5, 0.5))
    assert steady.commit and not lucky.commit and steady.delta_p == pytest.approx(lucky.delta_p)


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(1, 10**7))
@settings(max_examples=100)
def test_cost_is_between_0_and_1_and_grows_with_turns(a: int, b: int, reference: int) -> None:
    low, high = sorted((cost(a, reference), cost(b, reference)))
    assert 0 <= low <= high <= 1
    assert (cost(a, reference) <= cost(b, reference)) == (a <= b) or low == high
    assert objective(0.5, low, 0.3) >= objective(0.5, high, 0.3)


def test_performance_is_the_mean_over_seeds_of_the_mean_over_tasks() -> None:
    scores = {"seed-0": ((1.0, 0.0), (1.0, 1.0)), "seed-1": ((0.0, 0.0), (None, None))}
    assert performance(ScoreTable(tasks=("a", "b"), families=("f", "f"), scores=scores)) == pytest.approx(
        (0.75 + 0) / 2
    )


def test_the_detectable_gain_is_what_the_design_says() -> None:
    assert detectable_gain(100) == pytest.approx(0.07, abs=0.005)
    assert detectable_gain(400) == pytest.approx(0.035, abs=0.005)


@given(
    st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True),
    st.integers(0, 10**6),
    st.integers(1, 10**4),
)
@settings(max_examples=200)
def test_names_fit_and_never_collide_between_stages_and_attempts(name: str, version: int, attempt: int) -> None:
    names = [job_name(name, stage, version, attempt + k) for stage in Stage for k in (0, 1)] + [
        version_name(name, version)
    ]
    assert len(set(names)) == len(names)
    assert all(len(n) <= 63 and n[0].isalnum() and n[-1].isalnum() for n in names)
