"""The gate's rules: docs/policies.md lists those that the code has, and each refusal names rule, line and remedy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from curateevo.api.errors import PolicyRejected
from curateevo.policy.builtin import source_of
from curateevo.policy.gate import check_contract, check_rare_tools, check_size, coverage
from curateevo.policy.materialise import Material
from curateevo.policy.operators.items import Item, RlTask
from curateevo.policy.recipe import Recipe
from curateevo.policy.sandbox import REMEDIES
from curateevo.policy.source import STAGES, line_of_use, stage_lines

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "policies.md"
CODE = (*(ROOT / "core/curateevo/policy").glob("*.py"), ROOT / "jobs/curateevo_jobs/training/fit.py")
ROW = re.compile(r"^\| ([a-z-]+(?:, [a-z-]+)*) \| ", re.MULTILINE)
LINES = {stage: number for number, stage in enumerate(STAGES, start=10)}


def calls(name: str) -> Iterator[ast.Call]:
    """Calls of a function in the gate's code."""
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield node


def rules_of_the_code() -> set[str]:
    named = {
        c.args[0].value for f in ("PolicyRejected", "rejected") for c in calls(f) if isinstance(c.args[0], ast.Constant)
    }
    fit = ast.parse((ROOT / "jobs/curateevo_jobs/training/fit.py").read_text(encoding="utf-8"))
    constants = {n.value.value for n in fit.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)
                 and getattr(n.targets[0], "id", "") == "RULE"}  # fmt: skip
    return {str(rule) for rule in named | constants | set(REMEDIES)}


def test_the_page_lists_the_rules_that_the_code_has() -> None:
    contract = PAGE.read_text(encoding="utf-8").partition("\n## The contract\n")[2].partition("\n## ")[0]
    listed = [rule for row in ROW.findall(contract) for rule in row.split(", ") if row != "rule"]
    assert sorted(listed) == sorted(rules_of_the_code())


def test_every_refusal_has_a_remedy() -> None:
    for call in calls("PolicyRejected"):
        assert len(call.args) >= 3, ast.unparse(call)
        assert not (isinstance(call.args[2], ast.Constant) and not call.args[2].value), ast.unparse(call)
    for call in calls("rejected"):
        rule = call.args[0]
        assert not isinstance(rule, ast.Constant) or rule.value in REMEDIES


def frame(*tools: list[str]) -> pl.DataFrame:
    """A corpus whose trajectories call these tools, one a turn."""
    return pl.DataFrame(
        {
            "tools": [sorted(set(t)) for t in tools],
            "turn_tools": [t or [""] for t in tools],
            "turns": [len(t) or 1 for t in tools],
        }
    )


CORPUS = frame(*[["find"]] * 98, ["find", "cancel"], ["refund", "refund"])


def recipe(*sft: Item, rl: tuple[RlTask, ...] = ()) -> Recipe:
    return Recipe(sft, rl, (), (), {})


def test_tools_are_covered_by_kept_turns_and_by_rl_tasks() -> None:
    assert coverage(recipe(Item(98, (0,))), CORPUS) == {"find"}
    assert coverage(recipe(Item(98, (0, 1))), CORPUS) == {"find", "cancel"}
    assert coverage(recipe(rl=(RlTask(99),)), CORPUS) == {"refund"}


def test_a_rare_tool_of_the_champions_data_may_not_go_without_a_reason() -> None:
    covered = ["cancel", "find", "refund"]
    check_rare_tools(CORPUS, {"cancel", "refund"}, covered, {})  # find is not rare
    check_rare_tools(CORPUS, {"find"}, (), {})
    with pytest.raises(PolicyRejected, match="^rare-tools: the champion's data calls cancel, refund") as caught:
        check_rare_tools(CORPUS, {"find"}, covered, {})
    assert "PARAMS['dropped_tools'] = {'cancel': 'the reason'}" in caught.value.hint
    stated: dict[str, Any] = {"dropped_tools": {"cancel": "nobody cancels", "refund": " "}}
    with pytest.raises(PolicyRejected, match="calls refund"):
        check_rare_tools(CORPUS, {"find"}, covered, stated)
    stated["dropped_tools"]["refund"] = "its results are wrong"
    check_rare_tools(CORPUS, {"find"}, covered, stated)
    with pytest.raises(PolicyRejected, match="calls cancel"):
        check_rare_tools(CORPUS, {"find"}, covered, {"dropped_tools": ["cancel"]})


def sft_row(*roles: str) -> dict[str, Any]:
    return {"id": "sft-000000", "messages": [{"role": role, "content": "one two"} for role in roles]}


REFUSED = {
    "row-has-user": (Material([sft_row("system", "assistant")], [], [], [], 1, 0), "refine"),
    "no-dev-content": (Material([sft_row("user", "assistant")], [], [], [], 1, 0), "build_sft"),
    "rl-resolvable": (
        Material(
            [], [{"id": "r", "task_id": "t", "reward": "environment", "suite": None, "state": None}], [], [], 0, 1
        ),
        "build_rl",
    ),
    "memory-size": (Material([], [], [{"title": "", "content": "", "evidence": [["t", 0]]}], [], 0, 0), "build_memory"),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_a_refusal_points_at_the_stage_that_makes_the_resource(rule: str) -> None:
    material, stage = REFUSED[rule]
    with pytest.raises(PolicyRejected, match=f"^{rule}") as caught:
        check_contract(material, LINES, dev_prompts={"d": "one two"})
    assert caught.value.line == LINES[stage] and caught.value.hint


@pytest.mark.parametrize(
    ("made", "rule", "stage"),
    [
        (recipe(), "sft-not-empty", "build_sft"),
        (recipe(Item(0, (0,), copies=1000)), "turn-budget", "augment"),
    ],
)
def test_what_is_too_little_or_too_much_points_at_its_stage(made: Recipe, rule: str, stage: str) -> None:
    with pytest.raises(PolicyRejected, match=f"^{rule}") as caught:
        check_size(made, CORPUS["turns"].to_list(), LINES)
    assert caught.value.line == LINES[stage]


def test_lines_are_those_of_the_source() -> None:
    source = source_of("keep-all")
    found = stage_lines(source)
    assert list(found) == list(STAGES)
    assert all(source.splitlines()[line - 1].startswith(f"def {name}(") for name, line in found.items())
    assert source.splitlines()[(line_of_use(source, "rl_tasks") or 0) - 1].strip().startswith("return api.rl_tasks(")
    assert line_of_use(source, "request_rewrite") is None
