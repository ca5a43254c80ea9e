"""Suites by name: those that come with CurateEvo, and those of installed distributions (group `curateevo.suites`)."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo_jobs.benchmarks.base import Suite

NAMES = ("toolworld", "corpus", "bfcl", "tau2", "acebench")
GROUP = "curateevo.suites"


def suite(name: str, inputs: Path | None = None) -> Suite:
    """The suite called `name`. `inputs` is the stage's input folder, for suites that are made of the corpus itself.

    Raises SpecInvalid for a name that is not known, and ContractBroken for a plug-in that can't be had.
    """
    match name:
        case "toolworld":
            from curateevo_jobs.benchmarks.toolworld.suite import ToolworldSuite

            return ToolworldSuite()
        case "corpus":
            from curateevo_jobs.benchmarks.held_out import HeldOutSuite

            return HeldOutSuite(inputs)
        case "bfcl":
            from curateevo_jobs.benchmarks.bfcl.suite import BfclSuite

            return BfclSuite()
        case "tau2":
            from curateevo_jobs.benchmarks.tau2.suite import Tau2Suite

            return Tau2Suite()
        case "acebench":
            from curateevo_jobs.benchmarks.acebench.suite import AcebenchSuite

            return AcebenchSuite()
        case _:
            return _plugged_in(name)


def plug_ins() -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points of installed distributions, by the suite's name."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def _plugged_in(name: str) -> Suite:
    found = plug_ins()
    if name not in found:
        known = ", ".join((*NAMES, *sorted(set(found) - set(NAMES))))
        raise SpecInvalid(
            f"evaluation.suites: no suite called {name!r}",
            f"known: {known}; others come with a distribution that has an entry point in {GROUP}",
        )
    if len(found[name]) > 1:
        owners = ", ".join(sorted(str(point.dist and point.dist.name) for point in found[name]))
        raise ContractBroken(f"several distributions have a suite called {name!r}: {owners}", "uninstall all but one")
    [point] = found[name]
    try:
        opened: Suite = point.load()()
    except Exception as error:  # foreign code
        owner = point.dist and point.dist.name
        raise ContractBroken(
            f"suite {name} ({point.value}, of {owner}) can't be opened: {type(error).__name__}: {error}",
            "the entry point must name a class, or a function, that takes nothing and gives a Suite",
        ) from error
    if missing := [what for what in ("name", "tasks", "environment") if not hasattr(opened, what)]:
        raise ContractBroken(f"suite {name} ({point.value}) has no {missing[0]}", "see docs/benchmarks.md")
    return opened
