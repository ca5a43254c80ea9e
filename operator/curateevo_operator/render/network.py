"""NetworkPolicies of one evolution: nothing goes in or out of its pods but what a stage needs.

Policies add up: a site whose store, hub or LLM is reached by another way adds one of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from curateevo.api.base import JsonObject
from curateevo.api.errors import SpecInvalid
from curateevo.api.spec import EvolutionSpec
from curateevo.evolution.names import short_name
from curateevo.evolution.pods import SERVE_PORT
from curateevo_operator.render import labels
from curateevo_operator.render.settings import Owner, Parent, RenderSettings

STORE_USERS = ("curate", "evaluate", "ingest", "propose", "serve", "train")
"""Components that hold the store's keys. A policy in a pod of its own (component policy) reaches nothing at all."""
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
PRIVATE_V4 = ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
PRIVATE_V6 = ("fc00::/7", "fe80::/10")
NODE_LOCAL_DNS = "169.254.20.10/32"
POD_IDENTITY = ("169.254.170.23/32", "fd00:ec2::23/128")
"""Where EKS Pod Identity hands out a pod's own credentials."""
DNS_PORTS = (53, 5353)
"""5353: what a cluster's resolver may listen on behind its Service."""
DEFAULT_PORTS = {"http": 80, "https": 443}
HTTPS = 443


@dataclass(frozen=True, slots=True)
class Target:
    """Where traffic may go. `port` None: any, since policies see the pod's port and not its Service's."""

    peers: tuple[JsonObject, ...]
    port: int | None

    def rule(self) -> JsonObject:
        """As an egress rule."""
        ports = {} if self.port is None else {"ports": [{"protocol": "TCP", "port": self.port}]}
        return {"to": list(self.peers), **ports}


def render_network(
    settings: RenderSettings, parent: Parent, owner: Owner, spec: EvolutionSpec
) -> tuple[JsonObject, ...]:
    """All policies of an evolution. Raises SpecInvalid for an address that is none."""
    everything: JsonObject = {"matchLabels": {labels.EVOLUTION_UID: parent.uid}}
    store = target_of(spec.storage.endpoint, "spec.storage.endpoint") if spec.storage.endpoint else _public(HTTPS)
    stores = [store.rule()]
    if spec.storage.secret_ref is None:
        stores.append(Target(tuple({"ipBlock": {"cidr": address}} for address in POD_IDENTITY), 80).rule())
    policies = [
        _policy(parent, owner, "deny", everything, ingress=(), egress=()),
        _policy(parent, owner, "dns", _components(parent, *STORE_USERS), egress=(_dns_rule(),)),
        _policy(parent, owner, "store", _components(parent, *STORE_USERS), egress=tuple(stores)),
    ]
    if urlsplit(spec.model.base).scheme == "hf":
        users = ["train", "serve" if spec.serving.engine == "vllm" else "evaluate"]
        users += ["ingest"] if spec.corpus.grace else []
        policies.append(_policy(parent, owner, "hub", _components(parent, *users), egress=(_public(HTTPS).rule(),)))
    if spec.proposer.type.asks_model and spec.proposer.llm is not None:
        llm = target_of(spec.proposer.llm.base_url, "spec.proposer.llm.baseURL")
        policies.append(_policy(parent, owner, "llm", _components(parent, "propose"), egress=(llm.rule(),)))
    if spec.augmentation is not None:
        llm = target_of(spec.augmentation.llm.base_url, "spec.augmentation.llm.baseURL")
        policies.append(_policy(parent, owner, "rewrite", _components(parent, "curate"), egress=(llm.rule(),)))
    if spec.serving.engine == "vllm":
        policies += _serving(parent, owner)
    return tuple(policies)


def target_of(url: str, path: str) -> Target:
    """Where a URL leads, as far as it says so. Raises SpecInvalid, naming `path`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)
    except ValueError as error:
        raise SpecInvalid(f"{path}: {url!r} is no address: {error}") from error
    if not host or port is None:
        raise SpecInvalid(f"{path}: {url!r} is no address", "write http://host:port/... or https://...")
    try:
        address = ip_address(host)
    except ValueError:
        return _named(host.removesuffix("."), port)
    bits = 128 if isinstance(address, IPv6Address) else 32
    return Target(({"ipBlock": {"cidr": f"{address}/{bits}"}},), port)


def _named(host: str, port: int) -> Target:
    """A name within the cluster, `service` or `service.namespace.svc...`, or any other."""
    words = host.split(".")
    if len(words) == 1:
        return Target(({"podSelector": {}},), None)
    if len(words) >= 3 and words[2] == "svc":
        return Target(({"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: words[1]}}},), None)
    return _public(port)


def _public(port: int) -> Target:
    """The internet, without the cluster's and the site's own networks and without a cloud's metadata server."""
    return Target(
        (
            {"ipBlock": {"cidr": str(IPv4Network("0.0.0.0/0")), "except": list(PRIVATE_V4)}},
            {"ipBlock": {"cidr": str(IPv6Network("::/0")), "except": list(PRIVATE_V6)}},
        ),
        port,
    )


def _dns_rule() -> JsonObject:
    """The cluster's resolver, wherever it runs: in pods or on nodes; never a public one."""
    inside = (*(net for net in PRIVATE_V4 if not net.startswith("169.254.")), NODE_LOCAL_DNS, PRIVATE_V6[0])
    return {
        "to": [{"namespaceSelector": {}}, *({"ipBlock": {"cidr": net}} for net in inside)],
        "ports": [{"protocol": protocol, "port": port} for port in DNS_PORTS for protocol in ("UDP", "TCP")],
    }


def _serving(parent: Parent, owner: Owner) -> list[JsonObject]:
    """Evaluators ask model servers, and nobody else does."""
    ports = [{"protocol": "TCP", "port": SERVE_PORT}]
    ask = {"to": [{"podSelector": _components(parent, "serve")}], "ports": ports}
    answer = {"from": [{"podSelector": _components(parent, "evaluate")}], "ports": ports}
    return [
        _policy(parent, owner, "ask", _components(parent, "evaluate"), egress=(ask,)),
        _policy(parent, owner, "serve", _components(parent, "serve"), ingress=(answer,)),
    ]


def _components(parent: Parent, *components: str) -> JsonObject:
    """Pods of this evolution that run one of these."""
    mine: JsonObject = {"matchLabels": {labels.EVOLUTION_UID: parent.uid}}
    if len(components) == 1:
        mine["matchLabels"][labels.COMPONENT] = components[0]
        return mine
    return mine | {"matchExpressions": [{"key": labels.COMPONENT, "operator": "In", "values": list(components)}]}


def _policy(
    parent: Parent,
    owner: Owner,
    name: str,
    pods: JsonObject,
    *,
    ingress: tuple[JsonObject, ...] | None = None,
    egress: tuple[JsonObject, ...] | None = None,
) -> JsonObject:
    """None: this policy says nothing of that direction; empty: it allows nothing."""
    spec: JsonObject = {"podSelector": pods, "policyTypes": []}
    for key, rules in (("Ingress", ingress), ("Egress", egress)):
        if rules is not None:
            spec["policyTypes"].append(key)
            spec[key.lower()] = list(rules)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": short_name(f"{parent.name}-{name}"),
            "namespace": parent.namespace,
            "labels": labels.of_evolution(parent, "network"),
            "ownerReferences": [owner.reference()],
        },
        "spec": spec,
    }
