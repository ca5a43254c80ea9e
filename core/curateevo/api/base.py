"""What all models share: camelCase on the wire, snake_case in code, frozen, unknown fields refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

JsonObject = dict[str, Any]


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
        """The JSON form: camelCase, and None only where it says something, as in `lora: null`."""
        return self.model_dump(mode="json", by_alias=True)

    @model_serializer(mode="wrap")
    def _without_plain_none(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        """Leave out None where it is the default anyway; elsewhere it is a choice and must survive."""
        found: JsonObject = handler(self)
        quiet = {n for n, f in type(self).model_fields.items() if f.default is None}
        quiet |= {f.alias or "" for n, f in type(self).model_fields.items() if f.default is None}
        return {key: value for key, value in found.items() if value is not None or key not in quiet}


def canonical_json(value: Any) -> str:
    """JSON text with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(value: Any) -> str:
    """`sha256:<hex>` of a JSON value's canonical text."""
    return "sha256:" + hashlib.sha256(canonical_json(value).encode()).hexdigest()
