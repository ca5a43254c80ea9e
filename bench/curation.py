"""Curation of a large corpus beside Data-Juicer and datatrove, in one run: rate, peak memory, and what was kept.

    CURATEEVO_TEST_DATA=DIR python -m bench.curation [--count 20000] [--growth 10000 100000 1000000]

The corpus: half of it τ-bench's airline runs (17 KB a row), half toolworld's corpus (3 KB), copied with other numbers
in each copy; one row in ten is an exact duplicate of the row before it. All three keep successes, drop exact and near
duplicates, cut what is left to its last turns and profile it. Ours by the command line, twice, so that the second
policy meets a corpus that is there; the sandbox, the gate's two runs and the writing of rows included. The others by
`beside/`, each in an environment of its own below the cache folder. Near duplicates differ by design: ours compare
calls and the words around them, the others all text, by other estimates, so that the three keep different numbers.
Peak memory is that of the largest process.

`--growth` does ours alone, on corpora of other sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from curateevo.trajectories.formats.tau_bench import parse_tau_bench
from curateevo.trajectories.model import JsonObject
from curateevo_jobs.benchmarks.toolworld.corpus import generate

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "curateevo"
OTHERS = {
    "data-juicer": ("py-data-juicer==1.6.1", "aiohttp", "ray==2.60.0", "scipy==1.17.1"),
    "datatrove": ("datatrove[io,processing]==0.10.1", "orjson", "regex"),
}
TURNS, THRESHOLD, DUPLICATES = 12, 0.85, 10
POLICY = f"""
def select(corpus, ctx):
    return api.keep_successes(corpus.items())


def refine(items, ctx):
    return items


def augment(items, ctx):
    return items


def build_sft(items, ctx):
    return api.keep_tail(items, max_turns=ctx.params["turns"])


def build_rl(items, ctx):
    return ()


def build_memory(items, ctx):
    return ()


def prune(resources, ctx):
    sft = api.drop_exact_duplicates(resources.sft)
    return replace(resources, sft=api.drop_near_duplicates(sft, threshold={THRESHOLD}))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float
    peak_bytes: int

    def show(self, what: str, count: int, kept: int | None) -> str:
        left = "" if kept is None else f", {kept} kept"
        return f"{what}: {count / self.seconds:.0f} trajectories/s, {self.peak_bytes / 1e9:.2f} GB at most{left}"


def run(*command: str | Path) -> Cost:
    """A program to its end; the peak is that of the largest of its processes."""
    began = time.monotonic()
    process = subprocess.Popen(
        [str(c) for c in command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{command[0]}: exit {os.waitstatus_to_exitcode(status)}")
    return Cost(time.monotonic() - began, usage.ru_maxrss << 10)


def base_rows(data: Path) -> tuple[list[JsonObject], list[JsonObject]]:
    """OpenAI chats of either source."""
    runs = json.loads((data / "tau-bench" / "gpt-4o-airline.json").read_text())
    airline = [parse_tau_bench(row, f"airline:{n}") for n, row in enumerate(runs)]
    rows = [
        {"messages": t.messages(), "tools": list(t.tools), "success": t.outcome.success, "task": {"id": t.task.id}}
        for t in airline
    ]
    world, _ = generate(0)
    made = [{**row, "success": row["outcome"]["success"], "task": {"id": row["task"]["id"]}} for row in world]
    return rows, [{key: row[key] for key in ("messages", "tools", "success", "task")} for row in made]


def varied(sources: tuple[list[JsonObject], ...], count: int, seed: int = 0) -> Iterator[str]:
    """JSON lines: rows of each source in turn, again and again, with other digits in the numbers of each copy."""
    rng, last = random.Random(seed), ""
    texts = [[json.dumps(row) for row in rows] for rows in sources]
    for number in range(count):
        if number % DUPLICATES == DUPLICATES - 1:
            yield last
            continue
        shift = rng.randrange(1, 1000)
        some = texts[number % len(texts)]
        text = some[number // len(texts) % len(some)]
        last = re.sub(r"(?<=[a-zA-Z ])\d{3,}", lambda m, by=shift: str(int(m.group()) + by), text)
        yield last


def lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--growth", type=int, nargs="*", default=[])
    options = parser.parse_args()
    data = Path(os.environ.get("CURATEEVO_TEST_DATA", ROOT.parent / "shared" / "data"))
    rows = base_rows(data)
    for count in options.growth:
        with tempfile.TemporaryDirectory(prefix="curateevo-bench-") as name:
            ours(write(rows, count, Path(name)), count)
    if not options.growth:
        with tempfile.TemporaryDirectory(prefix="curateevo-bench-") as name:
            raw = write(rows, options.count, Path(name))
            cost = ours(raw, options.count)
            for other in OTHERS:
                beside(other, raw, options.count, cost)
    return 0


def write(rows: tuple[list[JsonObject], ...], count: int, folder: Path) -> Path:
    raw = folder / "raw.jsonl"
    with raw.open("w") as out:
        out.writelines(f"{line}\n" for line in varied(rows, count))
    print(f"{count} trajectories, {raw.stat().st_size / 1e6:.0f} MB", flush=True)
    return raw


def ours(raw: Path, count: int) -> Cost:
    """Ingest and the first policy together; the second one is printed."""
    folder, tool = raw.parent, Path(sys.executable).with_name("curateevo")
    ingest = run(tool, "ingest", raw, "--format", "openai", "-o", folder / "corpus")
    print(ingest.show("ingest", count, None), flush=True)
    costs = []
    for turns in (TURNS, TURNS // 2):
        policy = folder / f"policy-{turns}.py"
        head = f'from dataclasses import replace\n\nPOLICY_API = 1\nPARAMS = {{"turns": {turns}}}\n'
        policy.write_text(head + POLICY)
        made = folder / f"made-{turns}"
        costs.append(run(tool, "curate", "--policy", policy, "--corpus", folder / "corpus", "-o", made))
        print(costs[-1].show(f"policy, the last {turns} turns", count, lines(made / "sft.jsonl")), flush=True)
        shutil.rmtree(made)
    shutil.rmtree(folder / "corpus")
    both = Cost(ingest.seconds + costs[0].seconds, max(ingest.peak_bytes, costs[0].peak_bytes))
    print(both.show("ingest and policy", count, None))
    print(f"the second policy: {both.seconds / costs[1].seconds:.1f} times as fast as the first with its ingest")
    return both


def beside(other: str, raw: Path, count: int, cost: Cost) -> None:
    """The same by `other`, and the ratios."""
    python = CACHE / other / "bin" / "python"
    if not python.exists():
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "-q", "--python", "3.11", CACHE / other], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", python, *OTHERS[other]], check=True)
    program = ROOT / "bench" / "beside" / f"{other.replace('-', '_')}_curation.py"
    out = raw.parent / other
    out.mkdir()
    theirs = run(python, program, raw, out, str(TURNS), str(THRESHOLD))
    print(theirs.show(other, count, lines(out / "kept.jsonl")))
    print(
        f"ours over {other}: {theirs.seconds / cost.seconds:.1f} times the rate, "
        f"{cost.peak_bytes / theirs.peak_bytes:.2f} of the memory",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
