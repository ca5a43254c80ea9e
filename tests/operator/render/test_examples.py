"""The examples for clusters: every stage of theirs renders, and to pods that a restricted namespace admits."""

from __future__ import annotations

from pathlib import Path

import pytest

from curateevo.api.evolution import Stage
from curateevo.api.parse import parse_evolution
from tests.operator.render.cases import pods, render
from tests.operator.render.restricted import violations

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("name", ["cluster", "qwen3-4b-bfcl", "qwen3-4b-tau2", "qwen3-4b-acebench"])
@pytest.mark.parametrize("stage", [s for s in Stage if s is not Stage.FLOORS])
def test_every_stage_of_an_example_renders(name: str, stage: Stage) -> None:
    path = EXAMPLES / f"{name}.yaml"
    found = pods(render(stage, parse_evolution(path.read_text(), str(path)).spec))
    assert found
    assert not [v for pod in found for v in violations(pod)]


@pytest.mark.parametrize("name", ["qwen3-4b-bfcl", "qwen3-4b-tau2", "qwen3-4b-acebench"])
@pytest.mark.parametrize("stage", [Stage.TRAIN, Stage.EVALUATE])
def test_a_large_model_is_trained_and_served_on_gpus(name: str, stage: Stage) -> None:
    path = EXAMPLES / f"{name}.yaml"
    made = pods(render(stage, parse_evolution(path.read_text(), str(path)).spec))
    limits = [c["resources"]["limits"] for pod in made for c in pod["spec"]["containers"] if c["name"] == "main"]
    assert any(limit.get("nvidia.com/gpu") == "1" for limit in limits)
