"""The dashboard's parts, and its queries as Grafana would send them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.chart.rendered import CHART, Object

FILE = CHART / "files/dashboard.json"


def load() -> Object:
    return dict(json.loads(FILE.read_text()))


def panels() -> list[Object]:
    return list(load()["panels"])


def targets() -> Iterator[tuple[str, Object]]:
    """Each query, with the title of its panel."""
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target


def variables() -> list[Object]:
    return list(load()["templating"]["list"])


def filled_in(query: str, values: Mapping[str, Any]) -> str:
    """A query with its variables replaced. Raises KeyError for one that the dashboard does not have."""
    for name in sorted((*values, "__rate_interval"), key=len, reverse=True):
        query = query.replace(f"${name}", str(values.get(name, "1m")))
    if "$" in query:
        raise KeyError(query[query.index("$") :].split('"')[0])
    return query
