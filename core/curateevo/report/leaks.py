"""What ingest kept out of the corpus, by suite, as the page shows it: how it was found, with the words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from curateevo.report.view import text_of
from curateevo.report.wording import short

HELD_OUT = "its task is held out for evaluation"
FOUND = re.compile(
    r"(?P<run>.*?): (?P<how>it is|its prompt equals that of|it shares .*? with) dev task (?P<task>.+?)"
    r"(?:: (?P<quote>['\"].*))?"
)
"""A reason of `leaked.jsonl`, as ingest writes it."""
MAX_EXAMPLES, MAX_TEXT, MAX_SUITES = 5, 200, 24


@dataclass(frozen=True, slots=True)
class Example:
    run: str
    """File and line, and the trajectory's id."""
    how: str
    task: str
    quote: str
    """The shared words; empty where the id was enough."""


@dataclass(frozen=True, slots=True)
class SuiteLeaks:
    suite: str
    count: int
    """Trajectories that were removed."""
    tasks: int
    """Dev tasks that they contain."""
    examples: tuple[Example, ...]
    """The first ones; of each task one."""


def leaks_of(rows: Iterable[Any], suites: Sequence[str]) -> list[SuiteLeaks]:
    """What was removed for each suite that has something, in the order of the spec; rows that can't be told come last.

    A dev task's id begins with its suite; where it begins with none, and there is one suite, it is that one's.
    """
    found: dict[str, list[Example]] = {}
    for row in rows:
        example = _example(row)
        found.setdefault(_suite(example, suites), []).append(example)
    known = [name for name in suites if name in found]
    return [_summary(name, found[name]) for name in (*known, *sorted(set(found) - set(known)))][:MAX_SUITES]


def _example(row: Any) -> Example:
    reason, file = text_of(row, "reason"), text_of(row, "file")
    if reason.endswith(HELD_OUT):
        run = reason.removesuffix(HELD_OUT).removesuffix(": ")
        return Example(_run(file, run), HELD_OUT, "", "")
    told = FOUND.fullmatch(reason)
    if told is None:
        return Example(_run(file, ""), short(reason, MAX_TEXT), "", "")
    how = f"{told['how']} dev task"
    return Example(_run(file, told["run"]), how, short(told["task"], MAX_TEXT), short(told["quote"] or "", MAX_TEXT))


def _run(file: str, run: str) -> str:
    return short(f"{file}: {run}" if file and run else file or run, MAX_TEXT)


def _suite(example: Example, suites: Sequence[str]) -> str:
    if example.how == HELD_OUT:
        return "corpus"
    prefix = example.task.partition("/")[0]
    return prefix if prefix in suites else suites[0] if len(suites) == 1 else "other"


def _summary(name: str, examples: Sequence[Example]) -> SuiteLeaks:
    firsts: dict[str, Example] = {}
    for example in examples:
        firsts.setdefault(example.task or example.run, example)
    tasks = {example.task for example in examples if example.task}
    return SuiteLeaks(name, len(examples), len(tasks), tuple(firsts.values())[:MAX_EXAMPLES])
