"""What the chart becomes: rendered in process by Helm's own library. `python -m tests.chart.rendered` writes snapshots/ anew.

A snapshot leaves out what a file of the chart holds verbatim: CRDs, alerts, the dashboard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

Object = dict[str, Any]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHART = ROOT / "charts/curateevo"
CASES = {path.stem: path for path in sorted((HERE / "cases").glob("*.yaml"))}
SNAPSHOTS = HERE / "snapshots"
RELEASE, NAMESPACE = "curateevo", "curateevo-system"
NOTES = "curateevo/templates/NOTES.txt"


class KubectlYaml(yaml.CSafeLoader):
    """5e-06 is a number, as for kubectl; PyYAML takes it for text."""


KubectlYaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$"), list("-+.0123456789")
)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def values_of(case: str) -> Object:
    return dict(yaml.safe_load(CASES[case].read_text()))


def render(values: Mapping[str, Any], name: str = RELEASE, namespace: str = NAMESPACE) -> tuple[list[Object], str]:
    """Objects and notes of a release. Raises HelmError for values that are refused."""
    with Chart.load(CHART) as chart:
        files = chart.render(dict(values), name=name, namespace=namespace)
    notes = files.pop(NOTES)
    found = (document for _, text in sorted(files.items()) for document in yaml.load_all(text, KubectlYaml))
    return [document for document in found if document], notes


def case(name: str) -> list[Object]:
    return render(values_of(name))[0]


def snapshot(name: str) -> str:
    objects, notes = render(values_of(name))
    dumped = yaml.dump_all(map(_short, objects), Dumper=_Plain, sort_keys=False, width=120)
    return f"{dumped}---\nNOTES: |\n" + "".join(f"  {line}".rstrip() + "\n" for line in notes.strip().splitlines())


def _short(manifest: Object) -> Object:
    match manifest["kind"]:
        case "CustomResourceDefinition":
            return {**manifest, "spec": "(of files/crds)"}
        case "PrometheusRule":
            return {**manifest, "spec": "(files/alerts.yaml)"}
        case "ConfigMap":
            return {**manifest, "data": dict.fromkeys(manifest["data"], "(files/dashboard.json)")}
        case _:
            return manifest


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [o for o in objects if o["kind"] in kinds]


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Pod templates, with the name of what makes them."""
    for manifest in of_kind(objects, "Deployment", "Job"):
        yield f"{manifest['kind']} {manifest['metadata']['name']}", manifest["spec"]["template"]


if __name__ == "__main__":
    for case_name in CASES:
        (SNAPSHOTS / f"{case_name}.yaml").write_text(snapshot(case_name))
