"""The whole loop on one machine, for real; killed again and again, it comes to the same end, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from curateevo.api.evolution import EvolutionPhase, Verdict
from curateevo.local.objects import RunFolder
from curateevo.report.page import write_report
from tests.jobs.minirun import facts, manifests, start, write_mini

KILLS = 30
LIMIT_SECONDS = 1500
WORK_SECONDS = 90


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The YAML, and a run of it that nobody disturbed."""
    folder = tmp_path_factory.mktemp("mini")
    yaml, run = write_mini(folder), folder / "calm"
    assert start(yaml, run).wait(timeout=LIMIT_SECONDS) == 0, (folder / "calm.log").read_text()[-3000:]
    return yaml, run


@pytest.mark.train
def test_an_evolution_runs_from_corpus_to_verdict(undisturbed: tuple[Path, Path]) -> None:
    _, run = undisturbed
    folder = RunFolder(run)
    evolution, versions = folder.evolution(), folder.versions()
    assert evolution.status.phase is EvolutionPhase.COMPLETE
    assert versions[0].status.verdict is Verdict.COMMITTED
    assert versions[1].status.verdict is Verdict.REJECTED and "timeout" in versions[1].status.message
    assert versions[2].status.verdict in (Verdict.COMMITTED, Verdict.REVERTED)
    found = manifests(run)
    assert found["ingest", None].summary.leaked == 4  # type: ignore[union-attr]
    assert found["train", 0].summary.sft_steps == 6 and found["train", 0].summary.grpo_steps == 4  # type: ignore[union-attr]
    assert found["curate", 0].summary.tier.startswith("process+rlimits")  # type: ignore[union-attr]
    report = write_report(folder, run / "report.html").read_text()
    assert "timeout" in report and "Committed" in report


@pytest.mark.train
def test_the_champion_can_be_exported_and_the_lineage_read(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    _, run = undisturbed

    def cli(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "curateevo.cli", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "v2" in cli("policy", "log", str(run)) and "while True" in cli("policy", "show", str(run), "1")
    assert "+    while True:" in cli("policy", "diff", str(run), "1")
    assert json.loads(cli("status", str(run), "-o", "json"))["evolution"]["status"]["phase"] == "Complete"
    cli("export", str(run), "--to", "trl", "-o", str(tmp_path))
    row = json.loads((tmp_path / "sft.jsonl").read_text().splitlines()[0])
    assert isinstance(row["tools"], str) and row["messages"][-1]["role"] == "assistant"
    assert '"state"' not in (tmp_path / "rl.jsonl").read_text()


def wait_for_work(process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the run's log speaks of training or evaluation again, so that a kill hits that and not its imports."""
    start_at, deadline = log.stat().st_size, time.monotonic() + WORK_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with log.open() as text:
            text.seek(start_at)
            if any(word in text.read() for word in (": sft ", ": grpo ", ": seed-0/")):
                return
        time.sleep(0.05)


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_killed_at_thirty_random_points_it_comes_to_the_same_end(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    yaml, calm = undisturbed
    run = tmp_path / "killed"
    chance = random.Random(20)
    deadline = time.monotonic() + LIMIT_SECONDS
    for kill in range(KILLS):
        assert time.monotonic() < deadline, f"only {kill} kills"
        process = start(yaml, run)
        if kill % 2:
            wait_for_work(process, tmp_path / "killed.log")
        try:
            process.wait(timeout=chance.uniform(0.0, 3.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert start(yaml, run).wait(timeout=LIMIT_SECONDS) == 0, (tmp_path / "killed.log").read_text()[-3000:]
    assert facts(run) == facts(calm)
    jobs = sorted(p.name for p in (run / "jobs").iterdir())
    assert jobs == sorted(p.name for p in (calm / "jobs").iterdir()), "another attempt was made"
    for (stage, _), manifest in manifests(run).items():
        if stage == "train":
            metrics = [
                json.loads(line)
                for line in (run / "store" / manifest.file("metrics-0.jsonl").key).read_text().splitlines()
            ]
            steps = [(m["phase"], m["step"]) for m in metrics]
            assert len(steps) == len(set(steps)) == 10


@pytest.mark.train
def test_bad_input_ends_with_one_screen_and_loses_nothing(tmp_path: Path) -> None:
    yaml = write_mini(tmp_path)
    text = yaml.read_text()
    cases = {
        "no such file": (text.replace("toolworld://corpus?seed=3", "missing/*.jsonl"), "no such file"),
        "a base model that is not there": (
            text.replace("builtin://toolworld", "file:///nowhere/model"),
            "/nowhere/model",
        ),
        "a suite that is not known": (
            text.replace("name: toolworld, params", "name: moonworld, params"),
            "no suite called",
        ),
        "an argument that TRL does not have": (
            text.replace("max_length: 384", "max_lenght: 384"),
            "max_length",
        ),
    }
    for name, (bad, says) in cases.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        (folder / "policies").symlink_to(tmp_path / "policies")
        (folder / "bad.yaml").write_text(bad)
        code = start(folder / "bad.yaml", folder / "run").wait(timeout=LIMIT_SECONDS)
        log = (folder / "run.log").read_text()
        assert code != 0 and says in log and "Traceback" not in log, (name, log)
        assert len(log.splitlines()) < 60
        assert (folder / "run" / "report.html").is_file(), name
