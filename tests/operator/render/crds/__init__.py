"""Manifests against schemas of custom resources, strictly: a field that the schema does not know is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from curateevo.api.base import JsonObject

FOLDER = Path(__file__).parent


def validate(manifest: JsonObject) -> None:
    """Raises jsonschema.ValidationError."""
    schema = json.loads((FOLDER / f"{manifest['kind'].lower()}.json").read_text())
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.Draft202012Validator(_strict(schema)).validate(manifest)


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _strict(value) for key, value in schema.items() if not key.startswith("x-")}
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not open_ended:
        out["additionalProperties"] = False
    if schema.get("nullable") and isinstance(schema.get("type"), str):
        out["type"] = [schema["type"], "null"]
    return out
