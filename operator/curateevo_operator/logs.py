"""Logs: one JSON object a line, or text; what a record is about comes as fields."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

FIELDS = ("namespace", "evolution", "version", "stage", "attempt")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up(form: str, level: str) -> None:
    """Log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger("botocore").setLevel(logging.WARNING)
