"""A log line says what it is about, as fields."""

from __future__ import annotations

import json
import logging

from curateevo_operator.logs import JsonFormatter


def test_a_line_is_one_json_object_with_the_fields_that_are_known() -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "starting %s", ("evo-v1-train-a1",), None)
    record.__dict__ |= {"namespace": "ns", "evolution": "evo", "version": 1, "stage": "train", "attempt": None}
    line = json.loads(JsonFormatter().format(record))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info", "logger": "x", "message": "starting evo-v1-train-a1",
        "namespace": "ns", "evolution": "evo", "version": 1, "stage": "train",
    }  # fmt: skip


def test_an_exception_is_on_the_same_line() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), (ValueError, error, error.__traceback__))
    text = JsonFormatter().format(record)
    assert "\n" not in text and "ValueError: no" in json.loads(text)["error"]
