"""What the messages of a chat say, whoever reads them."""

from __future__ import annotations

from dataclasses import dataclass

from curateevo.trajectories.model import JsonObject, RunOutcome, TaskRef, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Conversation:
    """The parts of a trajectory that its messages hold."""

    system: str | None
    head: tuple[str, ...]
    turns: tuple[Turn, ...]
    tail: tuple[str, ...]

    @property
    def opening(self) -> str:
        """The first user messages: the prompt of a task that has no other."""
        return "\n".join(self.head)

    def trajectory(
        self,
        name: str,
        source: str,
        *,
        tools: tuple[JsonObject, ...],
        task: TaskRef | None = None,
        outcome: RunOutcome | None = None,
        labels: JsonObject | None = None,
        licence: str | None = None,
    ) -> Trajectory:
        """The trajectory called `name` with these messages. Without `task` it is one of its own."""
        return Trajectory(
            id=name,
            source=source,
            task=task or TaskRef(id=name, prompt=self.opening),
            tools=tools,
            system=self.system,
            head=self.head,
            turns=self.turns,
            tail=self.tail,
            outcome=outcome or RunOutcome(),
            labels=labels or {},
            licence=licence,
        )
