"""`python -m bench.loop`: the wall clock of a round, over that of bare TRL and evaluation scripts doing the same work.

One run, alternating, so that a noisy machine disturbs both; medians of `--repeats`. Goal: at most 1.10.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from curateevo.api.evolution import Stage
from curateevo.api.stage import CurateSummary, EvaluateSummary, Manifest, StoreRef
from curateevo.evolution.names import attempt_prefix
from curateevo.local.objects import RunFolder
from curateevo.store.artifacts import fetch_inputs, read_manifest
from curateevo.store.connect import connect

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "jobs/curateevo_jobs/benchmarks/toolworld/base"


def spec(sft_steps: int, grpo_steps: int) -> dict[str, Any]:
    """The example's spec, version 0 only, without floors, memory and sealed test: what a bare script does too."""
    raw: dict[str, Any] = yaml.safe_load((ROOT / "examples/toolworld.yaml").read_text())
    changed = raw["spec"]
    changed["rounds"] = {"max": 0}
    changed["policy"] = {"initial": {"builtin": "success-only"}}
    changed["evaluation"] |= {"floors": False, "splits": {"diag": 0.3, "sel": 0.7, "test": 0.0}}
    changed["memory"] = {"enabled": False}
    changed["training"]["sft"]["maxSteps"], changed["training"]["grpo"]["maxSteps"] = sft_steps, grpo_steps
    changed["training"]["gate"] = {"minCallRate": 0.0, "maxDeadGroupFraction": 1.0}
    return raw


def timed(command: list[str]) -> float:
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return time.monotonic() - started


def loop_round(work: Path, raw: dict[str, Any]) -> tuple[float, dict[str, Manifest]]:
    """Seconds of a whole `curateevo run` less its ingest program, and the manifests of version 0."""
    path = work / "loop.yaml"
    path.write_text(yaml.safe_dump(raw))
    seconds = timed([sys.executable, "-m", "curateevo.cli", "run", str(path), "--dir", str(work / "run")])
    evolution = RunFolder(work / "run").evolution()
    store, uid = connect(StoreRef(uri=evolution.spec.storage.uri)), evolution.metadata.uid or ""
    found: dict[str, Manifest] = {}
    for stage, version in ((Stage.INGEST, None), (Stage.CURATE, 0), (Stage.TRAIN, 0), (Stage.EVALUATE, 0)):
        manifest = read_manifest(store, attempt_prefix(uid, stage, version, 1))
        assert manifest is not None
        found[stage.value] = manifest
    curate = found["curate"]
    inputs = {name: curate.file(name).ref for name in ("sft.jsonl", "rl.jsonl")}
    fetch_inputs(store, inputs | {"splits.json": found["ingest"].file("splits.json").ref}, work)
    return seconds - found["ingest"].usage.seconds, found


def bare_round(work: Path, raw: dict[str, Any]) -> float:
    """Seconds of the bare scripts on the files that the loop's curate stage made."""
    training, evaluation = raw["spec"]["training"], raw["spec"]["evaluation"]
    sections = {}
    for phase in ("sft", "grpo"):
        section = training[phase]
        sections[phase] = {
            **section["args"],
            "learning_rate": section["learningRate"],
            "max_steps": section["maxSteps"],
            "save_steps": training["saveSteps"],
        }
    sections["grpo"]["beta"] = training["grpo"]["beta"]
    splits = json.loads((work / "splits.json").read_text())
    recipe = {
        "base": str(BASE),
        "tasks": splits["diag"] + splits["sel"],
        "suite": evaluation["suites"][0]["params"],
        "maxTurns": evaluation["sampling"]["maxTurns"],
        "maxTokens": evaluation["sampling"]["maxTokens"],
        **sections,
    }
    (work / "recipe.json").write_text(json.dumps(recipe))
    return sum(timed([sys.executable, "-m", "bench.bare", what, str(work)]) for what in ("train", "evaluate"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--sft-steps", type=int, default=70)
    parser.add_argument("--grpo-steps", type=int, default=6)
    options = parser.parse_args()
    ratios, last = [], None
    for number in range(options.repeats):
        with tempfile.TemporaryDirectory(prefix="bench-loop-") as name:
            work, raw = Path(name), spec(options.sft_steps, options.grpo_steps)
            loop, last = loop_round(work, raw)
            bare = bare_round(work, raw)
            ratios.append(loop / bare)
            score = json.loads((work / "bare-score.json").read_text())
            print(f"run {number + 1}: loop {loop:.1f} s, bare {bare:.1f} s, ratio {loop / bare:.3f}")
    assert last is not None
    evaluate, curate = last["evaluate"].summary, last["curate"].summary
    assert isinstance(evaluate, EvaluateSummary) and isinstance(curate, CurateSummary)
    splits = evaluate.scores["seed-0"].values()
    p = sum(s.p * s.tasks for s in splits) / sum(s.tasks for s in splits)
    print(f"success: loop {p:.3f}, bare {score['p']:.3f} on {score['tasks']} tasks ({curate.sft_rows} SFT rows)")
    for stage, manifest in last.items():
        usage = manifest.usage
        print(
            f"  {stage:<9} {usage.seconds:7.1f} s  cpu {usage.cpu_seconds:7.1f} s  "
            f"peak {usage.peak_bytes / 2**30:.2f} GiB"
        )
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"peak memory of any process: {children:.2f} GiB")
    print(f"ratio loop / bare: {median(ratios):.3f} (goal: at most 1.10)")


if __name__ == "__main__":
    main()
