"""A real API server takes the CRDs' samples as tests/core/api says, by whatever way they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from curateevo.api.crd import GROUP, VERSION
from tests.cluster.harness import Cluster
from tests.core.api.test_crds import FIXED_CHANGES, INVALID, VALID, admitted, evolution, read

pytestmark = pytest.mark.cluster
KIND, PLURAL = "CurationEvolution", "curationevolutions"


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(below) for key, below in value.items() if below is not None}
    return [without_nulls(below) for below in value] if isinstance(value, list) else value


def items(said: str) -> Iterator[dict[str, Any]]:
    """kubectl prints a list, or one object after the other."""
    while said := said.strip():
        found, end = json.JSONDecoder().raw_decode(said)
        yield from found.get("items", [found])
        said = said[end:]


@pytest.fixture(scope="module")
def objects(control_plane: Cluster) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(config.new_client_from_config(str(control_plane.kubeconfig)))


def causes(error: client.ApiException) -> list[tuple[str, str]]:
    """Field and message of each reason for which the API server refused something."""
    said = json.loads(error.body)
    return [(c.get("field", ""), c["message"]) for c in said.get("details", {}).get("causes", ())] + [
        ("", said["message"])
    ]


# A client-side apply drops nulls before it sends; a server-side one refuses them.
@pytest.mark.parametrize(
    ("how", "sent", "arrives"),
    [
        (["create"], read, read),
        (["apply"], read, lambda path: without_nulls(read(path))),
        (["apply", "--server-side"], lambda path: without_nulls(read(path)), lambda path: without_nulls(read(path))),
    ],
    ids=["create", "client-side", "server-side"],
)
def test_valid_samples_are_stored_as_the_model_of_the_server_says(
    control_plane: Cluster, how: list[str], sent: Callable[[Path], Any], arrives: Callable[[Path], Any]
) -> None:
    everything = {"apiVersion": "v1", "kind": "List", "items": [sent(path) for path in VALID]}
    said = control_plane.kubectl(*how, "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(everything))
    for path, stored in zip(VALID, items(said), strict=True):
        assert stored["spec"] == admitted(KIND, arrives(path))["spec"], path.name


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid_samples_are_refused_at_the_same_field(
    control_plane: Cluster, objects: client.CustomObjectsApi, path: Path
) -> None:
    wanted = path.read_text().splitlines()[0].removeprefix("# path: ").partition(";")[0]
    with control_plane.inside(), pytest.raises(client.ApiException) as caught:
        objects.create_namespaced_custom_object(
            GROUP, VERSION, "default", PLURAL, read(path), dry_run="All", field_validation="Strict"
        )
    unknown = f'unknown field "{wanted}'
    assert any(field == wanted or unknown in message for field, message in causes(caught.value)), caught.value.body


def test_fixed_fields_refuse_a_change_with_a_sentence(
    control_plane: Cluster, objects: client.CustomObjectsApi, namespace: Callable[[], str]
) -> None:
    name, old = namespace(), evolution()
    where = (GROUP, VERSION, name, PLURAL)
    with control_plane.inside():
        objects.create_namespaced_custom_object(*where, old)
        for path, (change, value) in FIXED_CHANGES.items():
            patch = {"spec": evolution(**{change: value})["spec"]}
            with pytest.raises(client.ApiException) as caught:
                objects.patch_namespaced_custom_object(*where, old["metadata"]["name"], patch, dry_run="All")
            said = causes(caught.value)
            assert any(f"{path} can't change: make another CurationEvolution" in message for _, message in said), said
