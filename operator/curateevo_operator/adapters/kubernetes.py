"""The API server: objects as dicts, a fixed list of kinds, its refusals as our errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, NoReturn

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.rest import ApiException

from curateevo.api.base import JsonObject
from curateevo.api.errors import Conflict, ContractBroken, Denied, Transient

FIELD_MANAGER = "curateevo-operator"
TIMEOUT_SECONDS = 30.0
PAGE = 500
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
OK, MISSING, GONE = range(200, 300), 404, 410


class Kind(NamedTuple):
    api_version: str
    kind: str
    plural: str


EVOLUTION = Kind("curateevo.io/v1alpha1", "CurationEvolution", "curationevolutions")
VERSION = Kind("curateevo.io/v1alpha1", "PolicyVersion", "policyversions")
JOB = Kind("batch/v1", "Job", "jobs")
TRAIN_JOB = Kind("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs")
TRAIN_RUNTIME = Kind("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", "trainingruntimes")
POD = Kind("v1", "Pod", "pods")
SERVICE = Kind("v1", "Service", "services")
SECRET = Kind("v1", "Secret", "secrets")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
EVENT = Kind("v1", "Event", "events")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
KINDS = {
    (k.api_version, k.kind): k
    for k in (
        EVOLUTION,
        VERSION,
        JOB,
        TRAIN_JOB,
        TRAIN_RUNTIME,
        POD,
        SERVICE,
        SECRET,
        CONFIG_MAP,
        EVENT,
        CLAIM,
        NETWORK_POLICY,
    )
}


class Throttled(Transient):
    """429: the server says when to come back."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NamespaceEnding(Transient):
    """403: nothing can be made in a namespace that is being deleted, which takes what is in it as well."""


def kind_of(manifest: JsonObject) -> Kind:
    """The kind of a manifest. Raises KeyError for one that the operator has no business with."""
    return KINDS[manifest["apiVersion"], manifest["kind"]]


class Cluster:
    """Calls to one API server. Every method may raise Transient (try again), Denied (permissions, quota) or
    ContractBroken (the server does not accept the object)."""

    def __init__(self, api: client.ApiClient, count: Callable[[str, str], None]) -> None:
        """`count` is told the verb and the plural of every call."""
        self._api = api
        self._count = count

    async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        """The object as it is now, or None."""
        return await self._call("GET", _path(kind, namespace, name))

    async def find(self, kind: Kind, namespace: str | None, selector: str = "", fields: str = "") -> list[JsonObject]:
        """All objects of a namespace (None: of all) that carry the labels, read in pages."""
        found: list[JsonObject] = []
        query = {"limit": str(PAGE), "labelSelector": selector, "fieldSelector": fields}
        while True:
            answer = await self._call("GET", _path(kind, namespace), {k: v for k, v in query.items() if v})
            if answer is None:
                return []  # the kind is not installed
            found += [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in answer.get("items") or []]
            query["continue"] = answer.get("metadata", {}).get("continue", "")
            if not query["continue"]:
                return found

    async def create(self, manifest: JsonObject) -> JsonObject:
        """Create. Raises Conflict when the name is taken, by whomever."""
        kind, namespace = kind_of(manifest), manifest["metadata"]["namespace"]
        made = await self._call("POST", _path(kind, namespace), {"fieldManager": FIELD_MANAGER}, manifest)
        if made is None:
            raise ContractBroken(f"{kind.kind}: there is no namespace {namespace}, or the kind is not installed")
        return made

    async def apply(self, manifest: JsonObject) -> JsonObject | None:
        """Server-side apply under our field manager."""
        kind, meta = kind_of(manifest), manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._call("PATCH", _path(kind, meta["namespace"], meta["name"]), query, manifest, APPLY)

    async def replace_status(self, manifest: JsonObject) -> JsonObject | None:
        """Write the status of the very resourceVersion that `manifest` names. Raises Conflict when it has moved."""
        kind, meta = kind_of(manifest), manifest["metadata"]
        path = _path(kind, meta["namespace"], meta["name"]) + "/status"
        return await self._call("PUT", path, {"fieldManager": FIELD_MANAGER}, manifest)

    async def set_finalizers(self, live: JsonObject, finalizers: list[str]) -> JsonObject | None:
        """Replace the finalizers of the very resourceVersion that `live` names. Raises Conflict when it has moved."""
        kind, meta = kind_of(live), live["metadata"]
        body = {"metadata": {"finalizers": finalizers, "resourceVersion": meta["resourceVersion"]}}
        return await self.patch(kind, meta["namespace"], meta["name"], body)

    async def patch(self, kind: Kind, namespace: str, name: str, body: JsonObject) -> JsonObject | None:
        """Merge `body` into an object."""
        return await self._call("PATCH", _path(kind, namespace, name), {"fieldManager": FIELD_MANAGER}, body, MERGE)

    async def delete(self, live: JsonObject) -> bool:
        """Delete this very object (by uid), its children in the background. False when it is gone."""
        kind, meta = kind_of(live), live["metadata"]
        body = {"propagationPolicy": "Background", "preconditions": {"uid": meta["uid"]}}
        try:
            return await self._call("DELETE", _path(kind, meta["namespace"], meta["name"]), body=body) is not None
        except Conflict:
            return False  # another object has the name now

    async def _call(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: JsonObject | None = None,
        content_type: str = "application/json",
    ) -> JsonObject | None:
        """One request; None for 404. Errors are translated here and nowhere else."""
        self._count(method, _plural(path))
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        try:
            arguments = await self._api.param_serialize(
                method=method,
                resource_path=path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._api.call_api(*arguments, _request_timeout=TIMEOUT_SECONDS)
            raw = await response.read()
        except ApiException as error:
            if error.status == MISSING:
                return None
            _refused(f"{method} {path}", error.status, str(error.body or error.reason or ""), error.headers)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Transient(f"{method} {path}: the API server does not answer: {error or type(error).__name__}") from (
                error
            )
        status = getattr(response, "status", 200)
        if status == MISSING:
            return None
        text = (raw or b"").decode("utf-8", "replace")
        if status not in OK:
            _refused(f"{method} {path}", status, text, getattr(response, "headers", {}))
        try:
            parsed: JsonObject = json.loads(text)
        except ValueError as error:
            raise Transient(f"{method} {path}: the answer is not JSON: {text[:100]!r}") from error
        return parsed


@asynccontextmanager
async def connected(count: Callable[[str, str], None]) -> AsyncIterator[Cluster]:
    """The cluster that this process runs in, or that the kubeconfig names. Raises Denied when there is none."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        try:
            await config.load_kube_config(client_configuration=settings)
        except (config.ConfigException, OSError) as error:
            raise Denied(f"no cluster: {error}", "run in a pod with a service account, or set KUBECONFIG") from error
    async with client.ApiClient(settings) as api:
        yield Cluster(api, count)


def _path(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    root = f"/api/{kind.api_version}" if "/" not in kind.api_version else f"/apis/{kind.api_version}"
    middle = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{middle}/{kind.plural}" + (f"/{name}" if name else "")


def _plural(path: str) -> str:
    """The plural in a path, for counting."""
    parts = path.split("/")
    after = parts.index("namespaces") + 2 if "namespaces" in parts else 4 if parts[1] == "apis" else 3
    return parts[after]


def _refused(what: str, status: int | None, body: str, headers: Any) -> NoReturn:
    text = f"{what}: {status}: {_message(body)}"
    match status:
        case 409:
            raise Conflict(text)
        case 403 if _cause(body) == "NamespaceTerminating":
            raise NamespaceEnding(text)
        case 401 | 403:
            raise Denied(text)
        case 400 | 405 | 415 | 422:
            raise ContractBroken(text)
        case 429:
            raise Throttled(text, _seconds((headers or {}).get("Retry-After")))
        case _:
            raise Transient(text)


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["message"])[:1500]
    except (ValueError, KeyError, TypeError):
        return body[:500]


def _cause(body: str) -> str:
    try:
        return str(json.loads(body)["details"]["causes"][0]["reason"])
    except (ValueError, LookupError, TypeError):
        return ""


def _seconds(value: str | None) -> float:
    return float(value) if value and value.isdigit() else 1.0
