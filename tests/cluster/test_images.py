"""The images hold the versions that the tests run with."""

from __future__ import annotations

import re

import pytest

from tests.cluster.harness import ROOT

ELSEWHERE = {"trainer": {"apache-tvm-ffi"}}
"""What vLLM for GPUs pins itself, at another version than vLLM for CPUs."""


def pins(path: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;]+)", (ROOT / path).read_text(), re.MULTILINE))


@pytest.mark.parametrize("image", ["operator", "sandbox", "jobs", "trainer"])
def test_an_image_is_locked_to_what_is_tested(image: str) -> None:
    tested = pins("requirements.txt") | pins("requirements.suites.txt")
    locked = pins(f"images/{image}/requirements.txt")
    differ = {name: (v, tested[name]) for name, v in locked.items() if name in tested and tested[name] != v}
    assert set(differ) <= ELSEWHERE.get(image, set()), f"run `make lock`: {differ}"
    assert image == "trainer" or locked.keys() <= tested.keys()
    assert ({"pydantic"} if image == "operator" else {"polars", "pydantic", "sandlock"}) <= locked.keys()
