"""What an edit leaves equal is not made again: equal rows are trained once, an equal model with equal notes is run once."""

from __future__ import annotations

from pathlib import Path

import pytest

from curateevo.local.objects import RunFolder
from curateevo.policy.builtin import source_of
from curateevo.report.page import write_report
from tests.jobs.minirun import YAML, manifests, start

LIMIT_SECONDS = 900


@pytest.mark.train
def test_an_edit_that_leaves_the_rows_trains_nothing_and_one_that_leaves_all_runs_nothing(tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    policies.mkdir()
    first = source_of("success-only").replace('"rl_tasks": 200', '"rl_tasks": 11')
    nothing = "def build_memory(items, ctx):\n    return ()"
    assert nothing in first
    notes = "def build_memory(items, ctx):\n    return api.memory_facts(items.corpus, limit=20)"
    (policies / "000.py").write_text(first)
    (policies / "001.py").write_text(first.replace(nothing, nothing.replace("()", "tuple(n for n in ())")))
    (policies / "002.py").write_text(first.replace(nothing, notes))
    (tmp_path / "mini.yaml").write_text(YAML + "  memory: {inTraining: false}\n")
    run = tmp_path / "run"
    assert start(tmp_path / "mini.yaml", run).wait(timeout=LIMIT_SECONDS) == 0, (tmp_path / "run.log").read_text()[
        -3000:
    ]
    found = manifests(run)
    reused = {key for key, manifest in found.items() if manifest.cached_from is not None}
    assert reused & {("train", 0), ("train", 1), ("train", 2)} == {("train", 1), ("train", 2)}
    assert reused & {("evaluate", 0), ("evaluate", 1), ("evaluate", 2)} == {("evaluate", 1)}
    assert found["train", 2].digest == found["train", 0].digest
    stages = RunFolder(run).versions()[1].status.stages
    assert stages["train"].message.startswith("reused: ") and stages["evaluate"].message.startswith("reused: ")
    page = write_report(RunFolder(run), run / "report.html").read_text()
    assert "reused" in page
