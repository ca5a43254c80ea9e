"""The attacks in a pod that Pod Security's `restricted` accepts, in the sandbox's image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import harness
from tests.cluster.harness import Cluster
from tests.escape import tiers

IMAGE = "localhost/curateevo-sandbox:test"
SECONDS = 900.0
HERE = Path(__file__).parent


@contextmanager
def cluster() -> Iterator[Cluster]:
    with harness.folder("node") as folder:
        yield harness.start(folder, node=True)


def run(cluster: Cluster, namespace: str, tier: str) -> dict[str, Any]:
    """What the runner says in a pod, under the conditions of the policy's container."""
    name = f"escape-{'plain' if tier == tiers.POD_PLAIN else 'whole'}"
    files = {"init": HERE / "__init__.py"} | {f: HERE / f for f in tiers.FILES if f != "__init__.py"}
    items = [{"key": key, "path": f"tests/escape/{path.name}"} for key, path in files.items()]
    items.append({"key": "init", "path": "tests/__init__.py"})
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{
            "name": "main", "image": IMAGE, "imagePullPolicy": "Never",
            "command": ["python", "-m", "tests.escape.runner", *tiers.arguments(tier), *tiers.whole(tier)],
            "env": [{"name": "PYTHONPATH", "value": "/escape"}, {"name": "HOME", "value": "/tmp"}],
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "escape", "mountPath": "/escape"}],
            "securityContext": {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            },
        }],
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "escape", "configMap": {"name": name, "items": items}}],
    }  # fmt: skip
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {k: p.read_text() for k, p in files.items()},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec},
        namespace=namespace,
    )

    def ended() -> str | None:
        phase = str(cluster.get("pod", name, namespace)["status"].get("phase"))
        return phase if phase in ("Succeeded", "Failed") else None

    end = cluster.wait(ended, seconds=SECONDS)
    said = cluster.kubectl("logs", name, "-n", namespace)
    if end != "Succeeded":
        raise AssertionError(said[-4000:])
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    return told
