"""Results of bfcl-eval (2026.3): `BFCL_v4_*_result.json`, one `{id, result, inference_log, ...}` a line.

Only rows with a log of the conversation are trajectories, which are those of multi-turn, memory and web search. A row
of a single turn holds calls that nothing answers, and no prompt: it is set aside.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from curateevo.trajectories.formats.atif_steps import read_chat
from curateevo.trajectories.formats.observed import observed_tools
from curateevo.trajectories.formats.transcript import Transcript, arguments_text
from curateevo.trajectories.model import JsonObject, RowInvalid, TaskRef, Trajectory

LICENCE = "Apache-2.0 (BFCL's questions)"
QUERY = "begin_of_turn_query"
ERROR = "Error during inference"


def parse_bfcl(row: Any, source: str) -> Trajectory:
    """One result to a trajectory. Scores are in other files: the outcome is unknown. Raises RowInvalid."""
    if not isinstance(row, dict) or "id" not in row or "result" not in row:
        raise RowInvalid("expected an object with id and result")
    if isinstance(row["result"], str) and row["result"].startswith(ERROR):
        raise RowInvalid(f"BFCL could not run it: {row['result'][:120]}")
    turns = [t for t in row.get("inference_log") or () if isinstance(t, dict) and QUERY in t]
    if not turns:
        raise RowInvalid("a BFCL result without a log of the conversation: single-turn results are no trajectories")
    parts = read_chat(_transcript(turns).messages)
    name = str(row["id"])
    return parts.trajectory(
        f"bfcl/{name}",
        source,
        task=TaskRef(id=name, prompt=parts.opening),
        tools=observed_tools(parts.turns),
        labels={"category": name.rpartition("_")[0]},
        licence=LICENCE,
    )


def _transcript(turns: list[JsonObject]) -> Transcript:
    out = Transcript()
    for turn in turns:
        for message in turn[QUERY]:
            out.say(str(message.get("role")), str(message.get("content") or ""))
        for name in sorted((k for k in turn if k.startswith("step_")), key=lambda k: int(k.removeprefix("step_"))):
            _step(out, turn[name])
    return out


def _step(out: Transcript, step: list[JsonObject]) -> None:
    """An answer, the calls read from it, and their results. Calls without results were not executed: they are text."""
    answer = next((m for m in step if m.get("role") == "assistant"), None)
    if answer is None:
        return
    results = [str(m.get("content") or "") for m in step if m.get("role") == "tool"]
    content, reasoning = answer.get("content"), answer.get("reasoning_content")
    calls = _calls(content, step) if results else []
    if len(calls) != len(results):
        raise RowInvalid(f"{len(calls)} calls but {len(results)} results in a step")
    text = content if isinstance(content, str) else "" if calls else json.dumps(content, ensure_ascii=False)
    if calls and text.strip().startswith("["):
        text = ""
    out.say("assistant", text, reasoning if isinstance(reasoning, str) and reasoning else None)
    for call in calls:
        out.call(*call)
    for result in results:
        out.result(result)


def _calls(content: Any, step: list[JsonObject]) -> list[tuple[str, str]]:
    """Calls of a model with function calling (`[{name: arguments}]`), or of one that writes Python, as BFCL read it."""
    if isinstance(content, list):
        return [(str(name), arguments_text(raw)) for call in content for name, raw in call.items()]
    decoded: list[str] = next((m["model_response_decoded"] for m in step if m.get("model_response_decoded")), [])
    return [_python_call(text) for text in decoded]


def _python_call(text: str) -> tuple[str, str]:
    """`f(a=1)` as name and arguments. Raises RowInvalid for anything but keywords with literal values."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("not a call with named arguments alone")
        arguments = {k.arg or "": ast.literal_eval(k.value) for k in call.keywords}
        return ast.unparse(call.func), json.dumps(arguments, ensure_ascii=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise RowInvalid(f"a call that can't be read: {text[:80]}: {error}") from error
