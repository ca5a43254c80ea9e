"""What queries speak of, and what there is to speak of: the metrics of docs/metrics.md, which are those that are exported
(tests/operator/test_metrics.py), and the usual ones of a process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(curateevo_[a-z_]+)` \| (gauge|counter|histogram|summary) \|([^|]*)\| ([^|]+) \|$", re.M)
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
TARGET = frozenset({"instance", "job", "namespace", "pod"})
"""Labels that Prometheus puts on whatever it scrapes."""


@dataclass(frozen=True, slots=True)
class Documented:
    kind: str
    labels: frozenset[str]


def documented() -> dict[str, Documented]:
    """The tables of docs/metrics.md."""
    page = (ROOT / "docs/metrics.md").read_text()
    return {
        name: Documented(kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in ROW.findall(page)
    }


def series() -> dict[str, frozenset[str]]:
    """Names that a query may say, with the labels of each."""
    found = {
        name + suffix: metric.labels | ({"le"} if suffix == "_bucket" else set())
        for name, metric in documented().items()
        for suffix in SUFFIXES.get(metric.kind, ("",))
    }
    return found | dict.fromkeys(("process_resident_memory_bytes", "process_cpu_seconds_total"), frozenset())


def selectors(expression: str) -> list[promql.VectorSelector]:
    """All series that a query reads. Raises ValueError for what is no query."""
    found: list[promql.VectorSelector] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        return True

    promql.walk(promql.parse(expression), visit)
    return found


def problems(expression: str) -> Iterator[str]:
    """What a query says that there is not."""
    known, read = series(), selectors(expression)
    for selector in read:
        if selector.name not in known:
            yield f"there is no {selector.name}"
            continue
        unknown = {m.name for m in selector.matchers.matchers} - known[selector.name] - TARGET
        if unknown:
            yield f"{selector.name} has no label {unknown}"
    labels = frozenset().union(*(known.get(s.name, frozenset()) for s in read)) | TARGET
    named = {
        x.strip() for group in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expression) for x in group.split(",")
    }
    if named - labels:
        yield f"no series of it has a label {named - labels}"
