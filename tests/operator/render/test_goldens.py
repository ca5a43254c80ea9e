"""What is rendered is what was read and approved."""

from __future__ import annotations

import pytest

from tests.operator.render.cases import GOLDENS, golden
from tests.operator.render.goldens.files import FOLDER, to_yaml


@pytest.mark.parametrize("name", GOLDENS)
def test_rendered_as_approved(name: str) -> None:
    approved = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert to_yaml(golden(name)) == approved, "python -m tests.operator.render.goldens, and look at the difference"


def test_no_file_is_left_over() -> None:
    assert {p.stem for p in FOLDER.glob("*.yaml")} == set(GOLDENS)
