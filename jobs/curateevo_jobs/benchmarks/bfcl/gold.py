"""The package's own answers, as an agent would give them: the oracle that the suite is tested by."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import Any

from curateevo_jobs.agents.chat import Answer, parse_call
from curateevo_jobs.benchmarks.base import JsonObject, Task

UNANSWERABLE = {
    "bfcl/simple_java_36": "a list of texts, numbers and booleans, of which the checker reads texts alone",
    "bfcl/simple_java_64": "the reference of a map holds a value where the checker expects a list of values",
    "bfcl/simple_java_65": "a list of texts and booleans, of which the checker reads texts alone",
    "bfcl/live_simple_106-63-0": "the reference demands arguments for which it has no possible value",
    "bfcl/live_simple_112-68-0": "the reference demands arguments for which it has no possible value",
    "bfcl/live_multiple_862-181-3": "the reference demands an argument that the function does not have",
    "bfcl/live_multiple_964-207-0": "the reference lacks an argument that the function demands",
}
"""Tasks that no answer solves, and why: mistakes in the data, scored as they are by everyone."""


def gold_answers(task: Task) -> list[Answer]:
    """What to answer, in order, to be right. Of a memory question the answer is what the reference says, not what was
    looked up; where no call is wanted, and in prerequisites, a text."""
    state = json.loads(task.state)
    if state["kind"] == "memory":
        return [Answer(content=f"It is {state['truth'][0]}.")] if state["truth"] else []
    if state["kind"] == "turns":
        return [answer for number in range(len(state["truth"])) for answer in _turn(state, number)]
    if state["truth"] is not None:
        return [_calls([_ast_call(state, truth) for truth in state["truth"]])]
    if state["category"].endswith("_relevance"):
        return [_calls([(task.tools[0]["function"]["name"], {})])]
    return [Answer(content="None of the tools can do that.")]


def _turn(state: JsonObject, number: int) -> list[Answer]:
    tools = [*state["tools"], *(tool for added in state["added"].values() for tool in added)]
    made = [_python_call(text, tools) for text in state["truth"][number]]
    return [*([_calls(made)] if made else []), Answer(content="Done.")]


def _calls(calls: Sequence[tuple[str, JsonObject]]) -> Answer:
    return Answer(calls=tuple(parse_call(name, json.dumps(arguments)) for name, arguments in calls))


def _python_call(text: str, tools: Sequence[JsonObject]) -> tuple[str, JsonObject]:
    """A call of literals, e.g. `sort('report.txt')`; a value without a name belongs to the tool's next parameter."""
    call = ast.parse(text.strip(), mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    name = call.func.id
    [schema] = [tool["function"]["parameters"] for tool in tools if tool["function"]["name"] == name]
    arguments = dict(zip(schema["properties"], map(ast.literal_eval, call.args), strict=False))
    return name, {**arguments, **{str(k.arg): ast.literal_eval(k.value) for k in call.keywords}}


def _ast_call(state: JsonObject, truth: JsonObject) -> tuple[str, JsonObject]:
    """A call by the first possible value of each argument; an empty text among them stands for none at all."""
    [(name, possible)] = truth.items()
    [function] = [f for f in state["functions"] if f["name"] == name]
    schema = function["parameters"]["properties"]
    required = function["parameters"]["required"]
    arguments = {}
    for key, values in possible.items():
        if key not in required and "" in values and (values[0] in ("", []) or key not in schema):
            continue
        value = _plain(next((v for v in values if v != ""), ""))
        arguments[key] = value if state["language"] == "python" else _source(value, schema[key], state["language"])
    return name.replace(".", "_"), arguments


def _plain(value: Any) -> Any:
    """A value of the reference, in which objects hold lists of possible values."""
    if isinstance(value, dict):
        return {k: _plain(v[0]) for k, v in value.items() if v and v[0] != ""} if _is_choice(value) else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _is_choice(value: JsonObject) -> bool:
    return all(isinstance(v, list) for v in value.values())


def _source(value: Any, schema: JsonObject, language: str) -> str:
    """A value as Java or JavaScript source: arguments are texts in that language."""
    if isinstance(value, str):
        return value
    if language == "javascript":
        return json.dumps(value)
    element = schema.get("items", {}).get("type")
    match schema["type"]:
        case "long":
            return f"{value}L"
        case "float":
            return f"{value}f"
        case "ArrayList":
            return f"new ArrayList<>(Arrays.asList({_elements(value, element, quoted=True)}))"
        case "Array":
            return f"new {element}[]{{{_elements(value, element, quoted=element is None)}}}"
        case "HashMap":
            puts = " ".join(f'put("{key}", {json.dumps(item)});' for key, item in value.items())
            return f"new HashMap<String, Object>() {{{{ {puts} }}}}" if puts else "new HashMap<>()"
        case _:
            return json.dumps(value)


def _elements(values: Sequence[Any], kind: str | None, quoted: bool) -> str:
    """The package strips the quotes of texts, but not in an array whose elements have a type."""
    if kind not in (None, "String", "any"):
        return ", ".join(_source(value, {"type": kind}, "java") for value in values)
    return ", ".join(json.dumps(value) if quoted or not isinstance(value, str) else value for value in values)
