"""What training, and asking a model in this process, need besides: the extra `train`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from curateevo.api.errors import Denied

LIBRARIES = ("torch", "transformers", "trl", "peft")


def require_libraries(use: str, names: Sequence[str] = LIBRARIES) -> None:
    """Raises Denied where one is not installed, and names `use`, what needs it. Nothing is imported."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise Denied(f"{use} needs {', '.join(missing)}: not installed", "pip install 'curateevo[train]'")
