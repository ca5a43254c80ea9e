"""Edits of a policy: strict SEARCH/REPLACE on stage functions and PARAMS. A miss is an error with the nearest lines."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from curateevo.api.errors import PolicyRejected
from curateevo.policy.source import check_static, normalised, params_of, parse

NEAR_LINES = 3


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the one place where `search` stands by `replace`."""

    search: str
    replace: str


@dataclass(frozen=True, slots=True)
class Patch:
    """One improvement: what it is, why, what it should do, and the edits."""

    method: str
    hypothesis: str
    expected: str
    edits: tuple[Edit, ...]


def apply_patch(source: str, patch: Patch) -> str:
    """The edited source. Raises PolicyRejected for a SEARCH that does not match exactly once, an edit outside stage
    functions and PARAMS, a no-op, or a result that breaks a static rule."""
    out = apply_edits(source, patch.edits)
    check_edited(source, out)
    return out


def apply_edits(source: str, edits: Iterable[Edit]) -> str:
    """The edited source, not checked. Raises PolicyRejected for a SEARCH that does not match exactly once."""
    for number, edit in enumerate(edits, start=1):
        source = _apply(source, edit, number)
    return source


def check_edited(before: str, after: str) -> None:
    """Raises PolicyRejected for an edit outside stage functions and PARAMS, a no-op, or a policy that breaks a static
    rule."""
    check_static(after)
    _only_evolvable(before, after)
    if normalised(after) == normalised(before):
        raise PolicyRejected("no-op", "the edits change nothing", "change what a stage does")


def _apply(source: str, edit: Edit, number: int) -> str:
    count = source.count(edit.search)
    if not edit.search or count == 1:
        if not edit.search:
            raise PolicyRejected("search", f"edit {number} has an empty SEARCH", "quote the lines to replace")
        return source.replace(edit.search, edit.replace, 1)
    if count > 1:
        raise PolicyRejected("search", f"edit {number}: SEARCH stands {count} times in the policy", "quote more lines")
    first = edit.search.strip().splitlines()[0]
    near = difflib.get_close_matches(first, [line.strip() for line in source.splitlines()], n=NEAR_LINES, cutoff=0.4)
    raise PolicyRejected(
        "search", f"edit {number}: SEARCH does not stand in the policy", "nearest lines: " + " | ".join(near)
    )


def _only_evolvable(before: str, after: str) -> None:
    if _fixed_part(before) != _fixed_part(after):
        raise PolicyRejected(
            "evolvable",
            "something outside the stage functions and PARAMS was changed",
            "edit stage functions and PARAMS only",
        )


def _fixed_part(source: str) -> list[str]:
    """Statements that an edit may not touch: all but stage functions, own functions, PARAMS, imports and docstrings."""
    out = []
    for node in parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["PARAMS"]:
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        out.append(ast.unparse(node))
    return out


def params_edit(source: str, changes: dict[str, Any]) -> tuple[Edit, ...]:
    """Edits that set PARAMS. Raises PolicyRejected for a name that the policy does not have."""
    known = params_of(source)
    edits = []
    for name, value in changes.items():
        if name not in known:
            raise PolicyRejected(
                "params", f"the policy has no parameter {name!r}", f"known: {', '.join(sorted(known))}"
            )
        if known[name] != value:
            edits.append(Edit(f'"{name}": {known[name]!r},', f'"{name}": {value!r},'))
    return tuple(edits)


def unified_diff(before: str, after: str, parent: str, child: str) -> str:
    """The diff of two policies, as git prints it."""
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), parent, child)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
