"""What is played before a task can be: conversations that leave something, once for all tasks that need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from curateevo_jobs.agents.chat import AnswerError, ChatModel
from curateevo_jobs.agents.episode import Episode, Rules, play
from curateevo_jobs.benchmarks.base import Carrying, Suite, Task


@dataclass(frozen=True, slots=True)
class Planned:
    """A task that is to be played."""

    task: Task
    suite: Suite
    repeat: int
    error: AnswerError | None = None
    """Set: a prerequisite could not be measured, and so this task can't be."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """One run of prerequisites: how far it came. Equal ids, with equal repeats, are one chain."""

    suite: Suite
    repeat: int
    tasks: tuple[Task, ...]
    last: Episode | None = None

    def prepare(self, task: Task) -> Planned:
        """`task` after what was played."""
        if self.last is None:
            return Planned(task, self.suite, self.repeat)
        if self.last.error is not None:
            error = AnswerError(f"a prerequisite: {self.last.error.message}", self.last.error.transient)
            return Planned(task, self.suite, self.repeat, error)
        environment = self.last.environment
        if not isinstance(environment, Carrying):
            raise TypeError(f"{task.id} has prerequisites, whose environment {type(environment).__name__} can't carry")
        return Planned(environment.carry(task), self.suite, self.repeat)


def play_prerequisites(
    model: ChatModel, planned: Sequence[Planned], rules: Rules, open_episode: Callable[[Planned], Episode]
) -> list[Planned]:
    """Play what the planned tasks need, the n-th of all chains together; the tasks as they are then, in order.

    Raises Transient where an environment can't say what it leaves.
    """
    chains = {_key(p): _Chain(p.suite, p.repeat, p.task.prerequisites) for p in planned if p.task.prerequisites}
    for position in range(max((len(c.tasks) for c in chains.values()), default=0)):
        live = {key: c for key, c in chains.items() if position < len(c.tasks)}
        episodes = [open_episode(c.prepare(c.tasks[position])) for c in live.values()]
        play(model, episodes, rules)
        for (key, chain), episode in zip(live.items(), episodes, strict=True):
            chains[key] = replace(chain, last=episode)
    return [chains[_key(p)].prepare(p.task) if p.task.prerequisites else p for p in planned]


def _key(planned: Planned) -> tuple[object, ...]:
    return (planned.suite.name, planned.repeat, *(task.id for task in planned.task.prerequisites))
