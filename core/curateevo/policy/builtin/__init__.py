"""Built-in policies: controls, published methods, and `starter`, the one that evolves. Each file is a policy as a user
would write it."""

from __future__ import annotations

from importlib.resources import files

NAMES = (
    "keep-all",
    "keep-valid",
    "success-only",
    "random",
    "best-of-n",
    "weasel",
    "grace",
    "learnable",
    "principles",
    "starter",
)


def source_of(name: str) -> str:
    """The source text of a built-in policy. Raises KeyError for a name that is not one."""
    if name not in NAMES:
        raise KeyError(name)
    return (files(__package__) / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
