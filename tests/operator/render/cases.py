"""A spread of specs, and what is rendered for them."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

from curateevo.api.base import JsonObject
from curateevo.api.evolution import Spent, Stage, VersionSpec
from curateevo.api.spec import EvolutionSpec, Focus
from curateevo.api.stage import (
    CurateSummary,
    EvaluateSummary,
    FileEntry,
    FileRef,
    IngestSummary,
    Manifest,
    Outcome,
    StageRequest,
    Summary,
    TrainSummary,
    content_digest,
)
from curateevo.evolution import requests
from curateevo.evolution.names import attempt_prefix, job_name, version_name
from curateevo.evolution.requests import Identity
from curateevo_operator.render.network import render_network
from curateevo_operator.render.settings import Owner, Parent, RenderSettings
from curateevo_operator.render.stage import render_stage

SETTINGS = RenderSettings("registry/jobs:1", "registry/trainer:1", "registry/serve:1", "registry/sandbox:1")
NAME, NAMESPACE, UID = "airline", "agents", "0f8c5a7e-6c3d-4a58-9d8e-1f2a3b4c5d6e"
MINIMAL: JsonObject = {
    "corpus": {"sources": [{"uri": "s3://corpora/airline/*.json"}]},
    "model": {"base": "builtin://toolworld"},
    "evaluation": {"suites": [{"name": "toolworld"}]},
    "storage": {"uri": "s3://evolutions/airline", "endpoint": "http://10.99.0.1:7070", "secretRef": {"name": "s3"}},
}
LLM: JsonObject = {
    "type": "llm",
    "llm": {
        "baseURL": "http://llm.infra.svc.cluster.local/v1",
        "model": "m",
        "apiKeySecretRef": {"name": "llm", "key": "token"},
    },
}
AGENT: JsonObject = {
    **LLM,
    "type": "agent",
    "agent": {"command": ["mini", "--yolo", "--task", "Do what TASK.md says."], "env": {"MSWEA_CONFIGURED": "true"}},
}
HUB: JsonObject = {
    "base": "hf://Qwen/Qwen3-4B@1cfa9a7",
    "tokenSecretRef": {"name": "hub", "key": "token"},
    "cacheVolumeClaim": "models",
}
AWS: JsonObject = {"uri": "s3://evolutions/airline"}
IN_PROCESS: JsonObject = {"engine": "transformers"}
GPU_TEMPLATE: JsonObject = {
    "metadata": {"labels": {"team": "agents"}, "annotations": {"sidecar.istio.io/inject": "false"}},
    "spec": {
        "serviceAccountName": "trainer",
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "main",
                "image": "registry/my-trainer:2",
                "env": [{"name": "NCCL_DEBUG", "value": "WARN"}, {"name": "OMP_NUM_THREADS", "value": "8"}],
                "resources": {"requests": {"memory": "200Gi"}, "limits": {"$patch": "replace", "nvidia.com/gpu": "4"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
            }
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "shm", "emptyDir": {"sizeLimit": "64Gi"}},
        ],
    },
}


def spec_of(**changes: Any) -> EvolutionSpec:
    """The minimal spec with some sections replaced."""
    return EvolutionSpec.model_validate({**copy.deepcopy(MINIMAL), **changes})


def parent_of(name: str = NAME) -> Parent:
    return Parent(name, NAMESPACE, UID)


def evolution_owner(name: str = NAME) -> Owner:
    return Owner("curateevo.io/v1alpha1", "CurationEvolution", name, UID)


def version_owner(number: int, name: str = NAME) -> Owner:
    return Owner("curateevo.io/v1alpha1", "PolicyVersion", version_name(name, number), f"uid-of-v{number}")


def make_manifest(stage: Stage, version: int | None, summary: Summary, *paths: str) -> Manifest:
    prefix = attempt_prefix(UID, stage, version, 1)
    entries = tuple(
        FileEntry(path=p, key=f"{prefix}/{p}", size_bytes=1000, sha256=hashlib.sha256(p.encode()).hexdigest())
        for p in paths
    )
    return Manifest(
        stage=stage,
        input_digest="sha256:0",
        outcome=Outcome.OK,
        files=entries,
        digest=content_digest(Outcome.OK, entries),
        summary=summary,
    )


INGEST = make_manifest(
    Stage.INGEST,
    None,
    IngestSummary(trajectories=3, turns=9, successes=2, set_aside=0, leaked=0),
    *(*requests.CORPUS_FILES, requests.SPLITS, requests.PROFILE),
)
CURATE = make_manifest(Stage.CURATE, 1, CurateSummary(), requests.SFT, requests.RL, requests.MEMORY, requests.PROFILE)
EVALUATE = make_manifest(Stage.EVALUATE, 0, EvaluateSummary(scores={}), *requests.DIAG_FILES)
POLICY = FileRef(key="policy.py", digest="sha256:1", size_bytes=100)
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def train_manifest(spec: EvolutionSpec, files: tuple[str, ...] = FILES) -> Manifest:
    models = (f"model-{index}/{name}" for index in range(spec.training.repeats) for name in files)
    return make_manifest(Stage.TRAIN, 1, TrainSummary(), *models)


def version_spec(spec: EvolutionSpec) -> VersionSpec:
    return VersionSpec(
        evolution_uid=UID,
        number=1,
        parent=0,
        focus=Focus.EFFECTIVENESS,
        policy_digest="sha256:1",
        policy_key="policy.py",
        corpus_key="k",
        corpus_digest="sha256:2",
        evolution_spec=spec,
    )


def request_of(stage: Stage, spec: EvolutionSpec, name: str = NAME) -> StageRequest:
    """The request of a stage's second attempt, as the plans make it."""
    who, version = Identity(name, UID), version_spec(spec)
    train = train_manifest(spec)
    make: dict[Stage, Callable[[], StageRequest]] = {
        Stage.INGEST: lambda: requests.ingest_request(who, spec, 2),
        Stage.FLOORS: lambda: requests.floors_request(who, spec, 2, INGEST),
        Stage.SEAL: lambda: requests.seal_request(
            who, spec, 2, INGEST, {"first": (CURATE, train), "last": (CURATE, train)}
        ),
        Stage.PROPOSE: lambda: requests.propose_request(
            who, spec, 1, 2, Focus.EFFECTIVENESS, INGEST, POLICY, CURATE, EVALUATE, (), {0: POLICY}, Spent(), None
        ),
        Stage.CURATE: lambda: requests.curate_request(who, version, 2, INGEST, POLICY, None),
        Stage.TRAIN: lambda: requests.train_request(who, version, 2, CURATE),
        Stage.EVALUATE: lambda: requests.evaluate_request(who, version, 2, INGEST, CURATE, train),
    }
    return make[stage]()


def render(
    stage: Stage, spec: EvolutionSpec, name: str = NAME, settings: RenderSettings = SETTINGS
) -> tuple[JsonObject, ...]:
    """What the operator would create for a stage."""
    request = request_of(stage, spec, name)
    of_version = stage in (Stage.CURATE, Stage.TRAIN, Stage.EVALUATE)
    owner = version_owner(1, name) if of_version else evolution_owner(name)
    job = job_name(name, stage, request.version, request.attempt)
    return render_stage(settings, parent_of(name), owner, spec, job, request)


def network(spec: EvolutionSpec, name: str = NAME) -> tuple[JsonObject, ...]:
    return render_network(SETTINGS, parent_of(name), evolution_owner(name), spec)


SPECS: dict[str, EvolutionSpec] = {
    "minimal": spec_of(),
    "in-process": spec_of(serving=IN_PROCESS),
    "no-memory": spec_of(memory={"enabled": False}),
    "hub-on-aws": spec_of(model=HUB, storage=AWS, training={"repeats": 2}),
    "hub-without-cache": spec_of(model={"base": "hf://Qwen/Qwen3-4B@1cfa9a7"}, serving=IN_PROCESS),
    "claim": spec_of(model={"base": "pvc://models/qwen/4b"}),
    "grace": spec_of(corpus={**MINIMAL["corpus"], "grace": True}, model=HUB),
    "llm": spec_of(proposer=LLM),
    "agent": spec_of(
        proposer=AGENT,
        templates={"propose": {"spec": {"containers": [{"name": "main", "image": "registry/jobs-with-mini:1"}]}}},
    ),
    "augmentation": spec_of(
        augmentation={
            "llm": {
                "baseURL": "https://rewriter.example/v1",
                "model": "m",
                "apiKeySecretRef": {"name": "rewriter", "key": "token"},
            }
        }
    ),
    "gvisor": spec_of(sandbox={"runtimeClassName": "gvisor", "memory": "2Gi", "cpu": "200m", "timeoutSeconds": 60}),
    "pod": spec_of(
        sandbox={"isolation": "Pod", "runtimeClassName": "gvisor"},
        deadlines={"curateSeconds": 100, "pendingSeconds": 10},
        templates={
            "curate": {
                "spec": {
                    "serviceAccountName": "store-reader",
                    "nodeSelector": {"pool": "untrusted"},
                    "initContainers": [
                        {"name": "policy", "resources": {"requests": {"cpu": "2"}}},
                        {
                            "name": "prepare",
                            "image": "registry/prepare:1",
                            "resources": {
                                "requests": {"cpu": "1", "memory": "1Gi"},
                                "limits": {"cpu": "1", "memory": "1Gi"},
                            },
                            "env": [{"name": "HOME", "value": "/tmp"}],
                            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                            "terminationMessagePolicy": "File",
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        },
                    ],
                    "affinity": {
                        "podAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": [
                                {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "zone"}
                            ]
                        }
                    },
                }
            }
        },
    ),
    "queue": spec_of(queue={"name": "gpus", "priorityClassName": "low"}, training={"repeats": 2}),
    "templates": spec_of(
        templates={
            "train": GPU_TEMPLATE,
            "serve": {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}},
            "evaluate": {"spec": {"priorityClassName": "high", "imagePullSecrets": [{"name": "mine"}]}},
            "curate": {
                "spec": {
                    "initContainers": [{"name": "policy", "resources": {"requests": {"cpu": "2"}}}],
                    "nodeSelector": {"pool": "untrusted"},
                }
            },
        }
    ),
    "train-job": spec_of(training={"engine": "TrainJob"}, queue={"name": "gpus"}, templates={"train": GPU_TEMPLATE}),
    "long-name": spec_of(training={"repeats": 2}),
}
LONG = "an-evolution-whose-name-is-as-long-as-a-label-allows-it-to-be-x"
NAMES = {"long-name": LONG}
STAGES = tuple(Stage)
GOLDENS: dict[str, tuple[str, Stage | None]] = {
    "ingest": ("minimal", Stage.INGEST),
    "ingest-grace": ("grace", Stage.INGEST),
    "curate": ("minimal", Stage.CURATE),
    "curate-gvisor": ("gvisor", Stage.CURATE),
    "curate-pod": ("pod", Stage.CURATE),
    "curate-augmentation": ("augmentation", Stage.CURATE),
    "train": ("minimal", Stage.TRAIN),
    "train-hub-on-aws": ("hub-on-aws", Stage.TRAIN),
    "train-queue": ("queue", Stage.TRAIN),
    "train-templates": ("templates", Stage.TRAIN),
    "train-job": ("train-job", Stage.TRAIN),
    "evaluate-served": ("templates", Stage.EVALUATE),
    "evaluate-in-process": ("in-process", Stage.EVALUATE),
    "evaluate-two-seeds": ("hub-on-aws", Stage.EVALUATE),
    "floors-hub-on-aws": ("hub-on-aws", Stage.FLOORS),
    "floors-claim": ("claim", Stage.FLOORS),
    "floors-in-process-hub": ("hub-without-cache", Stage.FLOORS),
    "seal-without-memory": ("no-memory", Stage.SEAL),
    "propose-rules": ("minimal", Stage.PROPOSE),
    "propose-llm": ("llm", Stage.PROPOSE),
    "propose-agent": ("agent", Stage.PROPOSE),
    "long-name": ("long-name", Stage.EVALUATE),
    "network-minimal": ("minimal", None),
    "network-in-process": ("in-process", None),
    "network-llm": ("llm", None),
    "network-agent": ("agent", None),
    "network-augmentation": ("augmentation", None),
    "network-hub-on-aws": ("hub-on-aws", None),
}
"""By file name: the spec, and the stage; None for the network policies."""


def golden(name: str) -> tuple[JsonObject, ...]:
    """What a golden file is to hold."""
    spec, stage = GOLDENS[name]
    called = NAMES.get(spec, NAME)
    return network(SPECS[spec], called) if stage is None else render(stage, SPECS[spec], called)


def everything() -> dict[str, tuple[JsonObject, ...]]:
    """Every stage of every spec, and its network policies."""
    out = {}
    for name, spec in SPECS.items():
        called = NAMES.get(name, NAME)
        for stage in STAGES:
            out[f"{name}/{stage.value}"] = render(stage, spec, called)
        out[f"{name}/network"] = network(spec, called)
    return out


def pods(manifests: tuple[JsonObject, ...]) -> list[JsonObject]:
    """The pod templates among manifests."""
    return [pod for m in manifests if (pod := pod_of(m)) is not None]


def pod_of(manifest: JsonObject) -> JsonObject | None:
    """The pod template of a manifest that has one."""
    if manifest["kind"] == "TrainingRuntime":
        [job] = manifest["spec"]["template"]["spec"]["replicatedJobs"]
        manifest = job["template"]
    elif manifest["kind"] != "Job":
        return None
    found: JsonObject = manifest["spec"]["template"]
    return found


def containers(pod: JsonObject) -> dict[str, JsonObject]:
    """All containers of a pod template, by name."""
    return {c["name"]: c for c in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])}


def env(container: JsonObject) -> dict[str, Any]:
    """Variables of a container: the value, or what it is taken from."""
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container.get("env", ())}
