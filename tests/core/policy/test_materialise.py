"""Rows as they are written from the corpus."""

from __future__ import annotations

import json

from curateevo.policy.materialise import as_served


def test_a_tools_keys_stand_as_a_server_hands_them_to_the_template() -> None:
    parameters = {"type": "object", "required": ["b"], "properties": {"b": {}, "a": {}}}
    tool = {"function": {"strict": True, "parameters": parameters, "description": "d", "name": "f"}, "type": "function"}
    function = {"name": "f", "description": "d", "parameters": parameters, "strict": True}
    assert json.dumps(as_served(tool)) == json.dumps({"type": "function", "function": function})
    assert as_served({"name": "f"}) == {"name": "f"}
