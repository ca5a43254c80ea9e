"""The smallest evolution that does everything for real: a few steps of SFT and GRPO, a hostile candidate, a good one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from curateevo.api.evolution import Stage
from curateevo.api.stage import Manifest
from curateevo.evolution.names import attempt_prefix, champion_key, decision_key
from curateevo.local.objects import RunFolder
from curateevo.policy.builtin import source_of
from curateevo.store.artifacts import read_manifest
from curateevo.store.local import LocalStore

STAGES = ((Stage.INGEST, None), (Stage.FLOORS, None), (Stage.SEAL, None))
MAX_ATTEMPTS = 50
YAML = """
apiVersion: curateevo.io/v1alpha1
kind: CurationEvolution
metadata: {name: mini}
spec:
  corpus: {sources: [{uri: "toolworld://corpus?seed=3", format: toolworld}]}
  model: {base: "builtin://toolworld"}
  evaluation:
    suites: [{name: toolworld, params: {perSkill: 6}}]
    splits: {diag: 0.4, sel: 0.6, test: 0.0}
    repeats: 1
    sampling: {temperature: 0.0, maxTurns: 3, maxTokens: 40}
    floors: false
  acceptance: {rule: Paper}
  rounds: {max: 2, focus: [Effectiveness]}
  policy: {initial: {uri: policies/000.py}}
  proposer: {type: replay, replay: policies}
  training:
    sft: {learningRate: 2.0e-3, maxSteps: 6, lora: {enabled: false}, args: {per_device_train_batch_size: 8, max_length: 384}}
    grpo: {learningRate: 1.0e-4, maxSteps: 4, beta: 0.0, args: {per_device_train_batch_size: 8, num_generations: 4, max_completion_length: 32}}
    gate: {minCallRate: 0.0, maxDeadGroupFraction: 1.0}
    saveSteps: 2
  serving: {engine: transformers}
  sandbox: {timeoutSeconds: 5, memory: 1Gi}
  retries: {backoffSeconds: 0}
  storage: {uri: "file://./store"}
"""


def write_mini(folder: Path) -> Path:
    """The YAML and its two recorded candidates: one that loops for ever, one that filters."""
    policies = folder / "policies"
    policies.mkdir(parents=True)
    few = ('"rl_tasks": 200', '"rl_tasks": 11')
    base = source_of("keep-all").replace(*few)
    (policies / "000.py").write_text(source_of("success-only").replace(*few))
    (policies / "001.py").write_text(base.replace("    return corpus.items()", "    while True:\n        pass"))
    keep = "    return api.keep_valid(api.keep_successes(corpus.items()))"
    (policies / "002.py").write_text(base.replace("    return corpus.items()", keep))
    path = folder / "mini.yaml"
    path.write_text(YAML)
    return path


def start(yaml: Path, run: Path) -> subprocess.Popen[bytes]:
    """`curateevo run` in a process group of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run.parent.mkdir(parents=True, exist_ok=True)
    log = (run.parent / f"{run.name}.log").open("ab")
    command = [sys.executable, "-m", "curateevo.cli", "run", str(yaml), "--dir", str(run)]
    with log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def facts(run: Path) -> dict[str, object]:
    """What two runs of one YAML must agree on: champion, verdicts, and the digest of every artifact."""
    folder = RunFolder(run)
    evolution = folder.evolution()
    store = LocalStore(run / "store")
    uid = evolution.metadata.uid or ""
    pointer = store.get(champion_key(uid))
    decisions = {n: json.loads(store.get(decision_key(uid, n)) or b"{}") for n in folder.versions()}
    for record in decisions.values():
        record.pop("policyKey", None)
    return {
        "phase": evolution.status.phase,
        "champion": json.loads(pointer or b"{}").get("number"),
        "decisions": decisions,
        "measured": {
            n: v.status.measurement.model_copy(update={"seconds": 0.0})
            for n, v in folder.versions().items()
            if v.status.measurement
        },
        "digests": {key: m.digest for key, m in manifests(run).items()},
    }


def manifests(run: Path) -> dict[tuple[str, int | None], Manifest]:
    """The first manifest of every stage, by stage and version."""
    evolution = RunFolder(run).evolution()
    store = LocalStore(run / "store")
    uid = evolution.metadata.uid or ""
    wanted = [*STAGES]
    for number in RunFolder(run).versions():
        wanted += [(s, number) for s in (Stage.PROPOSE, Stage.CURATE, Stage.TRAIN, Stage.EVALUATE)]
    out = {}
    for stage, number in wanted:
        for attempt in range(1, MAX_ATTEMPTS):
            if (found := read_manifest(store, attempt_prefix(uid, stage, number, attempt))) is not None:
                out[stage.value, number] = found
                break
    return out
