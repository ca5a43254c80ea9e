"""Golden files as text."""

from __future__ import annotations

from pathlib import Path

import yaml

from curateevo.api.base import JsonObject

FOLDER = Path(__file__).parent


class _Plain(yaml.SafeDumper):
    """Without anchors: an object is easier to read when it is written out."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def to_yaml(manifests: tuple[JsonObject, ...]) -> str:
    return yaml.dump_all(manifests, Dumper=_Plain, sort_keys=False, width=1000, explicit_start=True)
