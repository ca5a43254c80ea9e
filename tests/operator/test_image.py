"""The operator's image is small: it holds no more than the operator needs, which is enough."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions

from tests.conftest import ROOT

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # as if they were not there
import curateevo.store.s3, curateevo_operator
for module in pkgutil.walk_packages(curateevo_operator.__path__, "curateevo_operator."):
    importlib.import_module(module.name)
"""
OWN = {"curateevo"}


def test_the_operator_imports_nothing_that_its_image_lacks() -> None:
    text = (ROOT / "images/operator/requirements.txt").read_text()
    held = {_plain(name) for name in re.findall(r"^([A-Za-z0-9_.-]+)==", text, re.MULTILINE)} | OWN
    lacking = [m for m, owners in packages_distributions().items() if not held & {_plain(o) for o in owners}]
    assert {"polars", "torch", "pyarrow"} <= set(lacking)
    run = subprocess.run([sys.executable, "-c", IMPORT_ALL, *lacking], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def _plain(distribution: str) -> str:
    return distribution.lower().replace("_", "-").replace(".", "-")
