"""A served model on a suite: `python -m curateevo_jobs.suite_run REQUEST.json`, as `curateevo evaluate` starts it.

Every episode is written down when it ends, so that a run that was killed goes on where it stopped. Episodes that could
not be measured are tried again by the next run; prerequisites are played again as long as a task needs them.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from threading import Event
from typing import Any, Literal, TextIO

from pydantic import Field, ValidationError

from curateevo.api.base import Model
from curateevo.api.errors import ContractBroken, CurateEvoError, Denied
from curateevo.api.spec import Sampling, SuiteRef
from curateevo_jobs.agents.chat import ChatModel, Generation
from curateevo_jobs.agents.endpoint import Endpoint
from curateevo_jobs.agents.episode import Episode, Rules, State, play_one, seed_of
from curateevo_jobs.agents.nothing import Nothing
from curateevo_jobs.agents.prerequisites import Planned, play_prerequisites
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.base import Suite, Task
from curateevo_jobs.progress import open_progress
from curateevo_jobs.stage import Progress

KEY_VARIABLE = "CURATEEVO_API_KEY"
RUN, RESULTS, TRAJECTORIES, FLOORS, SCORES = (
    "run.json", "results.jsonl", "trajectories.jsonl", "floors.json", "scores.json",
)  # fmt: skip
REFUSED = ("HTTP 401", "HTTP 403", "HTTP 404")
"""Errors that every task would share: no key, a wrong one, no such model."""

JsonObject = dict[str, Any]


class SuiteRun(Model):
    """What is run. Equal runs may share a folder; `concurrency` and `endpoint` change no result."""

    suite: SuiteRef
    endpoint: str
    model: str
    sampling: Sampling = Sampling()
    repeats: int = Field(default=1, ge=1)
    seed: int = 0
    concurrency: int = Field(default=16, ge=1)
    output: str

    @property
    def identity(self) -> JsonObject:
        return self.model_dump(mode="json", by_alias=True, exclude={"endpoint", "concurrency", "output"})


def main(argv: Sequence[str]) -> int:
    """Run, and return the exit code by class of error."""
    kind: Literal["bar", "json"] = "bar" if sys.stderr.isatty() else "json"
    progress = open_progress("evaluate", kind)
    try:
        request = SuiteRun.model_validate_json(Path(argv[0]).read_bytes())
        key = os.environ.get(KEY_VARIABLE, "none")
        endpoint = Endpoint(request.endpoint, request.model, api_key=key, concurrency=request.concurrency)
        run_suite(request, registry.suite(request.suite.name), endpoint, progress)
    except ValidationError as error:
        first = error.errors()[0]
        return _fail(ContractBroken(f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))
    except CurateEvoError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return 130
    finally:
        progress.close()
    return 0


def _fail(error: CurateEvoError) -> int:
    print(error, file=sys.stderr)  # noqa: T201
    return int(error.exit_code)


def run_suite(request: SuiteRun, suite: Suite, model: ChatModel, progress: Progress) -> JsonObject:
    """Play what is not done yet; the scores, which are written to `scores.json` too.

    Raises ContractBroken for a folder of another run, Denied when the server refuses the model or the key, Transient
    where an environment can't say what it leaves.
    """
    folder = Path(request.output)
    _claim(folder, request)
    tasks = suite.tasks(request.suite.params)
    repeats = request.repeats if request.sampling.temperature > 0 else 1
    done = {(row["task"], row["repeat"]) for row in read_rows(folder / RESULTS) if row["error"] is None}
    todo = [Planned(t, suite, n) for t, n in product(tasks, range(repeats)) if (t.id, n) not in done]
    with _appended(folder / RESULTS) as results, _appended(folder / TRAJECTORIES) as transcripts:
        for n, (planned, episode) in enumerate(_played(request, model, todo, progress), start=1):
            row = _result(planned, episode)
            results.write(_line(row))
            results.flush()
            transcripts.write(_line(_transcript(planned, episode)))
            progress.report("tasks", len(done) + n, len(done) + len(todo))
            if _refused(episode):
                raise Denied(f"{request.endpoint}: {row['error']}", f"check --model, and {KEY_VARIABLE} for the key")
    floors = _floors(request, tasks, suite, folder / FLOORS, progress)
    scores = summarise(request, tasks, read_rows(folder / RESULTS), floors, repeats)
    (folder / SCORES).write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return scores


def _claim(folder: Path, request: SuiteRun) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RUN
    if not path.exists():
        path.write_text(json.dumps(request.identity, indent=1) + "\n", encoding="utf-8")
    elif (there := json.loads(path.read_text(encoding="utf-8"))) != request.identity:
        fields = [name for name in request.identity if there.get(name) != request.identity[name]]
        raise ContractBroken(f"{folder} holds a run with another {', '.join(fields)}", "choose another --output")


def _played(
    request: SuiteRun, model: ChatModel, todo: Sequence[Planned], progress: Progress
) -> Iterable[tuple[Planned, Episode]]:
    """The planned tasks, each as soon as it is over; none begins once the server has refused one."""
    refused = Event()
    rules = Rules(Generation(request.sampling.temperature, request.sampling.max_tokens), request.sampling.max_turns)

    def open_episode(planned: Planned) -> Episode:
        task = planned.task
        messages = [dict(message) for message in task.messages]
        seed = seed_of(request.seed, task.id, planned.repeat)
        return Episode(seed, messages, task.tools, planned.suite.environment(task.state), error=planned.error)

    def finish(planned: Planned) -> tuple[Planned, Episode] | None:
        if refused.is_set():
            return None
        episode = open_episode(planned)
        play_one(model, episode, rules)
        if _refused(episode):
            refused.set()
        return planned, episode

    if needed := len({task.id for planned in todo for task in planned.task.prerequisites}):
        progress.report("prerequisites", 0, needed)
    ready = play_prerequisites(model, todo, rules, open_episode)
    pool = ThreadPoolExecutor(max(1, model.concurrency))
    try:
        for over in as_completed([pool.submit(finish, planned) for planned in ready]):
            if played := over.result():
                yield played
    finally:
        pool.shutdown(cancel_futures=True)


def _refused(episode: Episode) -> bool:
    return episode.error is not None and episode.error.message.startswith(REFUSED)


def _result(planned: Planned, episode: Episode) -> JsonObject:
    score = episode.score() if episode.state is State.FINISHED else None
    return {
        "task": planned.task.id,
        "family": planned.task.family,
        "repeat": planned.repeat,
        "success": score.success if score else None,
        "reward": score.reward if score else None,
        "checks": score.checks if score else {},
        "turns": episode.turns,
        "tokens": episode.tokens,
        "error": episode.error.message if episode.error else None,
    }


def _transcript(planned: Planned, episode: Episode) -> JsonObject:
    row = {"task": planned.task.id, "repeat": planned.repeat, "messages": episode.messages}
    return {**row, "tools": list(episode.tools)}


def _appended(path: Path) -> TextIO:
    """A file to append lines to; one that a kill cut off is ended."""
    file = path.open("a", encoding="utf-8")
    if file.tell() and not path.read_bytes().endswith(b"\n"):
        file.write("\n")
    return file


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def read_rows(path: Path) -> list[JsonObject]:
    """The rows of a file that is appended to, the last of each task and repeat, without a line that a kill cut off."""
    rows: dict[tuple[str, int], JsonObject] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["task"], row["repeat"]] = row
    return list(rows.values())


def _floors(request: SuiteRun, tasks: Sequence[Task], suite: Suite, path: Path, progress: Progress) -> dict[str, float]:
    """What an agent that does nothing scores, by family."""
    if not path.exists():
        once = request.model_copy(update={"repeats": 1})
        found: dict[str, list[float]] = {}
        planned = [Planned(task, suite, 0) for task in tasks]
        for n, (p, episode) in enumerate(_played(once, Nothing(), planned, progress), start=1):
            progress.report("floor", n, len(tasks))
            if episode.state is State.FINISHED:
                found.setdefault(p.task.family, []).append(episode.score().success)
        path.write_text(json.dumps({family: fmean(values) for family, values in sorted(found.items())}) + "\n")
    floors: dict[str, float] = json.loads(path.read_text())
    return floors


def summarise(
    request: SuiteRun, tasks: Sequence[Task], rows: Sequence[JsonObject], floors: Mapping[str, float], repeats: int
) -> JsonObject:
    """Success by family and over all tasks: means over tasks of the mean over a task's measured repeats. Beside it
    the mean reward of the measured episodes: what the suite says of how far they came."""
    by_family: dict[str, list[str]] = {}
    for task in tasks:
        by_family.setdefault(task.family, []).append(task.id)
    measured = [row for row in rows if row["success"] is not None]
    values: dict[str, list[float]] = {}
    for row in measured:
        values.setdefault(row["task"], []).append(row["success"])
    errors = Counter(row["error"].partition(":")[0] for row in rows if row["error"] is not None)
    checks = Counter(name for row in rows for name, value in row["checks"].items() if value)
    families = {
        name: {
            **_spread([fmean(values[i]) for i in ids if i in values]),
            "tasks": len(ids),
            "nothing": floors.get(name),
            "reward": _mean([row["reward"] for row in measured if row["family"] == name]),
        }
        for name, ids in by_family.items()
    }
    total = len(tasks)
    nothing = sum((floors.get(name) or 0.0) * len(ids) for name, ids in by_family.items()) / total if total else 0.0
    return {
        **request.identity,
        "all": {
            **_spread([fmean(v) for v in values.values()]),
            "tasks": total,
            "nothing": nothing,
            "reward": _mean([row["reward"] for row in measured]),
        },
        "families": families,
        "errors": dict(errors),
        "checks": dict(sorted(checks.items())),
        "tokens": sum(row["tokens"] for row in rows),
        "episodes": len(rows),
        "missing": total * repeats - sum(len(v) for v in values.values()),
    }


def _spread(means: Sequence[float]) -> JsonObject:
    error = stdev(means) / sqrt(len(means)) if len(means) > 1 else None
    return {"success": _mean(means), "standard_error": error, "measured": len(means)}


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
