"""The table of operators in docs/policies.md, written from their docstrings: `make operators`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from curateevo.policy import api

PAGE = Path(__file__).resolve().parents[3] / "docs" / "policies.md"
BEGIN, END = "<!-- operators: written by `make operators` -->", "<!-- end of operators -->"
GROUPS = {
    "select": "Which items to keep",
    "score": "Scores: numbers, one per item",
    "decide": "Decisions on scores",
    "refine": "Which turns to keep, to train on, and how much of results",
    "steps": "Which steps carry the loss",
    "augment": "How often each item stands in the data",
    "rewrite": "Text made anew by a model",
    "deduplicate": "Duplicates",
    "rl": "RL tasks",
    "memory": "Memory",
}


def operators() -> dict[str, list[Callable[..., Any]]]:
    """The functions of the API by module, in the order of `GROUPS`. Raises KeyError for a module that has no title."""
    found: dict[str, list[Callable[..., Any]]] = {name: [] for name in GROUPS}
    for name in api.__all__:
        thing = getattr(api, name)
        if inspect.isfunction(thing):
            found[thing.__module__.rpartition(".")[2]].append(thing)
    return found


def signature(operator: Callable[..., Any]) -> str:
    """Name and arguments, with defaults and without types."""
    shown = []
    for argument in inspect.signature(operator).parameters.values():
        if argument.kind is argument.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        given = argument.default is not argument.empty
        shown.append(f"{argument.name}={argument.default!r}" if given else argument.name)
    return f"{operator.__name__}({', '.join(shown)})"


def table() -> str:
    """A table for each group: what an operator takes, and the first paragraph of its docstring."""
    lines = [BEGIN]
    for name, group in operators().items():
        lines += ["", f"### {GROUPS[name]}", "", "| operator | what it does |", "|---|---|"]
        for operator in sorted(group, key=lambda o: inspect.getsourcelines(o)[1]):
            said = " ".join((inspect.getdoc(operator) or "").split("\n\n")[0].split())
            lines.append(f"| `{signature(operator)}` | {said.replace('|', '/')} |")
    return "\n".join([*lines, "", END])


def page_with_table(page: str) -> str:
    """The page with the table in its place. Raises ValueError when there is none."""
    start, end = page.index(BEGIN), page.index(END) + len(END)
    return page[:start] + table() + page[end:]


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
