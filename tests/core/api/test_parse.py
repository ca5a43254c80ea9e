"""What `curateevo validate` says: the field's path, what is wrong, what would do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from curateevo.api.errors import SpecInvalid
from curateevo.api.evolution import CurationEvolution
from curateevo.api.parse import parse_evolution
from curateevo.api.rules import RULES
from curateevo.api.spec import EvolutionSpec

ROOT = Path(__file__).resolve().parents[3]
GOOD = """
apiVersion: curateevo.io/v1alpha1
kind: CurationEvolution
metadata: {name: x}
spec:
  corpus: {sources: [{uri: a.jsonl}]}
  model: {base: "builtin://toolworld"}
  evaluation: {suites: [{name: toolworld}]}
  storage: {uri: "file://./store"}
"""


def broken(**changes: object) -> str:
    """GOOD with `a__b__c=value` set at spec.a.b.c."""
    raw = yaml.safe_load(GOOD)
    for path, value in changes.items():
        node = raw["spec"]
        *parents, last = path.split("__")
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    return yaml.safe_dump(raw)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_every_example_is_valid(path: Path) -> None:
    assert isinstance(parse_evolution(path.read_text(), path.name), CurationEvolution)


@pytest.mark.parametrize(
    ("text", "path", "advice"),
    [
        (
            broken(corpus={"sources": [{"uri": "a", "fromat": "x"}]}),
            "spec.corpus.sources[0].fromat",
            "did you mean format?",
        ),
        (broken(trainig={}), "spec.trainig", "did you mean training?"),
        (broken(evaluation__repeats="many"), "spec.evaluation.repeats", "valid integer"),
        (broken(corpus__sources=[]), "spec.corpus.sources", "at least 1 item"),
        (broken(training__sft__learningRate=-1), "spec.training.sft.learningRate", "greater than 0"),
        (broken(evaluation__splits={"diag": 0.5}), "spec.evaluation.splits", "add up to 1"),
        (
            broken(evaluation__splits={"diag": 0.5, "sel": 0.0, "test": 0.5}),
            "spec.evaluation.splits.sel",
            "above 0",
        ),
        (broken(model__base="Qwen/Qwen3-4B"), "spec.model.base", "must begin with hf://"),
        (broken(model__base="hf://Qwen/Qwen3-4B"), "spec.model.base", "pin its revision"),
        (broken(storage__uri="/tmp/x"), "spec.storage.uri", "must begin with s3://"),
        (broken(proposer__type="llm"), "spec.proposer.llm", "must be set"),
        (broken(proposer__type="replay"), "spec.proposer.replay", "must be set"),
        (broken(proposer__type="magic"), "spec.proposer.type", "'llm'"),
        (broken(policy__initial={"builtin": "starter", "uri": "x"}), "spec.policy.initial", "exactly one"),
        (broken(policy__initial={}), "spec.policy.initial", "exactly one"),
        (
            broken(training={"sft": {"enabled": False}, "grpo": {"enabled": False}}),
            "spec.training",
            "at least one",
        ),
        (broken(objective={"lambda": 0}), "spec.objective.lambda", "above 0"),
        (broken(sandbox__memory="lots"), "spec.sandbox.memory", "match pattern"),
        (broken(rounds__focus=[]), "spec.rounds.focus", "at least 1 item"),
        (GOOD.replace('  storage: {uri: "file://./store"}\n', ""), "spec.storage", "required"),
        (GOOD.replace("name: x", "name: Not_A_Name"), "metadata.name", "match pattern"),
    ],
)
def test_bad_specs_are_named_by_path_with_advice(text: str, path: str, advice: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        parse_evolution(text, "f.yaml")
    lines = str(caught.value).splitlines()
    assert any(line.strip().startswith(f"{path}:") and advice in line for line in lines), lines


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not YAML"),
        ("- a", "expected one object, found a list"),
        ("kind: Pod\napiVersion: v1", "expected apiVersion curateevo.io/v1alpha1"),
        ("", "found nothing"),
    ],
)
def test_what_is_no_evolution_at_all_is_said(text: str, says: str) -> None:
    with pytest.raises(SpecInvalid, match=says):
        parse_evolution(text, "f.yaml")


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SpecInvalid, match="3 problems"):
        parse_evolution(broken(a=1, b=2, evaluation__repeats="x"), "f.yaml")


def test_a_spec_survives_its_wire_form_which_has_no_nulls() -> None:
    spec = parse_evolution(broken(training__sft={"lora": {"enabled": False}}), "f.yaml").spec
    assert not spec.training.sft.lora.enabled
    wire = spec.to_wire()
    assert "null" not in json.dumps(wire) and "goal" not in wire["rounds"]
    assert EvolutionSpec.model_validate(wire) == spec


def test_every_rule_has_a_path_a_message_and_a_cel_expression() -> None:
    for rule in RULES:
        assert rule.path.startswith("spec.") and rule.message and "self." in rule.cel
