"""`python -m bench.sandbox`: what it costs to start a policy's process, over the start of a bare Python.

One run, taking turns, so that a noisy machine disturbs all alike; medians of `--repeats`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import polars as pl

from curateevo.policy import sandbox
from curateevo.policy.builtin import source_of
from curateevo.trajectories.corpus import write_trajectories
from curateevo.trajectories.features import features_of
from curateevo.trajectories.model import TaskRef, Trajectory, Turn

IMPORTS = "import curateevo.policy.child"
WITHOUT_LANDLOCK = (
    "import sys; from curateevo.policy import child, confine; confine.sandlock = None; sys.exit(child.main())"
)
UNCONFINED = (
    "import sys; from curateevo.policy import child, confine; "
    "confine.confine_self = lambda *a: 'none'; sys.exit(child.main())"
)
SUPERVISED = (
    "import sys, sandlock; "
    "s = sandlock.Sandbox(fs_readable=['/'], allow_degraded=list(sandlock.Protection)); "
    "sys.exit(0 if s.run([sys.executable, '-I', '-c', 'pass']).success else 1)"
)


def started(*arguments: str) -> float:
    """Seconds of a Python from its start to its end."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-I", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    return time.perf_counter() - began


def ran(policy: Path, corpus: Path, child: tuple[str, ...]) -> float:
    """Seconds of a policy on a corpus of one trajectory."""
    sandbox.CHILD = child
    began = time.perf_counter()
    sandbox.run_policy(policy, corpus)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    whole = sandbox.CHILD
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        turn = Turn(("hello",), "hello")
        one = [Trajectory("t", "x:0", TaskRef("task", "hello"), (), None, (), (turn,))]
        write_trajectories(one, folder)
        features_of(one).write_parquet(folder / "features.parquet")
        policy = folder / "policy.py"
        policy.write_text(source_of("keep-all"))
        cases: dict[str, Callable[[], float]] = {
            "a bare python": lambda: started("-c", "pass"),
            "the sandbox's imports": lambda: started("-c", IMPORTS),
            "a policy, not confined": lambda: ran(policy, folder, ("-I", "-c", UNCONFINED)),
            "a policy, without Landlock": lambda: ran(policy, folder, ("-I", "-c", WITHOUT_LANDLOCK)),
            "a policy, confined": lambda: ran(policy, folder, whole),
            "a bare python, by sandlock's supervisor": lambda: started("-c", SUPERVISED),
        }
        seconds: dict[str, list[float]] = {case: [] for case in cases}
        failed: dict[str, str] = {}
        for _ in range(options.repeats):
            for case, measure in cases.items():
                try:
                    seconds[case].append(measure())
                except RuntimeError as error:
                    failed[case] = str(error)
    bare = median(seconds["a bare python"])
    print(f"as {'root' if os.getuid() == 0 else 'a user'}, Polars {pl.__version__}, {options.repeats} times each")
    for case, found in seconds.items():
        said = (
            f"{median(found) * 1000:7.0f} ms  {median(found) / bare:5.1f}" if found else f"does not run: {failed[case]}"
        )
        print(f"{case:42} {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
