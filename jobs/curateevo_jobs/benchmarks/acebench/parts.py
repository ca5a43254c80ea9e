"""Imported before parts of the package, this lets them be imported alone: the package itself would import all it has.

ACEBench's classes are MIT (Microsoft), the package Apache-2.0. What is used of it needs the standard library only.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_spec = find_spec("evalscope")
if _spec is None or not _spec.submodule_search_locations:
    raise ModuleNotFoundError("No module named 'evalscope'")
for _name in ("evalscope", "evalscope.benchmarks", "evalscope.third_party"):
    _module = ModuleType(_name)
    _module.__path__ = [str(Path(_spec.submodule_search_locations[0]).parent.joinpath(*_name.split(".")))]
    sys.modules[_name] = _module
