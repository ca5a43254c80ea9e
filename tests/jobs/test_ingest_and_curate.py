"""The commands on corpora: real runs in, profiles out, and errors that fit on one screen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from curateevo.api.spec import ProposerType


def cli(*words: str, code: int = 0, **variables: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", **variables}
    done = subprocess.run(
        [sys.executable, "-m", "curateevo.cli", *words], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def airline(airline_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("airline") / "corpus"
    said = cli("ingest", str(airline_runs), "--format", "tau-bench", "-o", str(folder))
    assert "200 trajectories, 2454 turns, 84 successes" in said
    return folder


def test_the_airline_runs_are_200_of_which_84_succeed(airline: Path) -> None:
    profile = json.loads(cli("corpus", "profile", str(airline)))
    assert (profile["trajectories"], profile["success"]) == (200, {"true": 84, "false": 116, "unknown": 0})
    assert profile["tools"]["get_reservation_details"] > 100


def test_built_in_policies_show_their_profiles(airline: Path, tmp_path: Path) -> None:
    turns = {}
    for name in ("keep-all", "success-only", "random"):
        said = cli("curate", "--policy", name, "--corpus", str(airline), "-o", str(tmp_path / name))
        assert "sandbox process+rlimits" in said and "SFT rows" in said
        turns[name] = json.loads((tmp_path / name / "profile.json").read_text())["turns"]
    assert turns["keep-all"] == 2454 and turns["success-only"] == 829
    assert 0.9 * turns["success-only"] <= turns["random"] <= turns["success-only"]
    lineage = [json.loads(x) for x in (tmp_path / "success-only" / "lineage.jsonl").read_text().splitlines()]
    assert all(
        x["trajectory"].startswith("tau-bench/") and x["operators"] == ["keep_successes"]
        for x in lineage
        if x["resource"] == "sft"
    )


def test_the_gate_says_how_much_of_each_resource_a_policy_makes(airline: Path) -> None:
    said = cli("policy", "check", "success-only", "--corpus", str(airline))
    assert "contract: passed; 84 SFT rows, 200 RL tasks, 0 notes; sandbox" in said


def test_a_refused_policy_says_rule_and_remedy(airline: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import os\nPOLICY_API = 1\nPARAMS = {}\n")
    assert "stage-missing" in cli("policy", "check", str(tmp_path / "bad.py"), code=65)
    said = cli(
        "curate", "--policy", str(tmp_path / "bad.py"), "--corpus", str(airline), "-o", str(tmp_path / "x"), code=65
    )
    assert "hint" in said
    assert "no such file" in cli("policy", "check", "nowhere.py", code=65)
    assert "curateevo ingest" in cli(
        "curate", "--policy", "keep-all", "--corpus", str(tmp_path), "-o", str(tmp_path / "y"), code=65
    )


def test_broken_corpora_are_told_on_one_screen(tmp_path: Path) -> None:
    good = json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]})
    (tmp_path / "bad.jsonl").write_bytes(
        b"\n".join([good.encode(), b'{"messages": [', b"\xff\xff", b"[]", *[b"{}"] * 30]) + b"\n"
    )
    said = cli("ingest", str(tmp_path / "bad.jsonl"), "-o", str(tmp_path / "c"), code=65)
    assert (
        "33 of 34 rows could not be read" in said and "bad.jsonl:3: not UTF-8" in said and len(said.splitlines()) < 20
    )
    (tmp_path / "empty.jsonl").write_text("")
    assert "the corpus is empty" in cli("ingest", str(tmp_path / "empty.jsonl"), "-o", str(tmp_path / "c"), code=65)
    assert "no such file" in cli("ingest", str(tmp_path / "none*.jsonl"), "-o", str(tmp_path / "c"), code=65)
    ok = cli("ingest", str(tmp_path / "bad.jsonl"), "--max-set-aside-fraction", "1", "-o", str(tmp_path / "c"))
    assert "1 trajectories" in ok and "33 rows set aside" in ok
    assert len((tmp_path / "c" / "set_aside.jsonl").read_text().splitlines()) == 33


def test_what_needs_torch_names_the_extra_to_install(tmp_path: Path) -> None:
    """Scores of turns before anything is read; by the command and by runs, which go on when it is installed."""
    hidden = "import sys\nsys.modules['torch'] = None\nsys.modules['transformers'] = None\n"
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/sitecustomize.py").write_text(hidden)
    without = {"PYTHONPATH": str(tmp_path / "hidden")}
    output = str(tmp_path / "corpus")
    said = cli("ingest", "nowhere.jsonl", "-o", output, "--grace", "builtin://toolworld", code=65, **without)
    assert "scoring turns (grace) needs torch, transformers" in said and "pip install 'curateevo[train]'" in said
    spec = yaml.safe_load(Path("examples/toolworld.yaml").read_text())
    for grace, use in ((True, "scoring turns (grace)"), (False, "serving.engine transformers")):
        spec["spec"]["corpus"]["grace"] = grace
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(spec))
        said = cli("run", str(tmp_path / "run.yaml"), "--dir", str(tmp_path / f"run-{grace}"), code=77, **without)
        assert f"{use} needs torch, transformers" in said and "run the same command again" in said


def test_examples_are_valid_and_show_every_proposer_that_needs_no_person() -> None:
    paths = sorted(Path("examples").glob("*.yaml"))
    said = cli("validate", *map(str, paths)).splitlines()
    assert said == [f"{path}: valid" for path in paths]
    shown = {yaml.safe_load(path.read_text())["spec"]["proposer"]["type"] for path in paths}
    assert shown == {kind.value for kind in ProposerType} - {ProposerType.MANUAL.value}


def test_no_run_here_and_bad_yaml(tmp_path: Path) -> None:
    assert "no run here" in cli("status", str(tmp_path), code=65)
    (tmp_path / "x.yaml").write_text("kind: CurationEvolution")
    assert "expected apiVersion" in cli("validate", str(tmp_path / "x.yaml"), code=65)
