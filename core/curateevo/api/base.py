"""What all models share: camelCase on the wire, snake_case in code, frozen, unknown fields refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

JsonObject = dict[str, Any]


class Model(BaseModel):
    """A frozen model with camelCase aliases that refuses fields it does not know."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    def to_wire(self) -> JsonObject:
        """The JSON form: camelCase, None left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def canonical_json(value: Any) -> str:
    """JSON text with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(value: Any) -> str:
    """`sha256:<hex>` of a JSON value's canonical text."""
    return "sha256:" + hashlib.sha256(canonical_json(value).encode()).hexdigest()
