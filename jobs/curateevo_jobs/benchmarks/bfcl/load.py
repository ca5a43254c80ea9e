"""Reads the package's data set: `python -m curateevo_jobs.benchmarks.bfcl.load CATEGORY...`, a JSON line per item.

A process of its own, since importing the package makes folders and loading needs its locks. An item has `id`,
`category`, `turns` (lists of messages), `tools` (as the model sees them), `added` (tools by the turn that adds them),
`functions` (as the checker reads them), `truth`, and for environments `entry`. Of a memory there are `before`, the ids
of what is played before, and `opening`, the first turn without the instructions and the notes that `turns` begins with.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
from bfcl_eval.constants.enums import ModelStyle
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
from bfcl_eval.model_handler.utils import convert_to_tool
from bfcl_eval.utils import (
    contain_multi_turn_interaction,
    is_memory,
    is_relevance_or_irrelevance,
    load_dataset_entry,
    load_ground_truth_entry,
)

from curateevo_jobs.benchmarks.bfcl.inside import greet

JsonObject = dict[str, Any]


def main() -> None:
    for category in sys.argv[1:]:
        for item in read(category):
            print(json.dumps(item, ensure_ascii=False))  # noqa: T201


def read(category: str) -> list[JsonObject]:
    """All items of a category, in the package's order."""
    shown = load_dataset_entry(category)
    acted = contain_multi_turn_interaction(category)
    checked = shown if acted else load_dataset_entry(category, include_language_specific_hint=False)
    truths = [] if is_relevance_or_irrelevance(category) else load_ground_truth_entry(category)
    # Some truths have ids of their own; the order is the same, as the package itself says.
    scored = [entry["id"] for entry in checked if "prereq" not in entry["id"]] if truths else []
    truth_of = {name: truth["ground_truth"] for name, truth in zip(scored, truths, strict=True)}
    return [_item(category, a, b, truth_of.get(a["id"])) for a, b in zip(shown, checked, strict=True)]


def _item(category: str, shown: JsonObject, checked: JsonObject, truth: Any) -> JsonObject:
    turns = shown["question"]
    added = {int(turn): tools(functions) for turn, functions in shown.get("missed_function", {}).items()}
    for turn in added:
        # As in the package: the user says that there are more functions, and nothing else.
        turns[turn] = [{"role": "user", "content": DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC}]
    item = {"id": shown["id"], "category": category, "turns": turns, "tools": tools(shown["function"]), "truth": truth}
    if "involved_classes" not in shown:
        return {**item, "functions": checked["function"]}
    entry: JsonObject = {k: shown[k] for k in ("id", "initial_config", "involved_classes", "scenario") if k in shown}
    if not is_memory(category):
        return {**item, "added": added, "entry": entry}
    opening = copy.deepcopy(turns[0])
    turns[0] = greet(entry, category, turns[0], None)
    return {**item, "entry": entry, "opening": opening, "before": shown["depends_on"]}


def tools(functions: list[JsonObject]) -> list[JsonObject]:
    """Functions as OpenAI tools, dots in names replaced as the package does for OpenAI's API, sorted by name."""
    converted: list[JsonObject] = convert_to_tool(functions, GORILLA_TO_OPENAPI, ModelStyle.OPENAI_COMPLETIONS)
    return sorted(converted, key=lambda tool: str(tool["function"]["name"]))


if __name__ == "__main__":
    main()
