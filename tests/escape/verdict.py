"""What a run of the corpus has to look like."""

from __future__ import annotations

import re
from typing import Any

from tests.escape import tiers
from tests.escape.attacks import ATTACKS

ATTACK = {a.key: a for a in ATTACKS}


def check(found: dict[str, Any], tier: str) -> None:
    """Nothing got through, every attack ended as it should, honest policies passed, the tier is the one meant."""
    through = {key: (o["end"], o["rule"], o["through"], o["said"]) for key, o in found["attacks"].items()
               if o["through"] or o["end"] not in ATTACK[key].ends}  # fmt: skip
    assert not through, through
    refused = {name: o["said"] for name, o in found["benign"].items() if o["end"] != "passed"}
    assert not refused, refused
    names = {o["tier"] for o in (*found["attacks"].values(), *found["benign"].values()) if o["tier"]}
    assert len(names) == 1 and re.fullmatch(tiers.TIERS[tier], names.pop())
