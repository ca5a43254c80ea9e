"""An evaluation ends early only where nothing that is still to be scored could commit the version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from curateevo.api.evolution import Reason
from curateevo.api.spec import Acceptance, AcceptanceRule, Focus
from curateevo.api.stage import ScoreTable
from curateevo.evolution.acceptance import Measured, by_task, compare, run_order
from curateevo.evolution.stopping import Foregone, foregone

Rows = list[tuple[float | None, ...]]
LAMBDA = 0.3


def table(scores: dict[str, Rows]) -> ScoreTable:
    tasks = tuple(f"t{n:03d}" for n in range(len(next(iter(scores.values())))))
    return ScoreTable(tasks=tasks, families=("f",) * len(tasks), scores={k: tuple(v) for k, v in scores.items()})


@dataclass(frozen=True)
class Round:
    """One candidate's evaluation: how far it came, and what it is to be compared with."""

    champion: ScoreTable
    full: ScoreTable
    """What the candidate scores where nothing is stopped."""
    c: tuple[float, float]
    focus: Focus
    rule: Acceptance
    seed: int
    losable: int
    repeats: int

    def cells(self) -> list[tuple[str, str]]:
        """(subject, task), in the order in which they are run."""
        return [(s, t) for s in sorted(self.full.scores) for t in run_order(self.champion, self.full.tasks)]

    def row(self, subject: str, task: str) -> tuple[float | None, ...]:
        return self.full.scores[subject][self.full.tasks.index(task)]

    def so_far(self, ran: int) -> ScoreTable:
        return self.filled(dict.fromkeys(self.cells()[ran:], ()))

    def filled(self, others: dict[tuple[str, str], tuple[float | None, ...]]) -> ScoreTable:
        """The full table with other rows in some places."""
        scores = {
            s: tuple(others.get((s, t), row) for t, row in zip(self.full.tasks, rows, strict=True))
            for s, rows in self.full.scores.items()
        }
        return self.full.model_copy(update={"scores": scores})

    def foregone(self, ran: int) -> Foregone | None:
        old, new = Measured(self.champion, self.c[0]), Measured(self.so_far(ran), self.c[1])
        return foregone(old, new, self.losable, self.focus, self.rule, LAMBDA, self.seed)

    def commits(self, candidate: ScoreTable) -> tuple[bool, Reason]:
        old, new = Measured(self.champion, self.c[0]), Measured(candidate, self.c[1])
        found = compare(old, new, self.focus, self.rule, LAMBDA, self.seed)
        return found.commit, found.reason

    def lower(self, candidate: ScoreTable) -> float:
        old, new = Measured(self.champion, self.c[0]), Measured(candidate, self.c[1])
        return compare(old, new, self.focus, self.rule, LAMBDA, self.seed).lower

    def completions(self, ran: int, generator: np.random.Generator) -> Iterator[ScoreTable]:
        """All 0, all 1, what was drawn, random ones, and such as seek the highest bound; each also with as many tasks
        that can't be measured as are allowed, those at the end, at the beginning and random ones. None where nothing can
        be compared any more: what the cost alone decides needs no comparison."""
        open_cells = self.cells()[ran:]
        one, zero = (1.0,) * self.repeats, (0.0,) * self.repeats
        if not self._measured(self.filled(dict.fromkeys(open_cells, one))):
            return
        drawn = {(s, t): tuple(x or 0.0 for x in self.row(s, t)) for s, t in open_cells}
        fills = [dict.fromkeys(open_cells, zero), dict.fromkeys(open_cells, one), drawn]
        for _ in range(3):
            fills.append({c: tuple(generator.integers(0, 2, self.repeats).astype(float)) for c in open_cells})
        fills.append(self._climb(dict.fromkeys(open_cells, one), zero, generator))
        for fill in fills:
            yield self.filled(fill)
            for lost in self._losses(open_cells, generator):
                made = self.filled(fill | dict.fromkeys(lost, (None,) * self.repeats))
                if self._measured(made):
                    yield made

    def _measured(self, candidate: ScoreTable) -> bool:
        """Whether a task was measured on both sides: without one there is no comparison, and so no commit."""
        return not set(by_task(self.champion).index).isdisjoint(by_task(candidate).index)

    def _climb(
        self,
        fill: dict[tuple[str, str], tuple[float | None, ...]],
        zero: tuple[float, ...],
        generator: np.random.Generator,
    ) -> dict[tuple[str, str], tuple[float | None, ...]]:
        """Tasks that make the lower bound higher by failing, one by one."""
        best = self.lower(self.filled(fill))
        for cell in generator.permutation(np.array(list(fill), dtype=object).reshape(-1, 2))[:6]:
            tried = fill | {(cell[0], cell[1]): zero}
            if (found := self.lower(self.filled(tried))) > best:
                fill, best = tried, found
        return fill

    def _losses(
        self, open_cells: list[tuple[str, str]], generator: np.random.Generator
    ) -> Iterator[list[tuple[str, str]]]:
        """Open tasks that are lost, one subject's rows each; always with a task left to compare."""
        last = [c for c in open_cells if c[0] == open_cells[-1][0]] if open_cells else []
        settled = len(self.full.tasks) - len({t for _, t in open_cells})
        most = min(self.losable, len(last) if settled else len(last) - 1)
        for number in {1, most} if most > 0 else set():
            yield last[:number]
            yield last[-number:]
            yield [last[i] for i in generator.choice(len(last), number, replace=False)]


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    tasks, subjects, repeats = draw(st.integers(2, 24)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    share_lost = draw(st.sampled_from((0.0, 0.0, 0.1, 0.3)))
    levels = draw(st.sampled_from(((0.2, 0.2), (0.5, 0.2), (0.9, 0.4), (0.9, 0.9), (0.3, 0.6), (1.0, 0.0), (0.0, 0.0))))

    def scores(level: float, names: int) -> dict[str, Rows]:
        difficulty = np.random.default_rng(tasks).random(tasks)
        out: dict[str, Rows] = {}
        for name in range(names):
            hits = generator.random((tasks, repeats)) * 0.4 + difficulty[:, None] * 0.8 < level
            lost = generator.random((tasks, repeats)) < share_lost
            out[f"seed-{name}"] = [
                tuple(None if miss else float(hit) for hit, miss in zip(*pair, strict=True))
                for pair in zip(hits, lost, strict=True)
            ]
        return out

    champion = scores(levels[0], draw(st.integers(1, subjects)))
    champion["seed-0"][0] = (1.0,) * repeats
    for row in champion.values():
        row[0] = tuple(1.0 if s is None else s for s in row[0])
    full = scores(levels[1], subjects)
    size = draw(st.sampled_from((0, 0, 2, 5)))
    groups = tuple(f"g{n // size}" for n in range(tasks)) if size else ()
    rule = Acceptance(
        rule=draw(st.sampled_from(AcceptanceRule)),
        confidence=draw(st.sampled_from((0.5, 0.8, 0.9, 0.99))),
        non_inferiority_margin=draw(st.sampled_from((0.0, 0.01, 0.1))),
    )
    return Round(
        table(champion).model_copy(update={"groups": groups}),
        table(full).model_copy(update={"groups": groups}),
        draw(st.sampled_from(((0.6, 0.6), (0.6, 0.5), (0.5, 0.6), (0.6, 0.0)))),
        draw(st.sampled_from(Focus)),
        rule,
        draw(st.integers(0, 50)),
        draw(st.sampled_from((0, 0, 1, 2, 5))),
        repeats,
    )


def test_no_completion_of_a_stopped_evaluation_is_committed() -> None:
    early: list[bool] = []

    @given(rounds(), st.integers(0, 2**32))
    @settings(max_examples=60)
    def check(case: Round, noise: int) -> None:
        generator = np.random.default_rng(noise)
        first = next((n for n in range(len(case.cells())) if case.foregone(n)), None)
        early.append(first is not None)
        if first is None:
            return
        for ran in {first, int(generator.integers(first, len(case.cells())))}:
            verdict = case.foregone(ran)
            if verdict is None:  # tasks were lost in between, and as many more may be
                continue
            for completion in case.completions(ran, generator):
                assert case.commits(completion) == (False, verdict.reason)

    check()
    assert sum(early) > len(early) / 4, "the property was hardly tried"
