"""Reads a benchmark's data in a process that ends: importing its package has effects that are unwanted here."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from curateevo.api.errors import ContractBroken
from curateevo_jobs.benchmarks.base import JsonObject
from curateevo_jobs.benchmarks.enclosure import environment_of


def read_items(suite: str, module: str, arguments: Sequence[str], install: str) -> list[JsonObject]:
    """The JSON lines that `python -m MODULE ARGUMENT...` prints. Raises ContractBroken; `install` is the remedy."""
    with tempfile.TemporaryDirectory(prefix=f"curateevo-{suite}-") as scratch:
        done = subprocess.run(
            [sys.executable, "-I", "-m", module, *arguments],
            env=environment_of(scratch),
            cwd=scratch,
            capture_output=True,
            check=False,
        )
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ContractBroken(f"suite {suite} can't be read: {said[-1] if said else 'its reader died'}", install)
    return [json.loads(line) for line in done.stdout.splitlines()]
