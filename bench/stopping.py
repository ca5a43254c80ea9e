"""How many episodes an early end saves, by how much worse a candidate is: simulated scores, the real rule.

Tasks have a difficulty of their own; champion and candidate pass a task with a probability that falls with it, each
with noise of its own. Prints the share of sel's episodes that are run: the mean, and the middle 80 % of candidates.
Every verdict is compared with that of the full table. Diag, which is not run then, is not counted.

    python -m bench.stopping [--runs 8]
"""

from __future__ import annotations

import argparse

import numpy as np

from curateevo.api.spec import Acceptance, AcceptanceRule, Focus
from curateevo.api.stage import Against, ScoreTable
from curateevo.evolution.acceptance import Measured, compare, run_order
from curateevo.evolution.stopping import early_stop

CHECKS = 16
CHANGES = (-0.3, -0.1, 0.0)
C = {Focus.EFFECTIVENESS: (0.7, 0.7), Focus.EFFICIENCY: (0.7, 0.68)}


def table(rows: np.ndarray) -> ScoreTable:
    tasks = tuple(f"t{n:04d}" for n in range(len(rows)))
    return ScoreTable(
        tasks=tasks, families=("f",) * len(tasks), scores={"seed-0": tuple(tuple(map(float, r)) for r in rows)}
    )


def share_run(champion: ScoreTable, full: ScoreTable, against: Against, losable: int, repeats: int) -> float:
    """The share of episodes after which the evaluation ends; 1.0 where all are run. Raises AssertionError where the
    verdict is another than that of the full table."""
    order = run_order(champion, full.tasks)
    rows = dict(zip(full.tasks, full.scores["seed-0"], strict=True))
    step = -(-len(order) // CHECKS)
    for ran in [*range(0, len(order), step), len(order)]:
        kept = set(order[:ran])
        so_far = tuple(rows[t] if t in kept else () for t in full.tasks)
        seen = full.model_copy(update={"scores": {"seed-0": so_far}})
        if early_stop(champion, seen, against, losable, repeats) is not None:
            old, new = Measured(champion, against.champion_c), Measured(full, against.c)
            found = compare(old, new, against.focus, against.acceptance, against.lambda_, against.seed)
            assert not found.commit
            return ran / len(order)
    return 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8, help="candidates for each line")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--errors", type=float, default=0.02, help="evaluation.maxErrorFraction")
    options = parser.parse_args()
    print("| rule | focus | champion's P | candidate | sel run | middle 80 % |\n|---|---|---|---|---|---|")
    for rule in AcceptanceRule:
        for focus in (Focus.EFFECTIVENESS, Focus.EFFICIENCY):
            for level in (0.3, 0.7):
                for change in CHANGES:
                    shares = simulate(rule, focus, level, change, options)
                    low, high = np.quantile(shares, [0.1, 0.9])
                    shown = f"{np.mean(shares):.0%} | {low:.0%} to {high:.0%}"
                    print(f"| {rule} | {focus} | {level} | {change:+.2f} | {shown} |", flush=True)


def simulate(
    rule: AcceptanceRule, focus: Focus, level: float, change: float, options: argparse.Namespace
) -> list[float]:
    generator = np.random.default_rng(7)
    shares = []
    for run in range(options.runs):
        difficulty = generator.normal(0, 0.35, size=(options.tasks, 1))
        old, new = (
            (generator.random((options.tasks, options.repeats)) < np.clip(p + difficulty, 0.02, 0.98)).astype(float)
            for p in (level, max(0.0, level + change))
        )
        c, own = C[focus]
        against = Against(focus=focus, acceptance=Acceptance(rule=rule), lambda_=0.3, champion_c=c, c=own, seed=run)
        losable = int(options.errors * options.tasks)
        shares.append(share_run(table(old), table(new), against, losable, options.repeats))
    return shares


if __name__ == "__main__":
    main()
