"""Pods that pass Pod Security "restricted": containers, volumes, resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from curateevo.api.base import JsonObject
from curateevo.evolution.pods import DEFAULT_ENVIRONMENT, SCRATCH_VARIABLE
from curateevo_operator.render import labels
from curateevo_operator.render.settings import RenderSettings

USER = 65532
"""Uid and gid of every container; it has no passwd entry."""
TERMINATION_LOG = "/dev/termination-log"
REQUEST_FOLDER, REQUEST_FILE = "/etc/curateevo", "request.json"
SCRATCH = "/scratch"
GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume, and where a container sees it. Mounts of one name in a pod are of one volume."""

    name: str
    path: str
    source: JsonObject
    read_only: bool = False
    sub_path: str = ""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a container asks for, and what it gets at most. GPUs come from spec.templates alone."""

    cpu: str
    memory: str
    cpu_limit: str
    memory_limit: str

    def render(self) -> JsonObject:
        return {
            "requests": {"cpu": self.cpu, "memory": self.memory},
            "limits": {"cpu": self.cpu_limit, "memory": self.memory_limit},
        }


@dataclass(frozen=True, slots=True)
class Container:
    """`env`: a text, or the `valueFrom` of a variable. `extra`: probes and ports."""

    name: str
    image: str
    command: tuple[str, ...]
    resources: Resources
    env: Mapping[str, str | JsonObject] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    extra: JsonObject = field(default_factory=dict)


REQUEST_MOUNT = Mount(
    "request",
    REQUEST_FOLDER,
    {
        "downwardAPI": {
            "items": [{"path": REQUEST_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{labels.REQUEST}']"}}]
        }
    },
    read_only=True,
)
SCRATCH_MOUNT = Mount("scratch", SCRATCH, {"emptyDir": {}})
"""Models and corpora: as large as they are."""
SKIP_IDENTITY = "eks.amazonaws.com/skip-containers"
"""Where a cloud gives pods an identity: not to these containers."""
SHM_MOUNT = Mount("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}})
"""Torch's processes exchange tensors here. It counts as memory of the container."""


def tmp_mount(size: str) -> Mount:
    return Mount("tmp", "/tmp", {"emptyDir": {"sizeLimit": size}})


BASE_ENVIRONMENT: Mapping[str, str] = {"HOME": "/tmp", "USER": "curateevo", "PYTHONUNBUFFERED": "1"}
"""Libraries look for the user's home and name, and this uid has no passwd entry."""
PROGRAM_ENVIRONMENT: Mapping[str, str] = {**BASE_ENVIRONMENT, **DEFAULT_ENVIRONMENT, SCRATCH_VARIABLE: SCRATCH}


def program_command(stage: str, *arguments: str) -> tuple[str, ...]:
    """The command line of a stage program."""
    common = ("--request", f"{REQUEST_FOLDER}/{REQUEST_FILE}", "--termination-log", TERMINATION_LOG)
    return ("python", "-m", "curateevo_jobs", stage, *arguments, *common, "--progress", "json")


def secret_value(name: str, key: str, *, optional: bool = False) -> JsonObject:
    """`valueFrom` of a variable: a key of a Secret. Where it is not optional, the pod waits for it."""
    return {"secretKeyRef": {"name": name, "key": key} | ({"optional": True} if optional else {})}


def render_pod(
    settings: RenderSettings,
    init: Iterable[Container],
    main: Container,
    *,
    grace_seconds: int = GRACE_SECONDS,
    runtime_class: str | None = None,
) -> JsonObject:
    """The spec of a pod that runs once and is never restarted."""
    steps = tuple(init)
    pod: JsonObject = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if runtime_class is not None:
        pod["runtimeClassName"] = runtime_class
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    if steps:
        pod["initContainers"] = [_render_container(settings, step) for step in steps]
    pod["containers"] = [_render_container(settings, main)]
    pod["volumes"] = _volumes((*steps, main))
    return pod


def _render_container(settings: RenderSettings, container: Container) -> JsonObject:
    """Its security context stands by itself: a pod's can be changed by a template."""
    return {
        "name": container.name,
        "image": container.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": list(container.command),
        "env": [
            {"name": name, "value": value} if isinstance(value, str) else {"name": name, "valueFrom": value}
            for name, value in container.env.items()
        ],
        "resources": container.resources.render(),
        "volumeMounts": [
            {"name": m.name, "mountPath": m.path}
            | ({"readOnly": True} if m.read_only else {})
            | ({"subPath": m.sub_path} if m.sub_path else {})
            for m in container.mounts
        ],
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **container.extra,
    }


def _volumes(containers: Iterable[Container]) -> list[JsonObject]:
    """Every volume that is mounted, once."""
    found = {mount.name: mount for container in containers for mount in container.mounts}
    return [{"name": name, **mount.source} for name, mount in found.items()]
