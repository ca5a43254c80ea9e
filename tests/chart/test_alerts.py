"""Alerts: each fires when it should and is silent otherwise, speaks of metrics that there are, and links to what to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.chart.promql import problems
from tests.chart.rendered import CHART, HERE, ROOT, Object
from tests.cluster.harness import HERE as CLUSTER

ALERTS = CHART / "files/alerts.yaml"
STORY = HERE / "alerts_test.yaml"
RULES: dict[str, Object] = {r["alert"]: r for g in yaml.safe_load(ALERTS.read_text())["groups"] for r in g["rules"]}
WANTED = {
    "CurateEvoMetricsMissing", "CurateEvoDeaf", "CurateEvoReconcileErrors", "CurateEvoApiUnavailable",
    "CurateEvoRoundStuck", "CurateEvoStalled", "CurateEvoStoreUnreachable", "CurateEvoPendingTooLong",
    "CurateEvoRevertStreak", "CurateEvoEvolutionFailed",
}  # fmt: skip


@pytest.fixture(scope="module")
def promtool() -> str:
    subprocess.run([CLUSTER / "packages.sh", "tools"], check=True, timeout=600)
    return "promtool"


def test_the_alerts_are_these() -> None:
    assert set(RULES) == WANTED


@pytest.mark.parametrize("name", sorted(WANTED))
def test_an_alert_speaks_of_metrics_that_there_are(name: str) -> None:
    assert not list(problems(RULES[name]["expr"]))


def test_a_query_for_what_there_is_not_is_found() -> None:
    assert list(problems("curateevo_evolution_scores")) == ["there is no curateevo_evolution_scores"]
    assert list(problems('curateevo_deaf{phase="x"}')) == ["curateevo_deaf has no label {'phase'}"]
    assert list(problems("sum by (phase) (curateevo_evolution_score)")) == ["no series of it has a label {'phase'}"]
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        list(problems("sum(curateevo_deaf"))


@pytest.mark.parametrize("name", sorted(WANTED))
def test_an_alert_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    rule = RULES[name]
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"} and all(notes.values())
    page, _, anchor = notes["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.M)
    assert anchor == name.lower() and name in headings


def test_the_page_speaks_of_no_alert_that_there_is_not() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    assert set(re.findall(r"^### (\w+)$", page, re.M)) == WANTED


def test_each_alert_is_tested_where_it_fires_and_where_it_is_silent() -> None:
    asked = [t for story in yaml.safe_load(STORY.read_text())["tests"] for t in story["alert_rule_test"]]
    assert {t["alertname"] for t in asked if t.get("exp_alerts")} == WANTED
    assert {t["alertname"] for t in asked if not t.get("exp_alerts")} == WANTED


@pytest.mark.cluster
def test_promtool_takes_the_rules_and_their_tests_hold(promtool: str) -> None:
    for command in (["check", "rules", "--lint-fatal", ALERTS], ["test", "rules", STORY]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.cluster
def test_a_rule_that_is_wrong_fails_its_tests(promtool: str, tmp_path: Path) -> None:
    wrong = tmp_path / "alerts.yaml"
    wrong.write_text(ALERTS.read_text().replace("> 1800", "> 180"))
    story = tmp_path / "story.yaml"
    story.write_text(STORY.read_text().replace("../../charts/curateevo/files/alerts.yaml", str(wrong)))
    done = subprocess.run([promtool, "test", "rules", story], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1 and "CurateEvoPendingTooLong" in done.stdout + done.stderr
