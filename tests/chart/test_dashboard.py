"""The dashboard: Grafana can show it, and each of its queries is one, speaks of metrics that there are, and has an answer."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations

import pytest

from tests.chart.dashboard import FILE, filled_in, load, panels, targets, variables
from tests.chart.promql import problems, series
from tests.chart.rendered import Object

KINDS = {"row", "stat", "bargauge", "timeseries"}
UNITS = {"none", "percentunit", "s", "short", "ops", "reqps", "bytes"}
COLUMNS = 24
ALL = {"namespace": ".+", "evolution": ".+"}
QUERIES = [pytest.param(title, target, id=f"{title} {target['refId']}") for title, target in targets()]


def test_the_file_is_as_grafana_writes_it() -> None:
    dashboard = load()
    assert dashboard["id"] is None, "Grafana gives it one"
    assert dashboard["uid"] == "curateevo" and dashboard["title"] == "CurateEvo" and dashboard["schemaVersion"] >= 39
    assert FILE.read_text() == json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"
    assert len(FILE.read_bytes()) < 500_000, "it goes into a ConfigMap"


def test_panels_have_numbers_places_and_units() -> None:
    numbers = Counter(panel["id"] for panel in panels())
    assert max(numbers.values()) == 1 and min(numbers) > 0
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= COLUMNS and place["w"] > 0 and place["h"] > 0
        assert panel["type"] in KINDS and panel["title"]
        if panel["type"] == "row":
            assert panel["panels"] == [] and panel["collapsed"] is False and place["w"] == COLUMNS and place["h"] == 1
        else:
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
            assert panel["description"] and panel["options"] and panel["targets"]
            assert len({t["refId"] for t in panel["targets"]}) == len(panel["targets"])


def test_no_panel_lies_on_another_and_none_floats() -> None:
    cells = {panel["title"]: set(_cells(panel)) for panel in panels()}
    assert len(cells) == len(panels()), "titles are unique"
    for (one, its), (other, theirs) in combinations(cells.items(), 2):
        assert not its & theirs, f"{one} and {other} overlap"
    taken = set().union(*cells.values())
    for title, own in cells.items():
        top = min(y for _, y in own)
        above = {(x, top - 1) for x, y in own if y == top}
        assert top == 0 or above & taken, f"{title}: Grafana would move it up"


def _cells(panel: Object) -> list[tuple[int, int]]:
    place = panel["gridPos"]
    return [(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])]


def test_everything_asks_the_data_source_that_was_chosen() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    asking = [*(p for p in panels() if p["type"] != "row"), *(t for _, t in targets()), *load()["annotations"]["list"]]
    asking += [v for v in variables() if v["type"] == "query"]
    assert asking and all(a["datasource"] == chosen for a in asking)
    assert [v["name"] for v in variables()] == ["datasource", "namespace", "evolution"]
    assert variables()[0]["type"] == "datasource" and variables()[0]["query"] == "prometheus"


@pytest.mark.parametrize(("title", "target"), QUERIES)
def test_a_query_speaks_of_metrics_that_there_are(title: str, target: Object) -> None:
    assert not list(problems(filled_in(target["expr"], ALL)))
    assert target["instant"] != target["range"] and target["legendFormat"]


def test_annotations_and_variables_speak_of_metrics_that_there_are() -> None:
    for annotation in load()["annotations"]["list"]:
        assert not list(problems(filled_in(annotation["expr"], ALL)))
    for variable in variables()[1:]:
        assert variable["definition"] == variable["query"]["query"]
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", filled_in(variable["definition"], ALL))
        assert asked and not list(problems(asked[1])) and asked[2] == variable["name"]
        assert asked[2] in series()["curateevo_evolution_info"]


def test_every_metric_of_an_evolution_is_shown_or_left_out_on_purpose() -> None:
    left_out = {
        "curateevo_evolution_info",  # for the variables
        "curateevo_evolution_stage_failures",  # the counter is shown
        "curateevo_evolution_progress_timestamp_seconds",
        "curateevo_evolution_deadline_timestamp_seconds",  # for the alert
        "curateevo_evolution_completed_timestamp_seconds",
        *(f"curateevo_evolution_rewriting_{what}" for what in ("tokens", "calls", "dollars")),  # few runs have any
    }
    shown = " ".join(target["expr"] for _, target in targets())
    missing = {name for name in series() if name.startswith("curateevo_") and not re.search(rf"\b{name}\b", shown)}
    parts = {
        f"{x}{s}"
        for x in ("curateevo_reconcile_seconds", "curateevo_event_loop_lag_seconds")
        for s in ("_sum", "_count")
    }
    assert missing == left_out | parts
