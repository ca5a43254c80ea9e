"""Evolutions run, an operator runs them, a real Prometheus scrapes it: each query of the dashboard has an answer, and alerts
fire over what is really wrong."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.chart.dashboard import filled_in, load, panels, variables
from tests.chart.prometheus import SYSTEM, Prometheus, prometheus
from tests.chart.test_alerts import WANTED
from tests.cluster.harness import Cluster
from tests.cluster.story import Story, until

pytestmark = pytest.mark.cluster


@dataclass(frozen=True, slots=True)
class Observed:
    story: Story
    prometheus: Prometheus
    began: float

    def ended(self) -> float:
        return time.time()


@pytest.fixture(scope="module")
def observed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """One evolution that came to its end, one that failed, one without keys, one that waited for a node."""
    namespace, began = cluster.new_namespace(), time.time()
    story = Story(cluster, namespace, tmp_path_factory.mktemp("observed"))
    keys = {"secretRef": {"name": "none"}}
    try:
        with story.operator("--resync-seconds", "5"), prometheus(story) as asked:
            with story.kubelet(p={0: 0.5, 1: 0.2}, ends={"train/0/1": 75}):
                story.apply("good", rounds={"max": 1})
                story.apply("keyless", storage=story.manifest()["spec"]["storage"] | keys)
                story.wait("Complete", "good")
            with story.kubelet(ends={"curate/0/1": "Rejected"}):
                story.apply("bad", rounds={"max": 0})
                story.wait("Failed", "bad")
            story.apply("waits")  # there is no kubelet for it
            until(
                lambda: asked.instant('curateevo_evolution_pending_seconds{evolution="waits"} > 0'), "it to wait", 60.0
            )
            _run(story, "waits")
            until(lambda: asked.instant('curateevo_stage_wait_seconds_count{evolution="waits"}'), "it to run", 60.0)
            yield Observed(story, asked, began)
    finally:
        for left in story.names("ce"):
            story.kubectl("patch", "ce", left, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        cluster.delete_namespace(namespace)


def _run(story: Story, evolution: str) -> None:
    """What a node would say of the pods that wait for one."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
    status = json.dumps({"status": {"phase": "Running", "startTime": now, "conditions": [ready]}})
    for pod in story.items("pods"):
        if pod["metadata"]["labels"].get("curateevo.io/evolution") == evolution:
            story.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "-p", status)


def _finite(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Series with a number in them."""
    return [s for s in samples if any(math.isfinite(float(v)) for _, v in s.get("values") or [s["value"]])]


def test_each_query_of_the_dashboard_has_an_answer(observed: Observed) -> None:
    own = {"namespace": observed.story.namespace, "evolution": ".+", "__rate_interval": "5s"}
    empty = []
    for panel in panels():
        for target in panel.get("targets", ()):
            query = filled_in(target["expr"], own)
            asked = observed.prometheus
            found = asked.instant(query) if target["instant"] else asked.range(query, observed.began, observed.ended())
            series = _finite(found)
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            if not series:
                empty.append(f"{panel['title']}: {query}")
            for one in series:
                assert labels <= one["metric"].keys(), f"{panel['title']}: the legend names what is not there: {one}"
    assert not empty, "\n".join(empty)


def test_the_dashboard_shows_what_became_of_the_evolutions(observed: Observed) -> None:
    own = {"namespace": observed.story.namespace, "evolution": "good"}

    def shown(title: str, number: int = 0) -> dict[str, float]:
        panel = next(p for p in panels() if p["title"] == title)
        target = panel["targets"][number]
        found = observed.prometheus.instant(filled_in(target["expr"], own))
        legend = target["legendFormat"]
        return {
            re.sub(r"\{\{(\w+)\}\}", lambda m, of=s: of["metric"][m[1]], legend): float(s["value"][1]) for s in found
        }

    status = observed.story.status("good")
    assert shown("Phase") == {"good: Complete": 1}
    assert shown("Round") == {"good": 1} and shown("Round", 1) == {"good: of": 1}
    assert shown("Champion P") == {"good": status["champion"]["p"]}
    assert shown("Champion J") == {"good": status["champion"]["j"]}
    assert shown("Versions by verdict") == {"committed": 1, "reverted": 1, "rejected": 0, "failed": 0}
    assert shown("Failed attempts by reason") == {"train InfrastructureFailure": 1}
    durations = shown("Mean duration of stages")
    assert durations["train"] == 1.0, "as the artifact says"
    rounds = shown("Mean duration of rounds by verdict")
    assert rounds.keys() == {"Committed", "Reverted"} and all(0 < seconds < 120 for seconds in rounds.values())
    assert shown("GPU time") == {f"{observed.story.namespace}/good": status["spent"]["gpuSeconds"]}


def test_the_variables_offer_what_there_is(observed: Observed) -> None:
    found: dict[str, list[str]] = {}
    for variable in variables()[1:]:
        query = filled_in(variable["definition"], {"namespace": observed.story.namespace})
        selector = query.removeprefix("label_values(").rpartition(",")[0]
        found[variable["name"]] = observed.prometheus.ask(f"label/{variable['name']}/values", **{"match[]": selector})
    assert found["namespace"] == [observed.story.namespace]
    assert set(found["evolution"]) >= {"good", "bad", "waits"}


def test_commits_are_marked(observed: Observed) -> None:
    (marks,) = load()["annotations"]["list"]
    own = {"namespace": observed.story.namespace, "evolution": "good", "__rate_interval": "5s"}
    query = filled_in(marks["expr"], own)
    assert observed.prometheus.range(query, observed.began, observed.ended())


def test_series_keep_the_namespace_of_their_evolution(observed: Observed) -> None:
    (score,) = observed.prometheus.instant('curateevo_evolution_score{evolution="good"}')
    assert score["metric"]["namespace"] == observed.story.namespace and "exported_namespace" not in score["metric"]
    (deaf,) = observed.prometheus.instant("curateevo_deaf")
    assert deaf["metric"]["namespace"] == SYSTEM and deaf["value"][1] == "0"


def test_prometheus_evaluates_every_alert(observed: Observed) -> None:
    rules = [r for g in observed.prometheus.ask("rules")["groups"] for r in g["rules"]]
    assert {r["name"] for r in rules} == WANTED and {r["health"] for r in rules} == {"ok"}, rules


def test_alerts_fire_over_what_is_wrong_and_over_nothing_else(observed: Observed) -> None:
    def alerts() -> dict[tuple[str, str], str]:
        found = observed.prometheus.instant("ALERTS")
        return {(s["metric"]["alertname"], s["metric"].get("evolution", "")): s["metric"]["alertstate"] for s in found}

    wanted = {
        ("CurateEvoEvolutionFailed", "bad"): "firing",
        ("CurateEvoStoreUnreachable", "keyless"): "pending",
        ("CurateEvoStalled", "keyless"): "pending",
    }
    until(lambda: alerts() == wanted, "these alerts and no others", 60.0)


def test_the_deadline_of_what_waits_is_its_own(observed: Observed) -> None:
    (found,) = observed.prometheus.instant('curateevo_evolution_deadline_timestamp_seconds{evolution="waits"}')
    left = float(found["value"][1]) - time.time()
    assert 3600 + 7200 - 300 < left < 3600 + 7200 + 60, "ingest waits for two hours at most, and runs for one"
    assert not observed.prometheus.instant('curateevo_evolution_deadline_timestamp_seconds{evolution="good"}')
