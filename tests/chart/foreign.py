"""Manifests against schemas/: as `kubectl apply` would, a field that the schema does not know is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from curateevo.api.base import JsonObject

FOLDER = Path(__file__).parent / "schemas"


def schema_of(kind: str) -> JsonObject:
    """The openAPIV3Schema of another project's kind."""
    return dict(json.loads((FOLDER / f"{kind.lower()}.json").read_text()))


def validate(manifest: JsonObject) -> None:
    """Raises jsonschema.ValidationError."""
    schema = schema_of(manifest["kind"])
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.Draft202012Validator(_closed(schema)).validate(manifest)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(below) for below in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _closed(below) for key, below in schema.items() if not key.startswith("x-")}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        out.setdefault("additionalProperties", False)
    return out
