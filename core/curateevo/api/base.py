"""What all models share: camelCase on the wire, snake_case in code, frozen, unknown fields refused."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
)
from pydantic.alias_generators import to_camel

JsonObject = dict[str, Any]
END_OF_TIME = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def _read_time(value: Any) -> Any:
    return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value


def _write_time(value: float) -> str:
    return datetime.fromtimestamp(value, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


Time = Annotated[
    float,
    Field(ge=0.0, le=END_OF_TIME),
    BeforeValidator(_read_time),
    PlainSerializer(_write_time, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Seconds since the epoch in code; on the wire RFC 3339 with microseconds, as Kubernetes wants it."""


class Model(BaseModel):
    """A frozen model with camelCase aliases that refuses fields it does not know."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def to_wire(self) -> JsonObject:
        """The JSON form: camelCase, None left out."""
        return self.model_dump(mode="json", by_alias=True)

    @model_serializer(mode="wrap")
    def _without_none(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        """Leave out fields that are None: `kubectl apply` drops nulls, so that none may mean anything."""
        found: JsonObject = handler(self)
        return {key: value for key, value in found.items() if value is not None}


def canonical_json(value: Any) -> str:
    """JSON text with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(value: Any) -> str:
    """`sha256:<hex>` of a JSON value's canonical text."""
    return "sha256:" + hashlib.sha256(canonical_json(value).encode()).hexdigest()
