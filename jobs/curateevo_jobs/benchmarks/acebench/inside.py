"""What runs in the enclosure: the package's scenario classes and its checker of end states. A job is a JSON object.

Everything that is needed is imported here and before confinement; afterwards no file can be opened.
"""

from __future__ import annotations

import json
from datetime import datetime
from importlib import import_module
from typing import Any

from curateevo_jobs.benchmarks.acebench import parts  # noqa: F401  before the package

# isort: split
from evalscope.benchmarks.acebench.checker import check_agent_end_state
from evalscope.benchmarks.acebench.scenarios import (
    CLASS_MODULE_MAPPING,
    VENDORED_PACKAGE,
    load_scenario_instances,
    snapshot_states,
)

JsonObject = dict[str, Any]

datetime.strptime("2024", "%Y")  # the first date that is read imports what reads it

for _language in ("en", "zh"):
    for _module in CLASS_MODULE_MAPPING.values():
        import_module(f"{VENDORED_PACKAGE}.{_language}.{_module}")


def answer(job: JsonObject) -> JsonObject:
    """Make all `calls`: the last one's `result` or, where a `truth` is given, whether the end state is `right`."""
    instances = load_scenario_instances(job["config"], job["classes"], job["language"])
    result: Any = ""
    for name, arguments in job["calls"]:
        try:
            # As officially: a call goes to every class that has it, and the last one answers.
            for instance in instances.values():
                if hasattr(instance, name):
                    result = getattr(instance, name)(**arguments)
        except Exception as error:  # noqa: BLE001  as officially: the model is told
            result = f"Error during execution: {error}"
    if "truth" in job:
        return {"right": bool(check_agent_end_state(snapshot_states(instances), job["truth"])["valid"])}
    return {"result": result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)}
