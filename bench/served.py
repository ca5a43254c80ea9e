"""`python -m bench.served`: 20 tasks of each suite on a real vLLM with the small base of toolworld, as a table.

The model can't solve them: what is looked at is that every task ends, and how.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from curateevo.api.spec import Sampling, SuiteRef
from curateevo.trajectories.corpus import HELD_OUT
from curateevo.trajectories.reading import read_files
from curateevo_jobs.agents.endpoint import Endpoint
from curateevo_jobs.agents.vllm import serve
from curateevo_jobs.benchmarks import registry, toolworld
from curateevo_jobs.benchmarks.held_out import hold_out
from curateevo_jobs.benchmarks.toolworld.__main__ import write_corpus
from curateevo_jobs.suite_run import SuiteRun, run_suite
from tests.conftest import ACEBENCH
from tests.jobs.simulated_user import simulated_user

BASE = Path(toolworld.__file__).parent / "base"
RUNS = (
    ("toolworld", {"perSkill": 2}),
    ("corpus", {}),
    (
        "bfcl",
        {"categories": ["simple_python", "live_multiple", "multi_turn_base", "multi_turn_miss_func"], "perCategory": 5},
    ),
    ("tau2", {"domains": ["airline", "retail", "telecom", "mock-solo"], "perDomain": 5}),
    ("tau2", {"domains": ["telecom-solo"], "perDomain": 20}),
    ("acebench", {"perFamily": 5, "folder": str(ACEBENCH)}),
)


def hold_out_corpus(folder: Path) -> None:
    """20 next calls of toolworld's corpus, as ingest leaves them for the suite `corpus`."""
    write_corpus(0, folder / "corpus.jsonl", folder / "truth.json")
    read = read_files([(folder / "corpus.jsonl", "toolworld")])
    rows = hold_out(read.trajectories, {"maxTasks": 20}).rows
    (folder / HELD_OUT).write_text("".join(json.dumps(row) + "\n" for row in rows))


class Silent:
    """Progress that nobody looks at."""

    def report(self, phase: str, done: int, total: int, **metrics: float) -> None:
        pass


def main() -> int:
    missing = 0
    with tempfile.TemporaryDirectory(prefix="curateevo-served-") as scratch, simulated_user() as user:
        folder = Path(scratch)
        hold_out_corpus(folder)
        with serve(BASE, arguments=(), chat_template=None, start_seconds=600.0, scratch=folder) as server:
            print(
                "| suite | families | tasks | measured | success | nothing | checks | errors | seconds |\n|"
                + "---|" * 9
            )
            for number, (name, params) in enumerate(RUNS):
                request = SuiteRun(
                    suite=SuiteRef(
                        name=name, params={**params, **({"user": user} if name in ("tau2", "acebench") else {})}
                    ),
                    endpoint=server.base_url,
                    model=server.model,
                    sampling=Sampling(max_turns=20, max_tokens=128),
                    output=str(folder / str(number)),
                )
                endpoint = Endpoint(server.base_url, server.model, concurrency=8)
                began = time.monotonic()
                scores = run_suite(request, registry.suite(name, folder), endpoint, Silent())
                endpoint.close()
                every, seconds = scores["all"], time.monotonic() - began
                families = ", ".join(scores["families"])
                print(
                    f"| {name} | {families} | {every['tasks']} | {every['measured']} | {every['success']} | "
                    f"{every['nothing']:.2f} | {scores['checks']} | {scores['errors']} | {seconds:.0f} |",
                    flush=True,
                )
                missing += scores["missing"]
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
