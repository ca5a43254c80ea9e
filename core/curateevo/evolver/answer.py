"""An LLM's answer: read strictly, turned into a patch, and checked before anything is spent on it."""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from curateevo.api.errors import PolicyRejected
from curateevo.api.spec import Focus
from curateevo.evolver.patch import Edit, Patch, apply_edits, check_edited
from curateevo.evolver.prompt import FAMILY_STAGES, Family, demanded_families
from curateevo.evolver.proposal import ProposalInput
from curateevo.policy.source import STAGES, normalised, params_of, parse

PARAMS = "PARAMS"
NEAR_CONTEXT_LINES = 3
NEAR_RATIO = 0.4
MAX_METHOD_CHARS = 60
MAX_TEXT_CHARS = 600
MAX_STAGES_CHANGED = 2
MAX_PARAMS_CHANGED = 6
SEARCH_MARK, MIDDLE_MARK, REPLACE_MARK = (
    re.compile(pattern) for pattern in (r"^<{5,9} ?SEARCH\s*$", r"^={5,9}\s*$", r"^>{5,9} ?REPLACE\s*$")
)
HEADER = re.compile(r"^[\s*#>-]*(HYPOTHESIS|METHOD|FAMILY|EXPECTED)[\s*]*:[\s*]*(.*)$", re.IGNORECASE)
FENCE = re.compile(r"^\s*(`{3,})\s*([\w-]*)\s*$")
THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was proposed. `whole` holds functions that are rewritten whole, and PARAMS, by name."""

    hypothesis: str
    method: str
    """`family/short-name`."""
    family: Family
    expected: str
    edits: tuple[Edit, ...]
    whole: Mapping[str, str]


def parse_answer(text: str) -> Answer:
    """The answer in a text: headers with SEARCH/REPLACE blocks, or the same as JSON. Raises PolicyRejected."""
    text = THOUGHT.sub("", text).replace("\r\n", "\n").strip()
    if not text:
        raise PolicyRejected("answer", "the answer is empty", "answer in the form asked for")
    fields = _read_json(text) if _is_json(text) else _read_blocks(text)
    answer = _answer_of(fields)
    if not answer.edits and not answer.whole:
        raise PolicyRejected("answer", "there is no edit", "give at least one SEARCH/REPLACE block")
    return answer


def parse_claim(text: str) -> Answer:
    """The headers alone, for a policy that was edited in place. Raises PolicyRejected."""
    return _answer_of({**_read_blocks(text), "edits": (), "whole": {}})


def _answer_of(fields: Mapping[str, Any]) -> Answer:
    for name in ("hypothesis", "method", "family", "expected"):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            raise PolicyRejected("answer", f"{name.upper()} is missing", "name HYPOTHESIS, METHOD, FAMILY and EXPECTED")
    family = fields["family"].strip().strip("*`.").lower()
    if family not in set(Family):
        raise PolicyRejected("answer", f"FAMILY is {family[:40]!r}", f"one of {', '.join(Family)}")
    method = fields["method"].strip().lower().removeprefix(f"{family}/")
    slug = re.sub(r"[^a-z0-9]+", "-", method)[:MAX_METHOD_CHARS].strip("-") or "unnamed"
    hypothesis, expected = (" ".join(fields[name].split())[:MAX_TEXT_CHARS] for name in ("hypothesis", "expected"))
    return Answer(hypothesis, f"{family}/{slug}", Family(family), expected, fields["edits"], fields["whole"])


def _is_json(text: str) -> bool:
    return text.startswith("{") or re.search(r"^\s*```(json)?\s*\n\s*\{", text, re.MULTILINE) is not None


def _read_json(text: str) -> dict[str, Any]:
    fenced = re.findall(r"^\s*```(?:json)?\s*\n(\s*\{.*?)^\s*```\s*$", text, re.DOTALL | re.MULTILINE)
    if len(fenced) > 1:
        raise _several()
    try:
        found = json.loads(fenced[0] if fenced else text[text.index("{") :], strict=False)
    except ValueError as error:
        raise PolicyRejected("answer", f"the JSON does not parse: {error}", "or use SEARCH/REPLACE blocks") from error
    edits, whole = (found.get("edits", []), found.get("functions", {})) if isinstance(found, dict) else (None, None)
    if not isinstance(edits, list) or not all(_is_edit(edit) for edit in edits):
        raise PolicyRejected("answer", "edits must be a list of objects", 'each {"search": text, "replace": text}')
    if not isinstance(whole, dict) or not all(isinstance(v, str) for v in whole.values()):
        raise PolicyRejected("answer", "functions must be an object", '{"name": "def name(...): ..."}')
    return {**found, "edits": tuple(Edit(e["search"], e["replace"]) for e in edits), "whole": whole}


def _is_edit(edit: object) -> bool:
    return isinstance(edit, dict) and all(isinstance(edit.get(name), str) for name in ("search", "replace"))


def _read_blocks(text: str) -> dict[str, Any]:
    """Headers, SEARCH/REPLACE blocks and fenced definitions, line by line."""
    fields: dict[str, Any] = {}
    edits: list[Edit] = []
    whole: dict[str, str] = {}
    header = ""
    lines = iter(text.split("\n"))
    for line in lines:
        if SEARCH_MARK.match(line):
            edits.append(_read_edit(lines))
            header = ""
        elif MIDDLE_MARK.match(line) or REPLACE_MARK.match(line):
            raise PolicyRejected("answer", f"{line.strip()} without its SEARCH", "write each block in full")
        elif found := HEADER.match(line):
            header = found[1].lower()
            if header in fields:
                raise _several()
            fields[header] = found[2]
        elif fence := FENCE.match(line):
            header = ""
            if fence[2].lower() in ("python", "py"):
                block = _read_definition(lines, fence[1], edits)
                whole |= {name: block for name in [_defined(block)] if name}
        elif header and line.strip():
            fields[header] += " " + line.strip()
        else:
            header = ""
    return {**fields, "edits": tuple(edits), "whole": whole}


def _several() -> PolicyRejected:
    return PolicyRejected("answer", "there is more than one proposal", "one improvement: send the best one only")


def _read_edit(lines: Iterator[str]) -> Edit:
    """One block whose SEARCH line has been read. Whole lines, each with its end."""
    search, replace = _until(lines, MIDDLE_MARK), _until(lines, REPLACE_MARK)
    return Edit("".join(f"{line}\n" for line in search), "".join(f"{line}\n" for line in replace))


def _until(lines: Iterator[str], end: re.Pattern[str]) -> list[str]:
    out: list[str] = []
    for line in lines:
        if end.match(line):
            return out
        out.append(line)
    raise PolicyRejected("answer", "a SEARCH/REPLACE block has no end", "the answer may have been cut: be brief")


def _read_definition(lines: Iterator[str], fence: str, edits: list[Edit]) -> str:
    """The text of a fenced block; SEARCH/REPLACE blocks in it are read as such."""
    out: list[str] = []
    for line in lines:
        if line.strip() == fence:
            return "\n".join(out)
        if SEARCH_MARK.match(line):
            edits.append(_read_edit(lines))
        else:
            out.append(line)
    raise PolicyRejected("answer", "a fenced block has no end", "the answer may have been cut: be brief")


def _defined(text: str) -> str:
    """The name that a block of code defines at its first line, or nothing."""
    if found := re.match(r"\s*def (\w+)\(", text):
        return found[1]
    return PARAMS if re.match(r"\s*PARAMS\s*=", text) else ""


def make_patch(source: str, answer: Answer, rewritten: Collection[str]) -> Patch:
    """The patch of an answer. Whole definitions are taken for the names in `rewritten` only. Raises PolicyRejected."""
    for name in answer.whole:
        if name not in rewritten:
            raise PolicyRejected("answer", f"{name} was sent whole", "send SEARCH/REPLACE blocks for what changes")
    whole = tuple(_rewrite(source, name, text) for name, text in answer.whole.items())
    return Patch(answer.method, answer.hypothesis, answer.expected, (*whole, *answer.edits))


def _rewrite(source: str, name: str, text: str) -> Edit:
    new = parse(text.strip() + "\n").body
    if [_name_of(node) for node in new] != [name]:
        raise PolicyRejected("answer", f"the block for {name} holds something else", f"send {name} alone")
    span = _spans(source).get(name)
    if span is None:
        raise PolicyRejected("answer", f"the policy has no {name}", "rewrite what is there")
    old = "".join(source.splitlines(keepends=True)[span.start : span.stop])
    return Edit(old, text.strip() + ("\n" if old.endswith("\n") else ""))


def _name_of(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef):
        return node.name
    if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == [PARAMS]:
        return PARAMS
    return ""


def _spans(source: str) -> dict[str, range]:
    """Line numbers, from 0, of the functions and of PARAMS."""
    body = parse(source).body
    return {name: range(n.lineno - 1, n.end_lineno or n.lineno) for n in body if (name := _name_of(n))}


@dataclass(frozen=True, slots=True)
class Miss:
    """A SEARCH that does not stand in the policy exactly once: where it was probably meant."""

    unit: str
    """The function, or PARAMS; nothing when no line is near."""
    nearest: str


def find_miss(source: str, edits: Iterable[Edit]) -> Miss:
    """The first edit that misses."""
    for edit in edits:
        if source.count(edit.search) != 1 or not edit.search:
            return _locate(source, edit.search)
        source = source.replace(edit.search, edit.replace, 1)
    return Miss("", "")


def _locate(source: str, search: str) -> Miss:
    wanted = [line.strip() for line in search.splitlines() if line.strip()]
    lines = source.splitlines()
    if not wanted:
        return Miss("", "")
    matcher = difflib.SequenceMatcher(b="\n".join(wanted), autojunk=False)
    best, at = 0.0, 0
    for start in range(len(lines)):
        matcher.set_seq1("\n".join(line.strip() for line in lines[start : start + len(wanted)]))
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
            best, at = matcher.ratio(), start
    if best < NEAR_RATIO:
        return Miss("", "")
    try:
        spans = _spans(source)
    except PolicyRejected:  # an earlier edit of the same answer broke the syntax
        spans = {}
    here = range(at, at + len(wanted))
    unit = max(spans, key=lambda name: len(set(spans[name]) & set(here)), default="")
    unit = unit if unit and set(spans[unit]) & set(here) else ""
    first, last = max(0, at - NEAR_CONTEXT_LINES), at + len(wanted) + NEAR_CONTEXT_LINES
    return Miss(unit, "\n".join(lines[first:last]))


def check_patch(given: ProposalInput, answer: Answer, patch: Patch) -> str:
    """The new source that an answer makes. Raises PolicyRejected, as `check_candidate` does."""
    out = apply_edits(given.source, patch.edits)
    check_candidate(given, out, answer.family)
    return out


def check_candidate(given: ProposalInput, source: str, family: Family) -> None:
    """What every new policy must be, whoever wrote it. Nothing is run.

    Raises PolicyRejected for an edit that is not allowed, not of a family asked for or not of the one that it claims,
    not one improvement, or nothing new: layout, local names and what nothing reads make no difference.
    """
    families = demanded_families(given)
    if family not in families:
        raise PolicyRejected("family", f"family {family} is not asked for", f"take {' or '.join(families)}")
    check_edited(given.source, source)
    found = fingerprint(source)
    if found == fingerprint(given.source):
        raise PolicyRejected("no-op", "only names, or what nothing uses, were changed", "change what a stage does")
    for tried in given.tried:
        if found == _fingerprint_of_any(tried.source):
            raise PolicyRejected("duplicate", f"it does what version {tried.number} did", "propose something else")
    _check_one_improvement(given.source, source, family, given.focus)


def _check_one_improvement(before: str, after: str, family: Family, focus: Focus) -> None:
    rewritten, params = changed(before, after)
    touched = rewritten | {name for name, part in stage_parts(after).items() if params & part.texts}
    if not touched & set(FAMILY_STAGES[family]):
        where = ", ".join(FAMILY_STAGES[family])
        raise PolicyRejected(
            "family", f"FAMILY is {family}, but the edits touch {', '.join(sorted(touched)) or 'no stage'}", f"{where}"
        )
    times = 2 if focus is Focus.COMBINED else 1
    if len(rewritten) > MAX_STAGES_CHANGED * times or len(params) > MAX_PARAMS_CHANGED * times:
        raise PolicyRejected(
            "one-improvement",
            f"{len(rewritten)} stage functions and {len(params)} PARAMS change",
            f"at most {MAX_STAGES_CHANGED * times} and {MAX_PARAMS_CHANGED * times}: propose one improvement",
        )


@dataclass(frozen=True, slots=True)
class StagePart:
    """A stage function with the helpers that it reaches: its code, and the texts in it (names of PARAMS among them)."""

    code: str
    texts: frozenset[str]


def stage_parts(source: str) -> dict[str, StagePart]:
    """The parts by stage; stages that are missing are left out."""
    functions = {n.name: n for n in parse(normalised(source)).body if isinstance(n, ast.FunctionDef)}
    out = {}
    for stage in (name for name in STAGES if name in functions):
        reached = _reached(stage, functions)
        nodes = [node for name in reached for node in ast.walk(functions[name])]
        texts = (n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))
        out[stage] = StagePart("\n".join(ast.unparse(functions[name]) for name in reached), frozenset(texts))
    return out


def _reached(name: str, functions: Mapping[str, ast.FunctionDef]) -> list[str]:
    seen, waiting = [name], [name]
    while waiting:
        names = [n.id for n in ast.walk(functions[waiting.pop()]) if isinstance(n, ast.Name) and n.id in functions]
        fresh = [n for n in dict.fromkeys(names) if n not in seen]
        seen += fresh
        waiting += fresh
    return seen


def changed(before: str, after: str) -> tuple[set[str], set[str]]:
    """Stages whose code differs, and PARAMS whose value differs."""
    old, new = stage_parts(before), stage_parts(after)
    left, right = params_of(before), params_of(after)
    absent = object()
    params = {k for k in {*left, *right} if left.get(k, absent) != right.get(k, absent)}
    return {name for name in new if name not in old or new[name].code != old[name].code}, params


def fingerprint(source: str) -> str:
    """The policy without layout, local names, helpers that no stage reaches and PARAMS that nothing reads."""
    tree = parse(normalised(source))
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    reached = {name for stage in STAGES if stage in functions for name in _reached(stage, functions)}
    texts = set().union(*(part.texts for part in stage_parts(source).values()))
    params = {k: v for k, v in params_of(source).items() if k in texts or _reads_all_params(tree)}
    bodies = [ast.unparse(_Renamed(functions[name]).visit(functions[name])) for name in sorted(reached)]
    return "\n".join([repr(sorted(params.items())), *bodies])


def _fingerprint_of_any(source: str) -> str:
    """Nothing for a policy that does not parse: a person's or a recorded one may have been tried all the same."""
    try:
        return fingerprint(source)
    except PolicyRejected:
        return ""


def _reads_all_params(tree: ast.Module) -> bool:
    """Whether PARAMS, or `ctx.params`, is used otherwise than by a text key."""
    by_key = [n.value for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)]
    used = [
        n
        for n in ast.walk(tree)
        if (isinstance(n, ast.Name) and n.id == PARAMS and isinstance(n.ctx, ast.Load))
        or (isinstance(n, ast.Attribute) and n.attr == "params")
    ]
    return any(not any(n is k for k in by_key) for n in used)


class _Renamed(ast.NodeTransformer):
    """Local names by order of appearance."""

    def __init__(self, function: ast.FunctionDef) -> None:
        bound = [n.arg for n in ast.walk(function) if isinstance(n, ast.arg)]
        bound += [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self._names = {name: f"_v{number}" for number, name in enumerate(dict.fromkeys(bound))}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self._names[node.arg], None)
