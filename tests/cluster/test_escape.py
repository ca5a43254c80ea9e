"""The escape corpus in restricted pods, in the sandbox's image."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.harness import Cluster
from tests.escape import pods, table, tiers
from tests.escape.verdict import check


@pytest.mark.node
@pytest.mark.parametrize("tier", tiers.IN_PODS)
def test_nothing_gets_through_in_a_pod(tier: str, node: Cluster, node_namespace: Callable[[], str]) -> None:
    found = pods.run(node, node_namespace(), tier)
    check(found, tier)
    written = {key: cells[tier] for key, cells in table.read(table.ATTACK_TABLE).items()}
    assert table.column(found) == written
