"""The calls that a good run makes on its way, as the data has them: texts like `[f(a='b'), g(c=1)]`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

JsonObject = dict[str, Any]
Call = tuple[str, JsonObject]
Milestone = list[Call]
"""One or more calls, made one right after the other."""

_QUOTED = re.compile(r"""(['"])(.*?)\1(?=\s*(?:,\s*\w+=|,\s*['"{]|[)}\]:]))""")
"""A text, ended by a quote that something follows which can follow a text: texts hold quotes that are not escaped."""


def read_milestones(texts: Sequence[Any]) -> list[list[Milestone]]:
    """The ways to go, each a list of milestones. The data has one way, or a list of them. Raises ValueError."""
    ways = texts if texts and isinstance(texts[0], list) else [texts]
    return [[read_calls(text) for text in way] for way in ways]


def read_calls(text: str) -> Milestone:
    """The calls of a text. Raises ValueError."""
    try:
        body = ast.parse(_QUOTED.sub(lambda m: repr(m[2]), text.strip()), mode="eval").body
        return [_call(element) for element in (body.elts if isinstance(body, ast.List) else [body])]
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"no list of calls: {text!r}") from error


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise ValueError("no call with named arguments")
    return node.func.id, {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}


def reached(made: Sequence[Call], ways: Sequence[Sequence[Milestone]]) -> float:
    """Share (0..1) of the milestones that were reached in their order, by the way on which it is highest.

    As officially, a milestone that is not found uses up all that was made after the one before it.
    """
    return max(_on_way(made, way) for way in ways)


def _on_way(made: Sequence[Call], way: Sequence[Milestone]) -> float:
    found = position = 0
    for milestone in way:
        while position < len(made):
            after = position + len(milestone)
            if list(made[position:after]) == list(milestone):
                found, position = found + 1, after
                break
            position += 1
    return found / len(way) if way else 1.0
