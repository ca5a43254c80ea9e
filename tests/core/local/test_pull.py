"""A cluster's run, taken over from what kubectl printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.errors import SpecInvalid
from curateevo.api.evolution import EvolutionStatus, VersionStatus
from curateevo.local.objects import RunFolder
from curateevo.local.pull import pull
from tests.core.evolution.loopworld import spec

META = {"namespace": "agents", "generation": 3, "resourceVersion": "7", "managedFields": [], "finalizers": ["x/y"]}


def evolution(name: str = "evo", uid: str = "u1") -> dict[str, Any]:
    status = EvolutionStatus(started_at=1.5e9, decided=0).to_wire()
    head = {"apiVersion": "curateevo.io/v1alpha1", "kind": "CurationEvolution"}
    return head | {"metadata": META | {"name": name, "uid": uid}, "spec": spec().to_wire(), "status": status}


def version(number: int, uid: str = "u1") -> dict[str, Any]:
    pinned = {
        "evolutionUID": uid, "number": number, "policyDigest": "sha256:0", "policyKey": "k", "corpusKey": "c",
        "corpusDigest": "sha256:1", "evolutionSpec": spec().to_wire(),
    }  # fmt: skip
    head = {"apiVersion": "curateevo.io/v1alpha1", "kind": "PolicyVersion"}
    meta = META | {"name": f"evo-v{number}", "uid": f"v{number}"}
    return head | {"metadata": meta, "spec": pinned, "status": VersionStatus().to_wire()}


def printed(*objects: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def test_an_evolution_and_its_own_versions_become_a_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    given = printed(evolution(), evolution("other", "u2"), version(0), version(1), version(7, "u2"))
    pull(given, "evo", "http://127.0.0.1:9000", folder)
    assert sorted(folder.versions()) == [0, 1]
    found = folder.evolution()
    assert (found.metadata.uid, found.status.started_at, found.status.decided) == ("u1", 1.5e9, 0)
    assert found.spec.storage.endpoint == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", "not JSON"),
        ("[]", "no Kubernetes object"),
        (printed(), "found 0"),
        (printed(evolution(), evolution("b", "u2")), "found 2 .evo, b"),
    ],
)
def test_anything_else_is_refused_with_the_command_that_prints_it(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SpecInvalid, match=says) as caught:
        pull(text, None, None, RunFolder(tmp_path))
    assert "kubectl get" in caught.value.hint
