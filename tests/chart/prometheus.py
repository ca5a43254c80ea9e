"""A real Prometheus in the cluster's network: it scrapes an operator, and is asked what Grafana would ask."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from tests.chart.rendered import CHART
from tests.cluster.harness import HERE as CLUSTER
from tests.cluster.story import Story, until

PORT = 9090
SYSTEM = "curateevo-system"
"""The namespace that the operator is said to run in: series that have one of their own must keep it."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    story: Story

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of its API."""
        status, text = self.story.http(f"/api/v1/{path}?{urllib.parse.urlencode(query)}", PORT)
        assert status == 200, (query, text)
        return json.loads(text)["data"]

    def instant(self, query: str) -> list[dict[str, Any]]:
        return list(self.ask("query", query=query)["result"])

    def range(self, query: str, start: float, end: float) -> list[dict[str, Any]]:
        return list(self.ask("query_range", query=query, start=f"{start}", end=f"{end}", step="1")["result"])


@contextmanager
def prometheus(story: Story, operator: int = 8080) -> Iterator[Prometheus]:
    """Scrapes the operator each second, as a ServiceMonitor of the chart would have it, with the chart's alerts."""
    subprocess.run([CLUSTER / "packages.sh", "tools"], check=True, timeout=600)
    target = {"targets": [f"127.0.0.1:{operator}"], "labels": {"namespace": SYSTEM, "pod": "curateevo-0"}}
    scrape = {"job_name": "curateevo-metrics", "honor_labels": True, "static_configs": [target]}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(CHART / "files/alerts.yaml")],
        "scrape_configs": [scrape],
    }
    (story.folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = (
        "prometheus",
        f"--config.file={story.folder}/prometheus.yaml",
        f"--storage.tsdb.path={story.folder}/tsdb",
    )
    with story.process(*command, f"--web.listen-address=127.0.0.1:{PORT}", log="prometheus.log"):
        until(lambda: story.http("/-/ready", PORT)[0] == 200, "Prometheus", 60.0)
        yield Prometheus(story)
