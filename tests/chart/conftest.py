"""A control plane for the chart's tests alone: they replace CRDs and add foreign ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import harness
from tests.cluster.harness import Cluster
from tests.cluster.story import Story


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """API server, controllers, scheduler and S3, with the CRDs, and Helm. No node: pods stay Pending."""
    with harness.folder("chart") as folder:
        yield harness.start(folder, node=False)


@pytest.fixture
def story(cluster: Cluster, tmp_path: Path) -> Iterator[Story]:
    """A namespace for evolutions."""
    name = cluster.new_namespace()
    story = Story(cluster, name, tmp_path)
    try:
        yield story
    finally:
        for left in story.names("ce"):  # no operator is left to do it
            story.kubectl("patch", "ce", left, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        cluster.delete_namespace(name)
