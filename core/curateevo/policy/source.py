"""A policy's text: its id, its PARAMS, and the static rules. Static rules are hygiene; the wall is the sandbox."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from typing import Any

from curateevo.api.errors import PolicyRejected

POLICY_API = 1
STAGES: dict[str, tuple[str, ...]] = {
    "select": ("corpus", "ctx"),
    "refine": ("items", "ctx"),
    "augment": ("items", "ctx"),
    "build_sft": ("items", "ctx"),
    "build_rl": ("items", "ctx"),
    "build_memory": ("items", "ctx"),
    "prune": ("resources", "ctx"),
}
ALLOWED_MODULES = frozenset(
    {
        "collections",
        "dataclasses",
        "functools",
        "itertools",
        "json",
        "math",
        "re",
        "statistics",
        "string",
        "typing",
    }
)
OWN_MODULES = frozenset({"curateevo.policy", "curateevo.policy.api"})
FORBIDDEN_NAMES = frozenset(
    {
        "__import__", "breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr", "globals", "help",
        "input", "locals", "memoryview", "open", "quit", "setattr", "vars",
    }
)  # fmt: skip
FORBIDDEN_ATTRIBUTES = frozenset(
    {"format_map", "gi_frame", "cr_frame", "f_globals", "f_builtins", "f_back", "tb_frame"}
)
MAX_SOURCE_BYTES = 256 * 1024
MAX_NODES = 50_000


def normalised(source: str) -> str:
    """The source without comments, docstrings and layout. Raises PolicyRejected when it does not parse."""
    tree = parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]) and not isinstance(node, ast.Lambda):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def policy_digest(source: str) -> str:
    """The id of a policy: the sha256 of its normalised source."""
    return "sha256:" + hashlib.sha256(normalised(source).encode()).hexdigest()


def parse(source: str) -> ast.Module:
    """The syntax tree. Raises PolicyRejected."""
    if len(source.encode()) > MAX_SOURCE_BYTES:
        raise PolicyRejected(
            "source-size", f"the source is larger than {MAX_SOURCE_BYTES >> 10} KiB", "make it smaller"
        )
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise PolicyRejected("syntax", str(error), "the file must be valid Python 3.11", line) from error
    except RecursionError as error:
        raise PolicyRejected("syntax", "nested too deeply", "use simpler expressions") from error


def params_of(source: str) -> dict[str, Any]:
    """The PARAMS of a policy. Raises PolicyRejected when there are none or they are not a literal."""
    for node in parse(source).body:
        if (value := _assigned(node, "PARAMS")) is not None:
            try:
                params = ast.literal_eval(value)
            except ValueError as error:
                raise PolicyRejected("params", "PARAMS must be a literal dict", line=node.lineno) from error
            if isinstance(params, dict) and all(isinstance(k, str) for k in params):
                return params
    raise PolicyRejected("params", "no PARAMS dict with text keys", 'write PARAMS = {"name": value}')


def check_static(source: str) -> None:
    """All static rules. Raises PolicyRejected with rule, line and remedy for the first that is broken."""
    tree = parse(source)
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise PolicyRejected("source-size", f"more than {MAX_NODES} syntax nodes", "make it smaller")
    _check_api(tree)
    params_of(source)
    _check_stages(tree)
    for problem in _problems(tree):
        raise problem


def _check_api(tree: ast.Module) -> None:
    found = next((v for node in tree.body if (v := _assigned(node, "POLICY_API")) is not None), None)
    if not (isinstance(found, ast.Constant) and found.value == POLICY_API):
        raise PolicyRejected("api-version", f"POLICY_API must be {POLICY_API}", f"write POLICY_API = {POLICY_API}")


def _check_stages(tree: ast.Module) -> None:
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, arguments in STAGES.items():
        if name not in functions:
            raise PolicyRejected("stage-missing", f"no function {name}", f"write def {name}({', '.join(arguments)})")
        node = functions[name]
        given = tuple(a.arg for a in node.args.args)
        if given != arguments or node.args.vararg or node.args.kwonlyargs or node.args.kwarg or node.args.posonlyargs:
            raise PolicyRejected(
                "stage-signature",
                f"{name} takes ({', '.join(given)})",
                f"it must take ({', '.join(arguments)})",
                node.lineno,
            )
        if node.decorator_list:
            raise PolicyRejected("stage-signature", f"{name} is decorated", "remove the decorator", node.lineno)


def _problems(tree: ast.Module) -> Iterator[PolicyRejected]:
    for node in ast.walk(tree):
        line = getattr(node, "lineno", None)
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name not in ALLOWED_MODULES | OWN_MODULES:
                        yield _bad_import(alias.name, line)
            case ast.ImportFrom(module=module, level=level):
                if level or module not in ALLOWED_MODULES | OWN_MODULES:
                    yield _bad_import(module or ".", line)
                if module == "curateevo.policy" and [a.name for a in node.names] != ["api"]:
                    yield PolicyRejected("import", "only `api` may be imported from curateevo.policy", line=line)
            case ast.Name(id=name) if name in FORBIDDEN_NAMES or _dunder(name):
                yield PolicyRejected(
                    "name", f"{name} may not be used", "use the operators of curateevo.policy.api", line
                )
            case ast.Attribute(attr=attr) if attr.startswith("_") or attr in FORBIDDEN_ATTRIBUTES:
                yield PolicyRejected("attribute", f".{attr} may not be used", "use public attributes only", line)
            case ast.Constant(value=str() as text) if "__" in text and "{" in text:
                yield PolicyRejected("attribute", "a format string that reaches dunder attributes", line=line)
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield PolicyRejected("node", "asynchronous code", "stages are plain functions", line)
            case ast.Global() | ast.Nonlocal():
                yield PolicyRejected("node", "global and nonlocal state", "pass values and return them", line)
            case _:
                pass


def _bad_import(name: str, line: int | None) -> PolicyRejected:
    allowed = ", ".join(sorted(ALLOWED_MODULES))
    return PolicyRejected("import", f"{name} may not be imported", f"allowed: curateevo.policy.api, {allowed}", line)


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _assigned(node: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == [name]:
        return node.value
    return None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
