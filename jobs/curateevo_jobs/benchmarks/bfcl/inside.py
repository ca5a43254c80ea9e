"""What runs in the enclosure: the package's environments and checkers. A job is a JSON object with `do`.

Everything that is needed is imported here and before confinement; afterwards no file can be opened.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

JsonObject = dict[str, Any]


class _AnyModel(dict[str, Any]):
    """The package's table of models, as far as the checkers read it: names with dots were shown with underscores."""

    def __missing__(self, key: str) -> SimpleNamespace:
        return SimpleNamespace(underscore_to_dot=True)


# The real module imports the clients of some forty vendors.
_stub: Any = ModuleType("bfcl_eval.constants.model_config")
_stub.MODEL_CONFIG_MAPPING = _AnyModel()
sys.modules["bfcl_eval.constants.model_config"] = _stub

from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES  # noqa: E402
from bfcl_eval.eval_checker.agentic_eval.agentic_checker import agentic_checker  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker  # noqa: E402
from bfcl_eval.model_handler.utils import add_memory_instruction_system_prompt  # noqa: E402

MODEL = "model"
MEMORY_FIELDS = {"MemoryAPI_kv": ("core_memory", "archival_memory"), "MemoryAPI_rec_sum": ("memory",)}
REFUSED_CLASSES = ("WebSearchAPI", "MemoryAPI_vector")
CLASSES = {
    name: getattr(importlib.import_module(path), name)
    for name, path in CLASS_FILE_PATH_MAPPING.items()
    if name not in REFUSED_CLASSES
}


def answer(job: JsonObject) -> JsonObject:
    """The answer to a job."""
    match job["do"]:
        case "act":
            return act(job["entry"], job["calls"], job["memory"])
        case "greet":
            return {"messages": greet(job["entry"], job["category"], job["messages"], job["memory"])}
        case "ast":
            language = Language(job["language"])
            return _valid(ast_checker(job["functions"], job["calls"], job["truth"], language, job["category"], MODEL))
        case "turns":
            return {"right": right_turns(job["turns"], job["truth"], job["entry"], job["category"])}
        case "text":
            return _valid(agentic_checker(job["text"], job["truth"]))
        case other:
            raise ValueError(f"no job {other!r}")


def right_turns(turns: list[Any], truth: list[Any], entry: JsonObject, category: str) -> int:
    """How many user turns are right from the first on. The checker stops at the first wrong one, and says no number.

    It keeps environments by the model's name: another one for each look.
    """
    for number in range(1, min(len(turns), len(truth)) + 1):
        if not multi_turn_checker(turns[:number], truth[:number], entry, category, f"{MODEL}{number}")["valid"]:
            return number - 1
    return min(len(turns), len(truth))


def _valid(result: JsonObject) -> JsonObject:
    return {"valid": bool(result["valid"])}


def act(entry: JsonObject, calls: list[tuple[str, JsonObject]], memory: JsonObject | None) -> JsonObject:
    """Make all calls, by name and with arguments as values: the last one's result, and what a memory then holds.

    As `execute_multi_turn_func_call` of the package, which pastes text together and evaluates it.
    """
    instances = _instances(entry, memory)
    result = ""
    for name, arguments in calls:
        try:
            result = _text(_method(instances, name)(**arguments))
        except Exception as error:  # noqa: BLE001  as in the package: the model is told
            result = f"Error during execution: {error}"
    return {"result": result, "memory": _memory_of(instances)}


def greet(entry: JsonObject, category: str, messages: list[JsonObject], memory: JsonObject | None) -> Any:
    """The opening messages of a conversation with a memory: the package's instructions, and what is remembered."""
    [instance] = _instances(entry, memory).values()
    [turn] = add_memory_instruction_system_prompt([messages], category, entry["scenario"], instance)
    return turn


def _instances(entry: JsonObject, memory: JsonObject | None) -> dict[str, Any]:
    instances = {}
    for name in entry["involved_classes"]:
        instance = instances[name] = CLASSES[name]()
        if name in MEMORY_FIELDS:
            for field, value in (memory or {}).items():
                setattr(instance, field, value)
        elif name not in STATELESS_CLASSES:
            config = copy.deepcopy(entry["initial_config"].get(name, {}))
            instance._load_scenario(config, long_context="long_context" in entry["id"])
    return instances


def _memory_of(instances: dict[str, Any]) -> JsonObject | None:
    for name, instance in instances.items():
        if name in MEMORY_FIELDS:
            return {field: getattr(instance, field) for field in MEMORY_FIELDS[name]}
    return None


def _method(instances: dict[str, Any], name: str) -> Any:
    """A public method; where two classes have it, the last one's, as in the package."""
    for instance in reversed(instances.values()):
        if not name.startswith("_") and callable(getattr(type(instance), name, None)):
            return getattr(instance, name)
    raise NameError(f"name '{name}' is not defined")


def _text(value: Any) -> str:
    """A result as the package shows it."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            return str(value)
    return str(value)
