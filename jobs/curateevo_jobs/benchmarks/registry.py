"""Suites by name."""

from __future__ import annotations

from pathlib import Path

from curateevo.api.errors import SpecInvalid
from curateevo_jobs.benchmarks.base import Suite

NAMES = ("toolworld", "corpus")


def suite(name: str, inputs: Path | None = None) -> Suite:
    """The suite called `name`. `inputs` is the stage's input folder, for suites that are made of the corpus itself.

    Raises SpecInvalid for a name that is not known.
    """
    match name:
        case "toolworld":
            from curateevo_jobs.benchmarks.toolworld.suite import ToolworldSuite

            return ToolworldSuite()
        case "corpus":
            from curateevo_jobs.benchmarks.held_out import HeldOutSuite

            return HeldOutSuite(inputs)
        case _:
            raise SpecInvalid(f"evaluation.suites: no suite called {name!r}", f"known: {', '.join(NAMES)}")
