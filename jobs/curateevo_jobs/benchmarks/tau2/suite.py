"""τ²-bench as a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from curateevo_jobs.benchmarks.base import Environment, Task
from curateevo_jobs.benchmarks.params import names_of, refuse_unknown, sample, whole_number
from curateevo_jobs.benchmarks.simulator import simulator_of
from curateevo_jobs.benchmarks.tau2.dataset import SOLO_SUFFIX, tasks_of
from curateevo_jobs.benchmarks.tau2.worlds import open_world

DOMAINS = ("airline", "retail", "telecom", "mock", "telecom-solo", "mock-solo")
"""The families. `-solo`: the agent has a ticket and the tools of both sides, and there is no user."""
SPLITS = ("base", "train", "test")
_KNOWN_PARAMS = frozenset({"domains", "split", "perDomain", "seed", "user"})


class Tau2Suite:
    """Params: `domains` (airline, retail, telecom), `split` (base), `perDomain` (all tasks) and `seed` (0): which ones
    those are; `user`, the simulator: see `simulator.py`. Domains without a user do without it."""

    name = "tau2"

    def tasks(self, params: Mapping[str, Any]) -> Sequence[Task]:
        """The tasks, domain by domain. Raises SpecInvalid for bad params, ContractBroken without the package."""
        refuse_unknown(self.name, params, _KNOWN_PARAMS)
        domains = names_of(self.name, "domains", params.get("domains", DOMAINS[:3]), DOMAINS)
        [split] = names_of(self.name, "split", [params.get("split", "base")], SPLITS)
        count = whole_number(self.name, params, "perDomain", None)
        seed = whole_number(self.name, params, "seed", 0)
        talks = any(not domain.endswith(SOLO_SUFFIX) for domain in domains)
        simulator = simulator_of(self.name, params) if talks or "user" in params else None
        found = tasks_of(domains, split, simulator)
        return [task for tasks in found for task in sample(self.name, tasks, count, seed)]

    def environment(self, state: str) -> Environment:
        """A fresh environment from a task's state."""
        return open_world(state)
