"""A stand-in for nodes, for clusters that have none: it sees Jobs, writes the artifact that each stage would, and
ends their pods. What becomes of a stage is scripted; artifacts are real, in the real store.

    python -m tests.cluster.fakekubelet --kubeconfig K --endpoint URL [--script S.json] [--delay SECONDS]

Script: {"p": {version: success rate}, "turns": {version: n}, "ends": {"stage/version/attempt": end}}, where an end is an
exit code, "Rejected", "Exhausted", "no manifest", or "never". Every stage that it does is a line of JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

from curateevo.api.base import canonical_json
from curateevo.api.errors import CurateEvoError
from curateevo.api.evolution import Stage
from curateevo.api.stage import (
    CurateSummary,
    EvaluateSummary,
    IngestSummary,
    Outcome,
    ProposeSummary,
    SplitScore,
    StageRequest,
    Summary,
    TrainSummary,
    Usage,
)
from curateevo.policy.builtin import source_of
from curateevo.policy.source import policy_digest
from curateevo.store.artifacts import publish
from curateevo.store.connect import connect
from curateevo.store.protocol import Store
from tests.core.evolution.loopworld import FILES, TASKS, Script, score_table

SELECTOR = "app.kubernetes.io/managed-by=curateevo-operator"
REQUEST, ROLE = "curateevo.io/request", "curateevo.io/role"


def contents(request: StageRequest, script: Script) -> dict[str, bytes]:
    """The files of a stage's artifact; they depend on stage and version alone."""
    number = request.version or 0
    files = {path: f"{request.stage} {number} {path}".encode() for path in FILES[request.stage]}
    if request.stage is Stage.EVALUATE:
        table = score_table(script.p.get(number, 0.3), number)
        files["sel/scores.json"] = canonical_json(table.model_dump(mode="json", by_alias=True)).encode()
    if request.stage is Stage.PROPOSE:
        files["policy.py"] = proposed(number).encode()
    return files


def proposed(number: int) -> str:
    """A policy of its own for each version."""
    return source_of("keep-all") + f"\nNUMBER = {number}\n"


def summary_of(request: StageRequest, script: Script) -> Summary:
    number = request.version or 0
    rows = score_table(script.p.get(number, 0.3), number).scores["seed-0"]
    mean = sum(r[0] for r in rows if r[0] is not None) / len(TASKS)
    score = SplitScore(p=mean, tasks=len(TASKS), errors=0, tokens=10)
    turns = script.turns.get(number, 100)
    match request.stage:
        case Stage.INGEST:
            return IngestSummary(trajectories=10, turns=1000, successes=5, set_aside=0, leaked=0)
        case Stage.CURATE:
            return CurateSummary(sft_rows=turns, sft_turns=turns)
        case Stage.TRAIN:
            return TrainSummary()
        case Stage.PROPOSE:
            return ProposeSummary(policy_digest=policy_digest(proposed(number)), method=f"method-{number}")
        case _:
            return EvaluateSummary(scores={"seed-0": {"diag": score, "sel": score, "test": score}})


def do_stage(store: Store, request: StageRequest, outcome: Outcome, script: Script) -> None:
    """Write the artifact, its manifest last."""
    with tempfile.TemporaryDirectory() as name:
        for path, data in contents(request, script).items():
            target = Path(name, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        refused = "refused" if outcome is Outcome.REJECTED else ""
        publish(
            store,
            request,
            Path(name),
            summary=summary_of(request, script),
            outcome=outcome,
            reason="sft-not-empty" if refused else "",
            message=refused,
            usage=Usage(seconds=1.0, gpu_seconds=10.0),
        )


class FakeKubelet:
    def __init__(self, endpoint: str, script: Script, delay: float, threads: int, namespace: str) -> None:
        self.namespace = namespace
        self.endpoint, self.script, self.delay = endpoint, script, delay
        self.batch, self.core = client.BatchV1Api(), client.CoreV1Api()
        self.stores: dict[str, Store] = {}
        self.taken: set[str] = set()
        self.pool = ThreadPoolExecutor(threads)

    def run(self) -> None:
        while True:
            try:
                everywhere, here = self.batch.list_job_for_all_namespaces, self.batch.list_namespaced_job
                stream = watch.Watch().stream(
                    *((here, self.namespace) if self.namespace else (everywhere,)),
                    label_selector=SELECTOR,
                    timeout_seconds=60,
                    _preload_content=False,
                )
                for event in stream:
                    self.see(event["raw_object"])
            except (client.ApiException, OSError, ValueError, HTTPError) as error:
                print(json.dumps({"watch": str(error)[:200]}), flush=True)
                time.sleep(0.5)

    def see(self, job: dict[str, Any]) -> None:
        meta = job["metadata"]
        done = any(c["status"] == "True" for c in (job.get("status") or {}).get("conditions") or ())
        if meta["uid"] in self.taken or meta.get("deletionTimestamp") or done or job["spec"].get("suspend"):
            return
        if meta["labels"].get(ROLE) != "main":
            return
        self.taken.add(meta["uid"])
        self.pool.submit(self.finish, job, time.monotonic())

    def finish(self, job: dict[str, Any], seen_at: float) -> None:
        meta = job["metadata"]
        annotations = job["spec"]["template"]["metadata"]["annotations"]
        request = StageRequest.model_validate_json(annotations[REQUEST])
        end = self.script.ends.get((request.stage, request.version, request.attempt), Outcome.OK)
        if end == "never":
            return
        time.sleep(max(0.0, self.delay - (time.monotonic() - seen_at)))
        code = end if isinstance(end, int) else 0
        if isinstance(end, Outcome):
            try:
                do_stage(self.store(request), request, end, self.script)
            except CurateEvoError as error:  # as a stage program would end
                code = int(error.exit_code)
        print(
            json.dumps({"job": meta["name"], "uid": meta["uid"], "namespace": meta["namespace"], "code": code}),
            flush=True,
        )
        self.complete(meta["namespace"], meta["name"], code)

    def store(self, request: StageRequest) -> Store:
        if request.store.uri not in self.stores:
            self.stores[request.store.uri] = connect(request.store.model_copy(update={"endpoint": self.endpoint}))
        return self.stores[request.store.uri]

    def complete(self, namespace: str, name: str, code: int) -> None:
        """End the Job's pod; the Job controller does the rest."""
        for _ in range(300):
            try:
                pods = self.core.list_namespaced_pod(namespace, label_selector=f"batch.kubernetes.io/job-name={name}")
                if pods.items:
                    self.end_pod(pods.items[0], code)
                    return
                self.batch.read_namespaced_job(name, namespace)
            except client.ApiException as error:
                if error.status == 404:
                    return
            time.sleep(0.1)
        print(json.dumps({"no pod for": name}), flush=True)

    def end_pod(self, pod: client.V1Pod, code: int) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "startedAt": now, "finishedAt": now}
        main = {
            "name": "main",
            "ready": False,
            "restartCount": 0,
            "image": "fake",
            "imageID": "",
            "state": {"terminated": ended},
        }
        phase = "Succeeded" if code == 0 else "Failed"
        body = {"status": {"phase": phase, "startTime": now, "containerStatuses": [main]}}
        self.core.patch_namespaced_pod_status(pod.metadata.name, pod.metadata.namespace, body)


def read_script(path: Path | None) -> Script:
    if path is None:
        return Script()
    raw = json.loads(path.read_text())
    script = Script()
    ends: dict[tuple[Stage, int | None, int], int | Outcome | str] = {}
    for key, end in raw.get("ends", {}).items():
        stage, version, attempt = key.split("/")
        value = Outcome(end) if end in [o.value for o in Outcome] else end
        ends[Stage(stage), None if version == "-" else int(version), int(attempt)] = value
    return Script(
        ends=ends,
        p={int(k): v for k, v in raw["p"].items()} if "p" in raw else script.p,
        turns={int(k): v for k, v in raw["turns"].items()} if "turns" in raw else script.turns,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--namespace", default="", help="only here; otherwise everywhere")
    options = parser.parse_args()
    config.load_kube_config(options.kubeconfig)
    script = read_script(options.script)
    FakeKubelet(options.endpoint, script, options.delay, options.threads, options.namespace).run()


if __name__ == "__main__":
    main()
