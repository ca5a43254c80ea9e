"""Kubernetes quantities, which a sandbox's limits are written in."""

from __future__ import annotations

import re

from curateevo.api.errors import SpecInvalid

UNITS = {
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def quantity(text: str) -> float:
    """A Kubernetes quantity as a number. Raises SpecInvalid."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", text)
    if found is None or (found[2] and found[2] not in UNITS):
        raise SpecInvalid(f"{text!r} is not a quantity", "e.g. 8Gi or 500m")
    return float(found[1]) * UNITS.get(found[2], 1)
