"""Every built-in policy passes the gate on toolworld's corpus and on real logs, and does what it says."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

from curateevo.policy.builtin import NAMES, source_of
from curateevo.policy.gate import Curated, curate_with_gate
from curateevo.trajectories.corpus import FEATURES, read_features, write_trajectories
from curateevo.trajectories.features import features_of
from curateevo_jobs.benchmarks.toolworld.corpus import generate
from tests.core.trajectories.sources import read_files, scored

TOOLWORLD_ROWS = 400


def ingested(files: list[tuple[Path, str]], folder: Path) -> Path:
    made = read_files(files).trajectories
    write_trajectories(made, folder)
    scored(features_of(made)).write_parquet(folder / FEATURES)
    return folder


@pytest.fixture(scope="module")
def corpora(airline_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The airline runs, 50 tasks of 4 attempts, and the first rows of toolworld's corpus."""
    raw = tmp_path_factory.mktemp("raw") / "toolworld.jsonl"
    rows, _ = generate(0)
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows[:TOOLWORLD_ROWS]))
    return {
        "airline": ingested([(airline_runs, "tau-bench")], tmp_path_factory.mktemp("airline")),
        "toolworld": ingested([(raw, "toolworld")], tmp_path_factory.mktemp("toolworld")),
    }


def curated(name: str, corpus: Path, tmp_path: Path) -> Curated:
    path = tmp_path / "policy.py"
    path.write_text(source_of(name))
    return curate_with_gate(path, corpus, dev_prompts={"dev": "a task that stands in no corpus"})


@pytest.mark.parametrize("where", ["airline", "toolworld"])
@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_policy_passes_the_gate(name: str, where: str, corpora: dict[str, Path], tmp_path: Path) -> None:
    made = curated(name, corpora[where], tmp_path)
    features = read_features(corpora[where])
    success, turns = features["success"].to_list(), features["turns"].to_list()
    kept = made.recipe.sft
    budget = sum(n for n, good in zip(turns, success, strict=True) if good)
    trained = [task.row for task in made.recipe.rl]
    match name:
        case "keep-all" | "starter":
            assert made.material.sft_turns == sum(turns)
        case "success-only" | "learnable":
            assert made.material.sft_turns == budget
        case "random":
            assert 0.9 * budget <= made.material.sft_turns <= budget
        case "best-of-n":
            tasks = features["task_id"].to_list()
            assert len({tasks[i.row] for i in kept}) == len(kept) and made.material.sft_turns <= budget
            solved = {task for task, good in zip(tasks, success, strict=True) if good}
            assert all(success[i.row] for i in kept if tasks[i.row] in solved)
        case "weasel":
            assert made.material.sft_turns < budget and all(success[i.row] for i in kept)
            assert sum(len(i.trained) for i in kept) < 0.7 * budget
        case "grace":
            assert len(kept) == math.ceil(0.2 * len(turns)) and all(len(i.turns) == turns[i.row] for i in kept)
            aligned = features["turn_alignment"].list.mean().to_list()
            assert fmean(aligned[i.row] for i in kept) > fmean(x for x in aligned if x is not None)
        case "principles":
            assert {note.kind for note in made.recipe.memory} == {"rule", "recovery", "constraint"}
            assert len({row["content"] for row in made.material.memory}) > 5
    if name == "learnable":
        by = "task_id" if where == "airline" else "family"
        outcomes: dict[str, set[bool]] = defaultdict(set)
        for key, good in zip(features[by].to_list(), success, strict=True):
            outcomes[key].add(good)
        assert trained and all(outcomes[features[by][row]] >= {True, False} for row in trained)
