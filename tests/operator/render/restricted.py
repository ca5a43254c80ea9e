"""Pod Security "restricted", as its page lists it: what in a pod's spec breaks it."""

from __future__ import annotations

from collections.abc import Iterator

from curateevo.api.base import JsonObject

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
PROFILES = {"RuntimeDefault", "Localhost"}


def violations(pod: JsonObject) -> list[str]:
    """One line for each control that `pod` (a PodSpec) breaks."""
    return [*_pod(pod), *(f"{c['name']}: {text}" for c in _containers(pod) for text in _container(c, pod))]


def _pod(pod: JsonObject) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls"
    for volume in pod.get("volumes", ()):
        kinds = set(volume) - {"name"}
        if len(kinds) != 1 or not kinds <= VOLUMES:
            yield f"volume {volume['name']}: {sorted(kinds)}"


def _container(container: JsonObject, pod: JsonObject) -> Iterator[str]:
    own, whole = container.get("securityContext", {}), pod.get("securityContext", {})
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()) or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield "capabilities"
    if own.get("runAsNonRoot", whole.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot"
    if own.get("runAsUser", whole.get("runAsUser")) == 0:
        yield "runAsUser"
    profile = own.get("seccompProfile", whole.get("seccompProfile")) or {}
    if profile.get("type") not in PROFILES:
        yield "seccompProfile"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "hostPort"
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(probe, {}).get("httpGet", {}).get("host"):
            yield f"{probe}.host"


def _containers(pod: JsonObject) -> Iterator[JsonObject]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(field, ())
