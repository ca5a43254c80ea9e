"""Suite `corpus`: the next call on held-out corpus tasks, for logs that have no environment to act in.

A task is one decision point of a successful trajectory: its messages up to a turn that calls a tool. The reference is
that turn's calls. It measures imitation of good runs, not success in the world: say so beside its number.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo.trajectories.corpus import HELD_OUT
from curateevo.trajectories.model import Trajectory
from curateevo_jobs.benchmarks.base import JsonObject, Score, Task

PARTIAL_REWARD = 0.5
DEFAULTS = {"fraction": 0.3, "maxTasks": 200, "maxPromptChars": 20_000, "seed": 0}


@dataclass(slots=True)
class NextCall:
    """Compares the first calls that an agent makes with the reference."""

    reference: list[JsonObject]
    calls: list[JsonObject] = field(default_factory=list)

    def call(self, name: str, arguments: JsonObject) -> str:
        """Record the call. There is nothing to answer with, so the episode should end here."""
        self.calls.append({"name": name, "arguments": arguments})
        return "recorded"

    def score(self, final_text: str) -> Score:
        made = self.calls[: len(self.reference)]
        names = [c["name"] for c in made] == [c["name"] for c in self.reference]
        exact = made == self.reference
        reward = 1.0 if exact else PARTIAL_REWARD if names else 0.0
        return Score(float(exact), reward, {"called": bool(made), "right_tool": names, "right_arguments": exact})


class HeldOutSuite:
    """Reads the decision points that ingest held out."""

    name = "corpus"

    def __init__(self, inputs: Path | None) -> None:
        self._path = None if inputs is None else inputs / HELD_OUT

    def tasks(self, params: Mapping[str, Any]) -> Sequence[Task]:
        """The held-out decision points; all choices were made at ingest."""
        if self._path is None or not self._path.is_file():
            raise ContractBroken(
                "suite corpus: no held-out tasks among the inputs", "ingest the corpus with this suite"
            )
        with self._path.open(encoding="utf-8") as lines:
            return [_task(json.loads(line)) for line in lines]

    def environment(self, state: str) -> NextCall:
        return NextCall(json.loads(state)["reference"])


def _task(row: JsonObject) -> Task:
    state = json.dumps({"reference": row["reference"]})
    return Task(row["id"], row["family"], tuple(row["messages"]), tuple(row["tools"]), state)


def held_tasks(task_ids: Iterable[str], params: Mapping[str, Any]) -> frozenset[str]:
    """A `fraction` of a corpus's tasks. Raises SpecInvalid for params that are not known."""
    chosen = _chosen(params)
    ids = sorted(set(task_ids), key=lambda task_id: _rank(task_id, chosen["seed"]))
    return frozenset(ids[: max(1, round(len(ids) * float(chosen["fraction"])))])


def hold_out(runs: Iterable[Trajectory], params: Mapping[str, Any]) -> list[JsonObject]:
    """Of the runs of held-out tasks that did not fail, up to `maxTasks` decision points whose messages are at most
    `maxPromptChars` long, by id. Raises SpecInvalid for params that are not known."""
    chosen = _chosen(params)
    rows = (
        row
        for run in runs
        if run.outcome.success is not False
        for row in _decisions(run, int(chosen["maxPromptChars"]))
    )
    kept = heapq.nsmallest(int(chosen["maxTasks"]), rows, key=lambda row: _rank(row["id"], chosen["seed"]))
    return sorted(kept, key=lambda row: str(row["id"]))


def _chosen(params: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(params) - set(DEFAULTS)):
        raise SpecInvalid(f"suite corpus knows no param {unknown[0]!r}", f"known: {', '.join(DEFAULTS)}")
    return {**DEFAULTS, **params}


def _decisions(trajectory: Trajectory, max_chars: int) -> list[JsonObject]:
    rows = []
    for number, turn in enumerate(trajectory.turns):
        arguments = [call.parsed() for call in turn.calls]
        if not turn.calls or None in arguments:
            continue
        messages = trajectory.messages(range(number)) + [{"role": "user", "content": text} for text in turn.users]
        if len(json.dumps(messages)) <= max_chars:
            reference = [{"name": c.name, "arguments": a} for c, a in zip(turn.calls, arguments, strict=True)]
            rows.append(
                {
                    "id": f"corpus/{trajectory.id}/{number}",
                    "group": trajectory.task.id,
                    "family": turn.calls[0].name,
                    "messages": messages,
                    "tools": list(trajectory.tools),
                    "reference": reference,
                }
            )
    return rows


def _rank(text: str, seed: int) -> str:
    return sha256(f"{seed}|{text}".encode()).hexdigest()
