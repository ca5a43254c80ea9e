"""An evolution on a control plane without nodes: an operator, a fake kubelet, and what became of it."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.harness import Cluster

WAIT_SECONDS = 120.0
OPERATOR = (sys.executable, "-m", "curateevo_operator", "--jobs-image", "jobs", "--sandbox-image", "sandbox")
OPERATOR += ("--trainer-image", "trainer", "--log-format", "text", "--host", "127.0.0.1")
SPEC = """
corpus: {sources: [{uri: "toolworld://corpus?seed=3", format: toolworld}]}
model: {base: "builtin://toolworld"}
evaluation: {suites: [{name: toolworld}]}
serving: {engine: transformers}
rounds: {max: 2, patience: 4, focus: [Effectiveness, Efficiency]}
retries: {infrastructure: 2, application: 1, backoffSeconds: 1}
"""
PATHS = {
    "ce": "/apis/curateevo.io/v1alpha1/namespaces/{}/curationevolutions",
    "pver": "/apis/curateevo.io/v1alpha1/namespaces/{}/policyversions",
    "jobs": "/apis/batch/v1/namespaces/{}/jobs",
    "netpol": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    **{kind: f"/api/v1/namespaces/{{}}/{kind}" for kind in ("pods", "services", "events", "persistentvolumeclaims")},
}
Object = dict[str, Any]


def until(holds: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Wait for something true and return it. Fails loudly."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(0.2)
    raise AssertionError(f"waited {seconds:g} s in vain for {what}")


@dataclass
class Story:
    """One namespace with its store's keys; `prefix` is where its evolutions keep their artifacts."""

    cluster: Cluster
    namespace: str
    folder: Path
    prefix: str = field(init=False)

    def __post_init__(self) -> None:
        self.prefix = f"stories/{self.namespace}"
        keys = [f"--from-literal={k}={v}" for k, v in self.cluster.s3_keys.items()]
        self.kubectl("create", "secret", "generic", "s3", *keys)

    # ---- objects --------------------------------------------------------------------------------------------------

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 150) -> str:
        return self.cluster.kubectl("-n", self.namespace, *args, input=input, timeout=timeout)

    def manifest(self, name: str = "evo", **changes: Any) -> Object:
        storage = {"uri": f"s3://curateevo/{self.prefix}", "endpoint": self.cluster.s3_endpoint}
        spec = yaml.safe_load(SPEC) | {"storage": storage | {"secretRef": {"name": "s3"}}} | changes
        return {
            "apiVersion": "curateevo.io/v1alpha1",
            "kind": "CurationEvolution",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        }

    def apply(self, name: str = "evo", **changes: Any) -> None:
        self.kubectl("apply", "-f", "-", input=json.dumps(self.manifest(name, **changes)))

    def patch(self, spec: Object, name: str = "evo") -> None:
        self.kubectl("patch", "ce", name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def get(self, name: str = "evo", kind: str = "ce") -> Object:
        """The object, or nothing. Asked often: without kubectl, which takes half a second to start."""
        return self._ask(f"{PATHS[kind].format(self.namespace)}/{name}")

    def items(self, kind: str) -> list[Object]:
        return list(self._ask(PATHS[kind].format(self.namespace)).get("items", ()))

    def _ask(self, path: str) -> Object:
        raw = yaml.safe_load(self.cluster.kubeconfig.read_text())
        trust = ssl.create_default_context(cafile=raw["clusters"][0]["cluster"]["certificate-authority"])
        token = {"Authorization": f"Bearer {raw['users'][0]['user']['token']}"}
        request = urllib.request.Request(self.cluster.server + path, headers=token)
        with self.cluster.inside():
            try:
                with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
                    return dict(json.load(answer))
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return {}
                raise

    def names(self, kind: str) -> list[str]:
        return sorted(i["metadata"]["name"] for i in self.items(kind))

    def status(self, name: str = "evo") -> Object:
        return dict(self.get(name).get("status") or {})

    def condition(self, kind: str, name: str = "evo") -> Object:
        return next((c for c in self.status(name).get("conditions", ()) if c["type"] == kind), {})

    def wait(self, phase: str, name: str = "evo", seconds: float = WAIT_SECONDS) -> Object:
        until(lambda: self.status(name).get("phase") == phase, f"{name} to be {phase}: {self.status(name)}", seconds)
        return self.status(name)

    def outcome(self, name: str = "evo") -> Object:
        """What any run of one script must come to: no times, no uids."""
        status = self.status(name)
        versions = [v for v in self.items("pver") if v["metadata"]["labels"]["curateevo.io/evolution"] == name]
        return {
            "phase": status["phase"],
            "reason": status["reason"],
            "champion": status["champion"],
            "counts": status["counts"],
            "spent": status["spent"],
            "versions": {
                v["spec"]["number"]: {
                    "parent": v["spec"].get("parent"),
                    "policy": v["spec"]["policyDigest"],
                    **{k: v["status"].get(k) for k in ("phase", "verdict", "reason", "message", "measurement")},
                    "attempts": {s: x["attempt"] for s, x in v["status"]["stages"].items()},
                }
                for v in versions
            },
            "attempts": {s: x["attempt"] for s, x in status["stages"].items()},
        }

    # ---- the store ------------------------------------------------------------------------------------------------

    def stored(self, uid: str) -> list[str]:
        """Keys of an evolution in the store's directory."""
        root = self.cluster.s3_folder / "curateevo" / self.prefix / "evolutions" / uid
        return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())

    def read(self, uid: str, key: str) -> Object:
        root = self.cluster.s3_folder / "curateevo" / self.prefix / "evolutions" / uid
        return dict(json.loads((root / key).read_text()))

    def read_lines(self, uid: str, key: str) -> list[Object]:
        root = self.cluster.s3_folder / "curateevo" / self.prefix / "evolutions" / uid
        return [json.loads(line) for line in (root / key).read_text().splitlines()]

    # ---- processes ------------------------------------------------------------------------------------------------

    @contextmanager
    def process(self, *argv: str, log: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process in the cluster's network, ended with the context."""
        variables = {**os.environ, **self.cluster.s3_keys, "KUBECONFIG": str(self.cluster.kubeconfig), **environment}
        with (self.folder / log).open("ab") as out:
            process = self.cluster.popen(list(argv), env=variables, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @contextmanager
    def operator(
        self, *flags: str, port: int = 8080, log: str = "operator.log", everywhere: bool = False, **environment: str
    ) -> Iterator[Any]:
        """An operator of this namespace, or of all."""
        where = () if everywhere else ("--namespace", self.namespace)
        command = (*OPERATOR, *where, "--port", str(port), *flags)
        with self.process(*command, log=log, **environment) as process:
            yield process

    @contextmanager
    def kubelet(self, delay: float = 0.0, **script: Any) -> Iterator[Any]:
        path = self.folder / "script.json"
        path.write_text(json.dumps(script))
        command = (sys.executable, "-m", "tests.cluster.fakekubelet", "--kubeconfig", str(self.cluster.kubeconfig))
        command += ("--endpoint", self.cluster.s3_endpoint, "--delay", str(delay), "--script", str(path))
        command += ("--namespace", self.namespace)
        with self.process(*command, log="kubelet.log") as process:
            yield process

    def finished(self) -> list[Object]:
        """What the fake kubelet has done, a record for each Job."""
        log = self.folder / "kubelet.log"
        lines = [json.loads(x) for x in log.read_text().splitlines() if x.startswith("{")] if log.exists() else []
        return [x for x in lines if "job" in x]

    def http(self, path: str, port: int = 8080, method: str = "GET") -> tuple[int, str]:
        """Ask a server within the cluster's network."""
        with self.cluster.inside():
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
                with urllib.request.urlopen(request, timeout=5) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except OSError as error:
                return 0, str(error)
