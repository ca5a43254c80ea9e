"""From items to resources: SFT rows, RL tasks and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from curateevo.policy.operators.items import Context, Corpus, Items, MemoryItem, RlTask, TurnFlag
from curateevo.trajectories.features import WORD, reads_like_error, values, words


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
        if flags & TurnFlag.CALL and not flags & (TurnFlag.ERROR | TurnFlag.BAD_SCHEMA)
    ]
    ctx.rng.shuffle(points)
    return tuple(sorted(points[:count], key=lambda p: (p.row, p.turn)))


def memory_facts(corpus: Corpus, *, limit: int, trust_failures: bool = True) -> tuple[MemoryItem, ...]:
    """Environment facts: tool results that repeat an argument and say something more about it.

    A fact is a span of a result without an error. Results that say different things of the same arguments are no
    facts of the environment but of one run, and are left out. Trajectories that failed are believed as well unless
    `trust_failures` is false: what a tool answered is true whatever became of the run.
    """
    found: dict[tuple[str, str], dict[str, MemoryItem]] = defaultdict(dict)
    success = corpus.column("success")
    for row, trajectory in corpus.trajectories(range(len(corpus))).items():
        if not trust_failures and success[row] is not True:
            continue
        for number, turn in enumerate(trajectory.turns):
            for position, (call, result) in enumerate(zip(turn.calls, turn.results, strict=True)):
                if (fact := _fact(result, values(call.parsed()))) is not None:
                    start, end, key = fact
                    text = " ".join(words(result[start:end]))
                    item = MemoryItem(row, number, position, start, end, call.name, ("memory_facts",))
                    found[key, _shape(text, key)].setdefault(text, item)
    facts = [next(iter(texts.values())) for texts in found.values() if len(texts) == 1]
    unique: dict[str, MemoryItem] = {}
    for item, texts in zip(facts, (t for t in found.values() if len(t) == 1), strict=True):
        unique.setdefault(next(iter(texts)), item)
    return tuple(unique.values())[:limit]


MAX_FACT_CHARS = 240


def _fact(result: str, arguments: list[str]) -> tuple[int, int, str] | None:
    """The span from the echoed argument to the end of the line, and the argument; None when nothing more is said."""
    if reads_like_error(result):
        return None
    known = {w for value in arguments for w in words(value)}
    for value in arguments:
        if len(value) < 2 or value.isdigit():
            continue
        start = result.find(value)
        if start < 0:
            continue
        end = result.find("\n", start)
        end = len(result) if end < 0 else end
        if end - start <= MAX_FACT_CHARS and any(w not in known for w in words(result[start:end])):
            return start, end, value.lower()
    return None


def _shape(text: str, key: str) -> str:
    """The fact without its value: the words up to the last one."""
    found = WORD.findall(text)
    return " ".join(found[:-1]) if len(found) > 1 else key
