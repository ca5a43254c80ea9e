"""What the commands say of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from curateevo.cli import policy_log
from tests.core.report import runs


def test_the_log_tells_of_rounds_without_a_candidate_who_proposed_and_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One between others has a decision; one that ended the run has the status alone."""
    policy_log(runs.refused(tmp_path).root)
    last, why_last, middle, why, first, *_ = capsys.readouterr().out.splitlines()
    assert last == "v2 ------------  no candidate  ProposerExhausted"
    assert why_last.strip() == "no proposal for Efficiency by llm: refused 3 times, last: as version 1 was"
    assert middle == "v1 ------------  no candidate  ProposerExhausted"
    assert why.strip() == "no proposal for Effectiveness by llm: refused 3 times, last: no such line"
    assert re.fullmatch(r"v0 [0-9a-f]{12}  Committed  Baseline", first)


def test_the_log_has_a_line_for_every_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy_log(runs.complete(tmp_path).root)
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("v")]
    assert lines == [f"v{number}" for number in range(7, -1, -1)]
