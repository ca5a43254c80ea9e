"""Imported before the package, this keeps litellm (600 MB) out: the package is never to ask a model here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Stub(ModuleType):
    """Has every public name; each does nothing."""

    __path__: list[str] = []  # noqa: RUF012  makes it a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *values, **named: None


for _name in ("litellm", "litellm.caching", "litellm.caching.caching", "litellm.main"):
    sys.modules[_name] = _Stub(_name)
