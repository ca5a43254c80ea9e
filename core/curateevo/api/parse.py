"""YAML text to a `CurationEvolution`, with errors that name the field, what is wrong and what would do."""

from __future__ import annotations

import difflib
import json
import re
from types import NoneType
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from curateevo.api.errors import SpecInvalid
from curateevo.api.evolution import API_VERSION, CurationEvolution
from curateevo.api.rules import broken_rules


class _Loader(yaml.SafeLoader):
    """YAML as kubectl reads it: PyYAML takes 1e-4 for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse_evolution(text: str, where: str) -> CurationEvolution:
    """Parse one document. `where` names the file in errors. Raises SpecInvalid with one line per problem."""
    try:
        raw = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise SpecInvalid(f"{where}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise SpecInvalid(f"{where}: expected one object, found {_kind(raw)}")
    if raw.get("kind") != "CurationEvolution" or raw.get("apiVersion") != API_VERSION:
        raise SpecInvalid(
            f"{where}: expected apiVersion {API_VERSION} and kind CurationEvolution, "
            f"found {raw.get('apiVersion')!r} and {raw.get('kind')!r}"
        )
    raw = {key: value for key, value in raw.items() if key != "status"}
    as_json = json.dumps(_as_received(raw, CurationEvolution), default=str)
    try:
        evolution = CurationEvolution.model_validate_json(as_json, strict=True)
    except ValidationError as error:
        raise SpecInvalid(_report(where, [_line(e) for e in _innermost(error.errors())])) from error
    broken = [f"{rule.path}: {rule.message}" for rule in broken_rules(evolution.spec)]
    if broken:
        raise SpecInvalid(_report(where, broken))
    return evolution


def _as_received(value: Any, annotation: Any) -> Any:
    """`value` as the API server gets it: null is absence where it is no choice, and 4.0 is a whole number."""
    model = _model_in(annotation)
    if model is None:
        return int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, list):
        return [_as_received(item, annotation) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {f.alias or n: f.annotation for n, f in model.model_fields.items()}
    kept = {k: v for k, v in value.items() if v is not None or k not in fields or NoneType in get_args(fields[k])}
    return {k: _as_received(v, fields[k]) if k in fields else v for k, v in kept.items()}


def _report(where: str, lines: list[str]) -> str:
    count = f"{len(lines)} problem{'s' if len(lines) != 1 else ''}"
    return "\n".join([f"{where}: {count}", *(f"  {line}" for line in lines)])


def _innermost(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Errors without those of containers whose members are wrong: they only repeat it."""
    paths = [e["loc"] for e in errors]
    return [e for e in errors if not any(len(p) > len(e["loc"]) and p[: len(e["loc"])] == e["loc"] for p in paths)]


def _line(error: ErrorDetails) -> str:
    path = _path(error["loc"])
    if error["type"] == "extra_forbidden":
        known = _known_fields(error["loc"][:-1])
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return f"{path}: unknown field; {advice}"
    if error["type"] == "missing":
        return f"{path}: required, but missing"
    value = error["input"]
    shown = repr(value) if not isinstance(value, dict | list) else _kind(value)
    return f"{path}: {error['msg'][0].lower()}{error['msg'][1:]} (found {shown[:80]})"


def _path(loc: tuple[int | str, ...]) -> str:
    out = ""
    for part in loc:
        if part == "[key]":
            continue
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out


def _known_fields(loc: tuple[int | str, ...]) -> list[str]:
    """The field names that the model at `loc` has."""
    model: Any = CurationEvolution
    for part in loc:
        if isinstance(part, int):
            continue
        fields = {f.alias or n: f for n, f in model.model_fields.items()}
        if part not in fields:
            return []
        model = _model_in(fields[part].annotation)
        if model is None:
            return []
    return sorted(f.alias or n for n, f in model.model_fields.items())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for arg in get_args(annotation) if (m := _model_in(arg))), None)


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", str: "text", type(None): "nothing"}.get(
        type(value), type(value).__name__
    )
