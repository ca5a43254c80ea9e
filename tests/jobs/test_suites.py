"""Suites by name: a plug-in is a distribution with an entry point, and nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo.api.spec import SuiteRef
from curateevo_jobs.benchmarks import registry

SOURCE = """
import json
from curateevo_jobs.benchmarks.base import Score, Task

TOOL = {"type": "function", "function": {"name": "say", "parameters": {"type": "object", "properties": {}}}}


class Parrot:
    def __init__(self, word):
        self.word, self.said = word, []

    def call(self, name, arguments):
        self.said.append(arguments.get("word"))
        return "ok"

    def score(self, final_text):
        right = self.word in self.said
        return Score(float(right), float(right), {})


class ParrotSuite:
    name = "parrot-1"

    def tasks(self, params):
        words = params.get("words", ["a"])
        return [
            Task(f"parrot/{w}", "parrot", ({"role": "user", "content": f"Say {w}."},), (TOOL,), json.dumps(w))
            for w in words
        ]

    def environment(self, state):
        return Parrot(json.loads(state))
"""


def install(folder: Path, *, distribution: str = "curateevo-parrot", target: str = "parrot_suite:ParrotSuite") -> None:
    """A distribution as an installer leaves it: a module, and its metadata."""
    (folder / "parrot_suite.py").write_text(SOURCE)
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[curateevo.suites]\nparrot-1 = {target}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "parrot_suite", raising=False)
    return tmp_path


def test_a_plug_in_is_found_and_its_name_is_valid_in_a_spec(site: Path) -> None:
    install(site)
    ref = SuiteRef.model_validate({"name": "parrot-1", "params": {"words": ["hi", "ho"]}})
    suite = registry.suite(ref.name)
    hi, ho = suite.tasks(ref.params)
    environment = suite.environment(hi.state)
    environment.call("say", {"word": "hi"})
    assert environment.score("").success == 1.0
    assert suite.environment(ho.state).score("").success == 0.0


def test_an_unknown_name_is_refused_with_all_that_are_known(site: Path) -> None:
    install(site)
    with pytest.raises(SpecInvalid, match=r"known: toolworld, corpus, bfcl, tau2, acebench, parrot-1"):
        registry.suite("nonsense")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("parrot_suite:Gone", "can't be opened: AttributeError"),
        ("no_such_module:Suite", "can't be opened: ModuleNotFoundError"),
        ("parrot_suite:Parrot", "can't be opened: TypeError"),
        ("builtins:dict", "has no name"),
    ],
)
def test_a_plug_in_that_is_broken_is_named_with_its_fault(site: Path, target: str, said: str) -> None:
    install(site, target=target)
    with pytest.raises(ContractBroken, match=said):
        registry.suite("parrot-1")


def test_two_plug_ins_of_one_name_are_refused(site: Path) -> None:
    install(site)
    install(site, distribution="curateevo-other")
    with pytest.raises(ContractBroken, match="curateevo-other, curateevo-parrot"):
        registry.suite("parrot-1")


def test_a_plug_in_cannot_take_the_place_of_a_suite_that_comes_along(site: Path) -> None:
    install(site)
    points = site / "curateevo_parrot-1.0.dist-info" / "entry_points.txt"
    points.write_text("[curateevo.suites]\ntoolworld = parrot_suite:ParrotSuite\n")
    assert type(registry.suite("toolworld")).__name__ == "ToolworldSuite"


def test_the_packages_own_code_is_never_imported_by_a_program_that_uses_bfcl() -> None:
    check = (
        "import sys; from curateevo_jobs.benchmarks import registry; s = registry.suite('bfcl');"
        "t = s.tasks({'categories': ['simple_javascript'], 'perCategory': 1})[0]; s.environment(t.state).score('');"
        "sys.exit(any(m.partition('.')[0] == 'bfcl_eval' for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
