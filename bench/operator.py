"""The operator on a real control plane whose Jobs a fake kubelet ends: latency, API calls, memory, event loop lag.

    python -m bench.operator [--crowds 100 500]

- latency: from a Job seen finished to the next Job of that evolution seen created, by one watch on Jobs; goal:
  median 0.3 s, p99 1 s.
- API calls per round, by verb and resource.
- a crowd of evolutions that all wait for their training: the operator's memory (goal 300 MB) and how late tasks of its
  event loop wake (goal 100 ms), while it takes them up and while it waits.

The ratio: time of a round with an operator over the time that its Jobs took (creation to end), in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

from tests.cluster import harness
from tests.cluster.harness import Cluster
from tests.cluster.story import Story, until

PORT = 8090
ROUNDS = 8
NICE = -15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crowds", type=int, nargs="*", default=[100, 500])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="curateevo-bench-") as name, harness.folder("bench") as folder:
        cluster = harness.start(folder, node=False)
        one(cluster, Path(name))
        for count in options.crowds:
            crowd(cluster, Path(name), count)


def one(cluster: Cluster, folder: Path) -> None:
    """Latency and calls of one evolution."""
    story = Story(cluster, cluster.new_namespace("bench"), folder)
    seen = Watcher(cluster, story.namespace)
    with story.kubelet(p={n: 0.2 + 0.05 * n for n in range(ROUNDS + 1)}), story.operator(port=PORT):
        until(lambda: story.http("/readyz", PORT)[0] == 200, "the operator")
        seen.start()
        story.apply(rounds={"max": ROUNDS, "focus": ["Effectiveness"]})
        story.wait("Complete", seconds=600)
        calls = by_label(story.http("/metrics", PORT)[1], "curateevo_api_requests_total", "verb", "resource")
    waits = sorted(seen.waits())
    p99 = waits[min(len(waits) - 1, int(0.99 * len(waits)))]
    median = statistics.median(waits)
    print(f"Job finished -> next Job created: median {median:.3f} s, p99 {p99:.3f} s, {len(waits)} waits")
    print(f"a round over its Jobs: {seen.ratio():.3f}")
    total = sum(calls.values())
    print(f"API calls: {total / (ROUNDS + 1):.0f} a round")
    for (verb, resource), number in sorted(calls.items(), key=lambda x: -x[1]):
        print(f"  {verb:6} {resource:22} {number / (ROUNDS + 1):6.1f}")


def crowd(cluster: Cluster, folder: Path, count: int) -> None:
    """Memory and lag with many evolutions that wait."""
    story = Story(cluster, cluster.new_namespace("bench"), folder)
    with story.kubelet(ends={"train/0/1": "never"}, p={0: 0.2}), story.operator(port=PORT) as operator:
        go_first(operator.pid)
        until(lambda: story.http("/readyz", PORT)[0] == 200, "the operator")
        began = time.monotonic()
        for start in range(0, count, 50):
            items = [story.manifest(f"e{n}") for n in range(start, min(count, start + 50))]
            story.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        until(lambda: training(story) == count, f"{count} evolutions to train", 1800)
        took = time.monotonic() - began
        busy = story.http("/metrics", PORT)[1]
        time.sleep(60)
        idle = story.http("/metrics", PORT)[1]
    memory = value(idle, "process_resident_memory_bytes") / 1e6
    print(f"{count} evolutions: {took:.0f} s until all train; memory {memory:.0f} MB")
    print(f"  event loop lag, taking them up: {quantile(busy, 0.99):g} s at p99, {quantile(busy, 1.0):g} s at most")
    for name, metrics in (("taking them up", busy), ("and after a minute of waiting", idle)):
        print(f"  API calls, {name}: {sum(by_label(metrics, 'curateevo_api_requests_total', 'verb').values()):.0f}")


def go_first(pid: int) -> None:
    """Let a process that has just begun go before the control plane and the fake kubelet, which have machines of their
    own elsewhere: else the lag is mostly the wait for one of these cores."""
    os.setpriority(os.PRIO_PROCESS, pid, NICE)
    autogroup = Path(f"/proc/{pid}/autogroup")  # without it niceness counts among the processes of a session only
    if autogroup.exists():
        autogroup.write_text(str(NICE))


def training(story: Story) -> int:
    found = story.kubectl("get", "pver", "-o", "jsonpath={.items[*].status.phase}")
    return found.split().count("Training")


class Watcher:
    """Jobs of a namespace, as one watch sees them."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.made: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()
        time.sleep(1.0)

    def _run(self) -> None:
        with self.cluster.inside():
            api = client.BatchV1Api(config.new_client_from_config(str(self.cluster.kubeconfig)))
            with suppress(HTTPError):  # the cluster's end
                for event in watch.Watch().stream(api.list_namespaced_job, self.namespace, _preload_content=False):
                    self._see(event["raw_object"], time.monotonic())

    def _see(self, job: dict[str, Any], now: float) -> None:
        name = job["metadata"]["name"]
        self.made.setdefault(name, now)
        if any(c["type"] == "Complete" for c in (job.get("status") or {}).get("conditions") or ()):
            self.ended.setdefault(name, now)

    def waits(self) -> list[float]:
        """From each end to the next creation."""
        starts = sorted(self.made.values())
        return [next(s for s in starts if s > end) - end for end in self.ended.values() if end < starts[-1]]

    def ratio(self) -> float:
        """Wall clock from the first creation to the last end, over the time in which some Job was there."""
        covered, until_ = 0.0, 0.0
        for name in sorted(self.ended, key=lambda n: self.made[n]):
            covered += max(0.0, self.ended[name] - max(self.made[name], until_))
            until_ = max(until_, self.ended[name])
        return (max(self.ended.values()) - min(self.made.values())) / covered


def value(metrics: str, name: str) -> float:
    return next(float(x.split()[-1]) for x in metrics.splitlines() if x.startswith(f"{name} "))


def by_label(metrics: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for line in metrics.splitlines():
        if line.startswith(f"{name}{{"):
            given = dict(re.findall(r'(\w+)="([^"]*)"', line))
            found[tuple(given[x] for x in labels)] += float(line.split()[-1])
    return found


def quantile(metrics: str, share: float, name: str = "curateevo_event_loop_lag_seconds") -> float:
    """The bucket's upper bound that holds this share."""
    buckets = by_label(metrics, f"{name}_bucket", "le")
    total = max(buckets.values())
    return min(float(le) for (le,), count in buckets.items() if count >= share * total)


if __name__ == "__main__":
    main()
