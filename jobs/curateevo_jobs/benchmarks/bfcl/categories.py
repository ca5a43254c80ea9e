"""The categories of BFCL-V4: which are supported, which are not and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curateevo.api.errors import SpecInvalid

GROUPS: Mapping[str, tuple[str, ...]] = {
    "non_live": (
        "simple_python",
        "simple_java",
        "simple_javascript",
        "multiple",
        "parallel",
        "parallel_multiple",
        "irrelevance",
    ),
    "live": (
        "live_simple",
        "live_multiple",
        "live_parallel",
        "live_parallel_multiple",
        "live_irrelevance",
        "live_relevance",
    ),
    "multi_turn": (
        "multi_turn_base",
        "multi_turn_miss_func",
        "multi_turn_miss_param",
        "multi_turn_long_context",
    ),
    "memory": ("memory_kv", "memory_rec_sum"),
}
"""Names that stand for several categories, as in the package."""
SUPPORTED = tuple(category for group in GROUPS.values() for category in group)

_NETWORK = "its tool searches the web"
REFUSED: Mapping[str, str] = {
    "memory_vector": "its environment loads the weights of a sentence transformer from a model hub",
    "web_search": _NETWORK,
    "web_search_base": _NETWORK,
    "web_search_no_snippet": _NETWORK,
    "format_sensitivity": "it varies how calls are written in text, and calls are native here",
}
"""What is not run, and why."""


def chosen(wanted: Any) -> tuple[str, ...]:
    """The categories that a list of categories and groups names, in the order of SUPPORTED. Raises SpecInvalid."""
    if not isinstance(wanted, list | tuple) or not wanted:
        raise SpecInvalid(f"bfcl: categories must be a list, not {wanted!r}", f"groups: {', '.join(GROUPS)}")
    found: set[str] = set()
    for name in wanted:
        if name in REFUSED:
            raise SpecInvalid(f"bfcl: category {name} is not supported: {REFUSED[name]}")
        if name not in GROUPS and name not in SUPPORTED:
            known = ", ".join((*GROUPS, *SUPPORTED))
            raise SpecInvalid(f"bfcl: no category {name!r}", f"groups and categories: {known}")
        found.update(GROUPS.get(name, (name,)))
    return tuple(category for category in SUPPORTED if category in found)


def language_of(category: str) -> str:
    """The language whose types the checker compares by."""
    return {"simple_java": "java", "simple_javascript": "javascript"}.get(category, "python")


def is_memory(category: str) -> bool:
    return category in GROUPS["memory"]


def is_multi_turn(category: str) -> bool:
    return category in GROUPS["multi_turn"]
