"""Who reaches what: the policies of an evolution, evaluated as a cluster would."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from curateevo.api.base import JsonObject
from curateevo.api.errors import SpecInvalid
from curateevo.api.evolution import Stage
from curateevo_operator.render import labels
from curateevo_operator.render.network import target_of
from tests.operator.render.cases import AWS, HUB, IN_PROCESS, LLM, MINIMAL, UID, network, pods, render, spec_of

SERVER, ELSEWHERE = "10.99.0.1", "93.184.216.34"
METADATA_SERVER = "169.254.169.254"
API_SERVER = "10.96.0.1"
DNS = "10.96.0.10"


def pod(component: str, **more: str) -> dict[str, str]:
    return {labels.EVOLUTION_UID: UID, labels.COMPONENT: component, **more}


class Address:
    """The other end: an address outside of the cluster's pods, or a pod of some namespace."""

    def __init__(self, ip: str = "", namespace: str = "", **found: str) -> None:
        self.ip, self.namespace, self.labels = ip, namespace, {k.replace("_", "/"): v for k, v in found.items()}


def of_pod(component: str, uid: str = UID, namespace: str = "agents") -> Address:
    address = Address(namespace=namespace)
    address.labels = {labels.EVOLUTION_UID: uid, labels.COMPONENT: component}
    return address


def selects(selector: JsonObject, found: dict[str, str]) -> bool:
    if not selector.get("matchLabels", {}).items() <= found.items():
        return False
    for rule in selector.get("matchExpressions", ()):
        assert rule["operator"] == "In"
        if found.get(rule["key"]) not in rule["values"]:
            return False
    return True


def matches(peer: JsonObject, other: Address) -> bool:
    if "ipBlock" in peer:
        if not other.ip or ip_address(other.ip).version != ip_network(peer["ipBlock"]["cidr"]).version:
            return False
        inside = ip_address(other.ip) in ip_network(peer["ipBlock"]["cidr"])
        return inside and not any(ip_address(other.ip) in ip_network(n) for n in peer["ipBlock"].get("except", ()))
    if not other.namespace:
        return False
    if "namespaceSelector" in peer:
        wanted = peer["namespaceSelector"].get("matchLabels", {})
        if not wanted.items() <= {"kubernetes.io/metadata.name": other.namespace}.items():
            return False
    elif other.namespace != "agents":
        return False
    return selects(peer.get("podSelector", {}), other.labels)


def allowed(
    policies: tuple[JsonObject, ...],
    found: dict[str, str],
    direction: str,
    other: Address,
    port: int,
    protocol: str = "TCP",
) -> bool:
    """Policies add up; a pod that none selects is free."""
    chosen = [
        p["spec"]
        for p in policies
        if selects(p["spec"]["podSelector"], found) and direction.capitalize() in p["spec"]["policyTypes"]
    ]
    if not chosen:
        return True
    side = "to" if direction == "egress" else "from"
    for rule in (rule for spec in chosen for rule in spec.get(direction, ())):
        ports = rule.get("ports")
        if ports and not any(p["port"] == port and p["protocol"] == protocol for p in ports):
            continue
        if any(matches(peer, other) for peer in rule[side]):
            return True
    return False


def reaches(component: str, other: Address, port: int, protocol: str = "TCP", **changes: Any) -> bool:
    return allowed(network(spec_of(**changes)), pod(component), "egress", other, port, protocol)


COMPONENTS = ("ingest", "propose", "curate", "train", "evaluate", "serve")


def test_every_pod_is_closed_to_begin_with() -> None:
    for changes in ({}, {"model": HUB}, {"proposer": LLM}, {"serving": IN_PROCESS}):
        policies = network(spec_of(**changes))
        for stage in Stage:
            for made in pods(render(stage, spec_of(**changes))):
                found = made["metadata"]["labels"]
                assert not allowed(policies, found, "ingress", of_pod("stranger", "other"), 8000)
                assert not allowed(policies, found, "egress", Address(API_SERVER), 443)
                assert not allowed(policies, found, "egress", Address(METADATA_SERVER), 80)
                assert allowed(policies, found, "egress", Address(SERVER), 7070)


def test_pods_of_others_are_not_touched() -> None:
    policies = network(spec_of())
    assert allowed(policies, pod("train") | {labels.EVOLUTION_UID: "other"}, "egress", Address(ELSEWHERE), 443)


@pytest.mark.parametrize("component", COMPONENTS)
def test_names_can_be_resolved_within_the_cluster_alone(component: str) -> None:
    assert reaches(component, Address(DNS), 53, "UDP")
    assert reaches(component, Address(namespace="kube-system"), 53, "UDP")
    assert reaches(component, Address("169.254.20.10"), 53, "UDP")
    assert not reaches(component, Address("8.8.8.8"), 53, "UDP")
    assert not reaches(component, Address(METADATA_SERVER), 53, "UDP")


@pytest.mark.parametrize("server", ["169.254.170.23", "fd00:ec2::23"])
def test_a_clouds_identity_is_at_hand_where_no_secret_holds_the_keys(server: str) -> None:
    assert reaches("train", Address(server), 80, storage=AWS)
    assert not reaches("policy", Address(server), 80, storage=AWS)
    assert not reaches("train", Address(server), 443, storage=AWS)
    assert not reaches("train", Address(server), 80)


def test_a_policy_in_a_pod_of_its_own_reaches_nothing() -> None:
    for other, port, protocol in (
        (Address(DNS), 53, "UDP"),
        (Address(SERVER), 7070, "TCP"),
        (of_pod("serve"), 8000, "TCP"),
    ):
        assert not reaches("policy", other, port, protocol)


def test_the_store_by_its_address_and_port() -> None:
    assert reaches("curate", Address(SERVER), 7070)
    assert not reaches("curate", Address(SERVER), 7071)
    assert not reaches("curate", Address("10.99.0.2"), 7070)
    assert not reaches("curate", Address(ELSEWHERE), 443)
    assert reaches("curate", Address(ELSEWHERE), 443, storage=AWS)
    assert not reaches("curate", Address("10.0.0.7"), 443, storage=AWS)


def test_only_the_proposer_reaches_the_llm() -> None:
    llm = Address(namespace="infra")
    assert reaches("propose", llm, 8080, proposer=LLM), "the pod's port, not the Service's"
    assert not reaches("propose", llm, 8080)
    assert not reaches("propose", Address(namespace="other"), 8080, proposer=LLM)
    for component in set(COMPONENTS) - {"propose"}:
        assert not reaches(component, llm, 8080, proposer=LLM)


def test_the_model_that_rewrites_is_for_curations_alone() -> None:
    rewriting = {"llm": {"baseURL": "https://rewriter.example/v1", "model": "m"}}
    for component in COMPONENTS:
        assert reaches(component, Address(ELSEWHERE), 443, augmentation=rewriting) == (component == "curate")


def test_evaluators_ask_servers_and_nobody_else_does() -> None:
    policies = network(spec_of())
    assert allowed(policies, pod("evaluate"), "egress", of_pod("serve"), 8000)
    assert allowed(policies, pod("serve"), "ingress", of_pod("evaluate"), 8000)
    assert not allowed(policies, pod("evaluate"), "egress", of_pod("serve"), 22)
    assert not allowed(policies, pod("evaluate"), "egress", of_pod("serve", "other"), 8000)
    for component in set(COMPONENTS) - {"evaluate"}:
        assert not allowed(policies, pod(component), "egress", of_pod("serve"), 8000)
        assert not allowed(policies, pod("serve"), "ingress", of_pod(component), 8000)
    assert not reaches("evaluate", of_pod("serve"), 8000, serving=IN_PROCESS)


def test_the_hub_for_those_that_download_the_base() -> None:
    for component in COMPONENTS:
        served = component in ("train", "serve")
        here = component in ("train", "evaluate")
        assert reaches(component, Address(ELSEWHERE), 443, model=HUB) == served
        assert reaches(component, Address(ELSEWHERE), 443, model=HUB, serving=IN_PROCESS) == here
        assert not reaches(component, Address(ELSEWHERE), 443)
        scoring = {**MINIMAL["corpus"], "grace": True}
        scores = served or component == "ingest"
        assert reaches(component, Address(ELSEWHERE), 443, model=HUB, corpus=scoring) == scores


@pytest.mark.parametrize(
    ("url", "peer", "port"),
    [
        ("http://10.0.0.1:7070", {"ipBlock": {"cidr": "10.0.0.1/32"}}, 7070),
        ("https://10.0.0.1/v1", {"ipBlock": {"cidr": "10.0.0.1/32"}}, 443),
        ("http://[fd00::1]:9000/", {"ipBlock": {"cidr": "fd00::1/128"}}, 9000),
        (
            "http://llm.infra.svc/v1",
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "infra"}}},
            None,
        ),
        (
            "http://a.b.svc.cluster.local.:1/",
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}},
            None,
        ),
        ("http://llm/v1", {"podSelector": {}}, None),
    ],
)
def test_where_an_address_leads(url: str, peer: JsonObject, port: int | None) -> None:
    target = target_of(url, "x")
    assert (target.peers, target.port) == ((peer,), port)


def test_other_names_lead_to_the_internet_on_their_port() -> None:
    target = target_of("https://api.example.com/v1", "x")
    assert target.port == 443
    assert {p["ipBlock"]["cidr"] for p in target.peers} == {"0.0.0.0/0", "::/0"}


@pytest.mark.parametrize(
    "inside",
    ["10.0.0.1", "100.64.0.1", METADATA_SERVER, "172.16.0.1", "172.31.255.254", "192.168.0.1", "fd00::1", "fe80::1"],
)
def test_the_internet_is_no_way_into_the_site(inside: str) -> None:
    for component in COMPONENTS:
        assert not reaches(component, Address(inside), 443, storage=AWS, model=HUB)
    assert reaches("train", Address("2606:2800:220:1::1"), 443, storage=AWS)


@pytest.mark.parametrize("url", ["llm", "ftp://x/y", "http://", "http://x:99999", "http://[::1/v1"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises(SpecInvalid, match="spec.proposer.llm.baseURL"):
        network(spec_of(proposer={**LLM, "llm": {**LLM["llm"], "baseURL": url}}))
