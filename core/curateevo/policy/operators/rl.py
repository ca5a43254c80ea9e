"""RL tasks: what is practised."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from curateevo.policy.operators.items import Context, Items, RlTask, TurnFlag


def rl_environment(items: Items, ctx: Context, *, count: int, aim: Iterable[str] = ()) -> tuple[RlTask, ...]:
    """`count` tasks of the items' trajectories that have an environment, families in turn.

    Tasks of the families in `aim` are marked aimed; all are when `aim` is empty.
    """
    env, family, task = (items.corpus.column(name) for name in ("env", "family", "task_id"))
    aimed = set(aim)
    queues: dict[str, list[int]] = defaultdict(list)
    seen: set[str] = set()
    for item in items:
        if env[item.row] is not None and task[item.row] not in seen:
            seen.add(task[item.row])
            queues[family[item.row]].append(item.row)
    for rows in queues.values():
        ctx.rng.shuffle(rows)
    out: list[RlTask] = []
    while len(out) < count and any(queues.values()):
        for name in sorted(queues):
            if queues[name] and len(out) < count:
                row = queues[name].pop()
                out.append(RlTask(row, aimed=not aimed or name in aimed, lineage=("rl_environment",)))
    return tuple(out)


def rl_tasks(items: Items, ctx: Context, *, count: int, aim: Iterable[str] = ()) -> tuple[RlTask, ...]:
    """`rl_environment` where the items' tasks have one, `rl_next_action` for logs that have none."""
    found = rl_environment(items, ctx, count=count, aim=aim)
    return found or rl_next_action(items, ctx, count=count)


def rl_next_action(items: Items, ctx: Context, *, count: int) -> tuple[RlTask, ...]:
    """`count` decision points: the reward is whether the next call equals the kept trajectory's."""
    points = [
        RlTask(item.row, turn, "action_match", True, ("rl_next_action",))
        for item in items
        for turn, flags in zip(item.turns, items.flags(item), strict=True)
        if _imitable(flags) and turn not in item.masked
    ]
    ctx.rng.shuffle(points)
    return tuple(sorted(points[:count], key=lambda p: (p.row, p.turn)))


def _imitable(flags: int) -> bool:
    return bool(flags & TurnFlag.CALL) and not flags & (TurnFlag.ERROR | TurnFlag.BAD_SCHEMA)


def rl_contrasts(items: Items, ctx: Context, *, count: int, by: str = "task_id") -> tuple[RlTask, ...]:
    """`count` tasks where success hangs on what is done: GRPO needs rewards that differ within a group.

    Tasks with an environment of groups (of feature `by`) with mixed outcomes: `items` must hold failures as well, and
    where each task was tried once, `by` must be "family". Empty where no group is mixed.
    For logs without an environment, decision points: turns of a success where a failure of the same group, after the
    same calls, made another one; the reward is the success's call.
    """
    success = items.corpus.column("success")
    mixed = {key: group for key, group in items.groups(by).items() if {success[i.row] for i in group} >= {True, False}}
    inside = items.keep(lambda i: items.corpus.column(by)[i.row] in mixed, "rl_contrasts")
    if tasks := rl_environment(inside, ctx, count=count):
        return tuple(replace(task, lineage=("rl_contrasts",)) for task in tasks)
    points: dict[tuple[int, int], RlTask] = {}
    for group in mixed.values():
        after: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for item in group:
            if success[item.row] is False:
                for _, before, made in _decisions(items, item.row):
                    after[before].add(made)
        for item in group:
            if success[item.row] is not True:
                continue
            for turn, before, made in _decisions(items, item.row):
                if turn in item.trained and after.get(before, set()) - {made}:
                    points[item.row, turn] = RlTask(item.row, turn, "action_match", True, ("rl_contrasts",))
    chosen = list(points.values())
    ctx.rng.shuffle(chosen)
    return tuple(sorted(chosen[:count], key=lambda p: (p.row, p.turn)))


def _decisions(items: Items, row: int) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """Turns of a trajectory that may be imitated: turn, the calls before it, its own (hashes)."""
    made: list[int] = []
    columns = (items.corpus.column(name)[row] for name in ("turn_calls", "turn_flags"))
    for turn, (call, flags) in enumerate(zip(*columns, strict=True)):
        if _imitable(flags):
            yield turn, tuple(made), call
        if call:
            made.append(call)
