"""verl's SFT dataset for the rows beside this file: tools and arguments are JSON text there, and objects for the model.

In Parquet's own structs the schemas of different tools are merged, and nulls are trained on. This file is copied into
the export:

    data.custom_cls.path=DIR/verl_dataset.py data.custom_cls.name=ToolDataset
"""

from __future__ import annotations

import json
from typing import Any

from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset


class ToolDataset(MultiTurnSFTDataset):  # type: ignore[misc]
    """Rows with `messages` and `tools`, written by `curateevo export --to verl`."""

    def _read_files_and_process(self) -> None:
        super()._read_files_and_process()
        self.tools: list[Any] = [json.loads(text) or None for text in self.tools]

    def _build_messages(self, example: dict[str, Any]) -> list[dict[str, Any]]:
        return [_plain(message) for message in super()._build_messages(example)]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that a message doesn't have, and with arguments as objects where they are some."""
    out = {key: value for key, value in message.items() if value is not None}
    for call in out.get("tool_calls", ()):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        except ValueError:
            continue
    return out
