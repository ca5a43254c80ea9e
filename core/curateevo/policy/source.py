"""A policy's text: its id, its PARAMS, and the static rules. Static rules are hygiene; the wall is the sandbox."""

from __future__ import annotations

import ast
import hashlib
import importlib
from collections.abc import Iterator
from types import ModuleType
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
MAX_DEPTH = 100
"""Of nested syntax: what works on the tree recurses, and must not fail in trusted code."""
MAX_INT_BITS = 4096
"""Of a number that is written out: longer ones can't be shown."""


WRITE_PARAMS = 'write PARAMS = {"name": value}'


def normalised(source: str) -> str:
    """The source without comments, docstrings and layout. Raises PolicyRejected when it does not parse."""
    tree = parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]) and not isinstance(node, ast.Lambda):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    try:
        return ast.unparse(tree)
    except (RecursionError, ValueError) as error:
        raise _too_deep() from error


def policy_digest(source: str) -> str:
    """The id of a policy: the sha256 of its normalised source."""
    return "sha256:" + hashlib.sha256(normalised(source).encode()).hexdigest()


def parse(source: str) -> ast.Module:
    """The syntax tree. Raises PolicyRejected."""
    if len(source.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        raise PolicyRejected(
            "source-size", f"the source is larger than {MAX_SOURCE_BYTES >> 10} KiB", "make it smaller"
        )
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise PolicyRejected("syntax", str(error), "the file must be valid Python 3.11", line) from error
    except (RecursionError, MemoryError) as error:
        raise _too_deep() from error
    _check_depth(tree)
    return tree


def _check_depth(tree: ast.Module) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise _too_deep(getattr(level[0], "lineno", None))


def _too_deep(line: int | None = None) -> PolicyRejected:
    return PolicyRejected("syntax", "nested too deeply", "use simpler expressions", line)


def params_of(source: str) -> dict[str, Any]:
    """The PARAMS of a policy. Raises PolicyRejected when there are none or they are not a literal."""
    for node in parse(source).body:
        if (value := _assigned(node, "PARAMS")) is not None:
            try:
                params = ast.literal_eval(value)
            except (ValueError, TypeError) as error:
                raise PolicyRejected("params", "PARAMS must be a literal dict", WRITE_PARAMS, node.lineno) from error
            if isinstance(params, dict) and all(isinstance(k, str) for k in params):
                return params
    raise PolicyRejected("params", "no PARAMS dict with text keys", WRITE_PARAMS)


def stage_lines(source: str) -> dict[str, int]:
    """The line of each stage function. Raises PolicyRejected when the source does not parse."""
    functions = (node for node in parse(source).body if isinstance(node, ast.FunctionDef))
    return {node.name: node.lineno for node in functions if node.name in STAGES}


def line_of_use(source: str, name: str) -> int | None:
    """The first line that uses `name`, alone or as an attribute. Raises PolicyRejected when it does not parse."""
    used = (n for n in ast.walk(parse(source)) if name in (getattr(n, "attr", None), getattr(n, "id", None)))
    return min((node.lineno for node in used if isinstance(node, ast.expr)), default=None)


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
    modules = dict(_imported(tree))
    for node in ast.walk(tree):
        line = getattr(node, "lineno", None)
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name not in ALLOWED_MODULES | OWN_MODULES:
                        yield _bad_import(alias.name, line)
            case ast.ImportFrom(module=module, names=names, level=level):
                if level or module not in ALLOWED_MODULES | OWN_MODULES:
                    yield _bad_import(module or ".", line)
                if module == "curateevo.policy" and [alias.name for alias in names] != ["api"]:
                    only = "only `api` may be imported from curateevo.policy"
                    yield PolicyRejected("import", only, "write from curateevo.policy import api", line)
                for found in (_foreign(f"{module}.{alias.name}") for alias in names):
                    if found:
                        yield _bad_import(found, line)
            case ast.Attribute() if found := _foreign(_dotted(node, modules)):
                yield _bad_import(found, line)
            case ast.Name(id=name) if name in FORBIDDEN_NAMES or _dunder(name):
                yield PolicyRejected(
                    "name", f"{name} may not be used", "use the operators of curateevo.policy.api", line
                )
            case ast.Attribute(attr=attr) if attr.startswith("_") or attr in FORBIDDEN_ATTRIBUTES:
                yield PolicyRejected("attribute", f".{attr} may not be used", "use public attributes only", line)
            case ast.MatchClass(kwd_attrs=attrs) if any(attr.startswith("_") for attr in attrs):
                yield PolicyRejected("attribute", "a pattern on private attributes", "use public attributes only", line)
            case ast.Constant(value=int() as number) if number.bit_length() > MAX_INT_BITS:
                yield PolicyRejected("node", f"a number of {number.bit_length()} bits", "use smaller numbers", line)
            case ast.Constant(value=str() as text) if "__" in text and "{" in text:
                shown = "a format string that reaches dunder attributes"
                yield PolicyRejected("attribute", shown, "use public attributes only", line)
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield PolicyRejected("node", "asynchronous code", "stages are plain functions", line)
            case ast.Global() | ast.Nonlocal():
                yield PolicyRejected("node", "global and nonlocal state", "pass values and return them", line)
            case _:
                pass


def _bad_import(name: str, line: int | None) -> PolicyRejected:
    allowed = ", ".join(sorted(ALLOWED_MODULES))
    return PolicyRejected("import", f"{name} may not be imported", f"allowed: curateevo.policy.api, {allowed}", line)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that modules have in a policy, and the modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2


def _dotted(node: ast.expr, modules: dict[str, str]) -> str:
    """`a.b.c` as text with the module that `a` is; empty for other expressions."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in modules:
        return ""
    return ".".join([modules[node.id], *reversed(parts)])


def _foreign(dotted: str) -> str:
    """The module that a dotted name leads to where policies may not go, as `dataclasses.sys` does; else empty."""
    path = dotted.split(".")
    if path[0] == "curateevo":
        return "" if all(a == b for a, b in zip(path, ("curateevo", "policy", "api"), strict=False)) else dotted
    if path[0] not in ALLOWED_MODULES:
        return ""
    found: Any = importlib.import_module(path[0])
    for part in path[1:]:
        found = getattr(found, part, None)
        if isinstance(found, ModuleType) and found.__name__.partition(".")[0] not in ALLOWED_MODULES:
            return found.__name__
    return ""


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _assigned(node: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == [name]:
        return node.value
    return None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
