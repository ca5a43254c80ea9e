"""The tables in docs/sandbox.md, made from what the runs say: `python -m tests.escape.table [--node] [--tiers ...]`.

Columns of tiers that are not run stay as they are. `--node` starts a cluster (root).
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from tests.escape import pods, tiers
from tests.escape.attacks import ATTACKS, Attack
from tests.escape.runner import static_rule

DOC = tiers.ROOT / "docs" / "sandbox.md"
STATIC, HELD, THROUGH, NOT_RUN = "static rules", "held", "THROUGH", "–"
COLUMNS = (STATIC, *tiers.TIERS)
ATTACK_TABLE, LAYER_TABLE = "attacks", "layers"


def cell(attack: Attack, outcome: dict[str, Any] | None) -> str:
    """How an attack ended; `held` where it may end in several ways."""
    if outcome is None:
        return NOT_RUN
    if outcome["through"] or outcome["end"] not in attack.ends:
        return THROUGH
    return outcome["end"] if len(attack.ends) == 1 else HELD


def static_column() -> dict[str, str]:
    """The rule that refuses an attack's source, or `passes`."""
    return {a.key: static_rule(a.source) or "passes" for a in ATTACKS}


def column(told: dict[str, Any]) -> dict[str, str]:
    return {a.key: cell(a, told["attacks"].get(a.key)) for a in ATTACKS}


def report(told: dict[str, Any]) -> None:
    """Say what is not as it should be."""
    for attack in ATTACKS:
        outcome = told["attacks"].get(attack.key)
        if cell(attack, outcome) == THROUGH:
            print(attack.key, outcome, file=sys.stderr)
    for name, outcome in told["benign"].items():
        if outcome["end"] != "passed":
            print("honest:", name, outcome, file=sys.stderr)


def read(name: str) -> dict[str, dict[str, str]]:
    """A generated table as it is written: row to column to cell."""
    text = DOC.read_text()
    lines = text[slice(*_span(text, name))].strip().splitlines()
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    if not rows:
        return {}
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


def write(name: str, columns: tuple[str, ...], rows: dict[str, dict[str, str]]) -> None:
    head = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines = [f"| {row} | {' | '.join(cells.get(c, NOT_RUN) for c in columns)} |" for row, cells in rows.items()]
    text = DOC.read_text()
    start, end = _span(text, name)
    DOC.write_text(text[:start] + "\n" + "\n".join([*head, *lines]) + "\n" + text[end:])


def _span(text: str, name: str) -> tuple[int, int]:
    """Where the table stands, between its marks."""
    found = re.search(f"<!-- {name}: generated .*?-->(.*)<!-- {name}: end -->", text, re.DOTALL)
    assert found is not None, f"{DOC} has no section {name}"
    return found.span(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiers", nargs="*", default=list(tiers.LOCAL), choices=tiers.LOCAL)
    parser.add_argument("--node", action="store_true", help="pods as well")
    options = parser.parse_args()
    found = {STATIC: static_column()}
    for tier in options.tiers:
        print(f"running: {tier}", file=sys.stderr)
        found[tier] = column(told := tiers.run(tier, *tiers.whole(tier)))
        report(told)
    if options.node:
        with pods.cluster() as cluster:
            for tier in tiers.IN_PODS:
                print(f"running: {tier}", file=sys.stderr)
                found[tier] = column(told := pods.run(cluster, cluster.new_namespace(), tier))
                report(told)
    before = read(ATTACK_TABLE)
    rows = {a.key: {**before.get(a.key, {}), **{name: cells[a.key] for name, cells in found.items()}} for a in ATTACKS}
    write(ATTACK_TABLE, COLUMNS, rows)
    if tiers.NOBODY in options.tiers:
        layers = tiers.layers()
        probes = next(iter(layers.values()))
        write(LAYER_TABLE, tuple(layers), {p: {layer: told[p] for layer, told in layers.items()} for p in probes})
    bad = [(key, name) for key, cells in rows.items() for name, c in cells.items() if c == THROUGH]
    print(f"{len(rows)} attacks, got through: {bad or 'none'}", file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
