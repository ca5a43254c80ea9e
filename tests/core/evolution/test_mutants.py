"""The suite catches every planted bug: each mutant of the plans is run under the table tests and the state machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.evolution.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[3]
SUITE = ("tests/core/evolution/test_plan_table.py", "tests/core/evolution/test_plan_machine.py")


def run_suite(source_root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(source_root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "300",
        *SUITE,
    ]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def mutate(folder: Path, mutant: Mutant) -> Path:
    """A copy of the library with the bug in it."""
    core = folder / "core"
    shutil.copytree(ROOT / "core", core, ignore=shutil.ignore_patterns("__pycache__"))
    target = core / "curateevo" / "evolution" / mutant.module
    text = target.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: the place to change stands {text.count(mutant.old)} times"
    target.write_text(text.replace(mutant.old, mutant.new))
    return core


@pytest.mark.slow
def test_an_unchanged_copy_passes_the_suite(tmp_path: Path) -> None:
    """So that what fails below fails for its bug."""
    shutil.copytree(ROOT / "core", tmp_path / "core", ignore=shutil.ignore_patterns("__pycache__"))
    result = run_suite(tmp_path / "core")
    assert result.returncode == 0, result.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_every_planted_bug_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    result = run_suite(mutate(tmp_path, mutant))
    assert result.returncode == 1, f"not caught: {mutant.name}\n{result.stdout[-2000:]}"
    assert "failed" in result.stdout


def test_the_places_to_change_exist() -> None:
    for mutant in MUTANTS:
        text = (ROOT / "core" / "curateevo" / "evolution" / mutant.module).read_text()
        assert text.count(mutant.old) == 1, mutant.name
    assert len(MUTANTS) >= 10
