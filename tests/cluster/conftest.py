"""Real clusters, each made once for this folder. One that can't be made fails its tests; nothing is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cluster import harness
from tests.cluster.harness import Cluster


@pytest.fixture(scope="package")
def control_plane() -> Iterator[Cluster]:
    """API server, controllers, scheduler and S3, with the CRDs. There is no node: pods stay Pending."""
    with harness.folder("control-plane") as folder:
        yield harness.start(folder, node=False)


@pytest.fixture(scope="package")
def node() -> Iterator[Cluster]:
    """A cluster with a node that runs pods, with the CRDs and localhost/curateevo-{operator,jobs,sandbox}:test."""
    with harness.folder("node") as folder:
        yield harness.start(folder, node=True)


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[Callable[[], str]]:
    """Makes restricted namespaces on the control plane."""
    with _namespaces(control_plane) as make:
        yield make


@pytest.fixture
def node_namespace(node: Cluster) -> Iterator[Callable[[], str]]:
    """Makes restricted namespaces on the cluster with a node."""
    with _namespaces(node) as make:
        yield make


@contextmanager
def _namespaces(cluster: Cluster) -> Iterator[Callable[[], str]]:
    made: list[str] = []

    def make() -> str:
        made.append(cluster.new_namespace())
        return made[-1]

    try:
        yield make
    finally:
        for name in made:
            cluster.delete_namespace(name)
