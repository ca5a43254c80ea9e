"""Rights: the operator may do what it does, and nothing else. test_rights_in_use.py sees a real one at work under them."""

from __future__ import annotations

import pytest

from curateevo_operator.adapters.kubernetes import KINDS
from tests.chart.rendered import RELEASE, Object, case, of_kind

OURS, BATCH, CORE, NETWORK, TRAINER = "curateevo.io", "batch", "", "networking.k8s.io", "trainer.kubeflow.org"
Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""

IN_A_RUN: dict[tuple[str, str], tuple[str, ...]] = {
    (OURS, "curationevolutions"): ("get", "list", "watch", "patch", "delete"),  # patch: finalizer; delete: its TTL
    (OURS, "curationevolutions/status"): ("update",),
    (OURS, "policyversions"): ("list", "create"),
    (OURS, "policyversions/status"): ("update",),
    (BATCH, "jobs"): ("list", "watch", "create", "delete"),
    (CORE, "pods"): ("list",),  # why they wait, how they ended
    (CORE, "services"): ("list", "create", "delete"),  # of model servers
    (CORE, "persistentvolumeclaims"): ("list", "create", "delete"),  # sandbox.isolation: Pod
    (NETWORK, "networkpolicies"): ("list", "create", "patch"),  # server-side apply is a patch, and may create
    (CORE, "secrets"): ("get",),  # the store's, by name
    (CORE, "configmaps"): ("get",),  # the initial policy, by name
    (CORE, "events"): ("list", "create"),  # list: why a Job got no pod
    (TRAINER, "trainjobs"): ("list", "create", "delete"),
    (TRAINER, "trainingruntimes"): ("list", "create", "delete"),
}
"""What a run asks of the API server."""
IN_NEED: dict[tuple[str, str], tuple[str, ...]] = {
    # A name is taken: whose is it?
    (OURS, "policyversions"): ("get",),
    (BATCH, "jobs"): ("get",),
    (CORE, "services"): ("get",),
    (CORE, "persistentvolumeclaims"): ("get",),
    (TRAINER, "trainjobs"): ("get",),
    (TRAINER, "trainingruntimes"): ("get",),
    # Asked of whoever makes a child that blocks its owner's deletion, where OwnerReferencesPermissionEnforcement is on.
    (OURS, "curationevolutions/finalizers"): ("update",),
    (OURS, "policyversions/finalizers"): ("update",),
}
"""What an undisturbed run does not."""


def rights(*tables: dict[tuple[str, str], tuple[str, ...]]) -> set[Right]:
    return {(group, resource, verb) for table in tables for (group, resource), verbs in table.items() for verb in verbs}


def granted(role: Object) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def roles(name: str) -> dict[str, Object]:
    """By kind, name and namespace."""
    found = of_kind(case(name), "Role", "ClusterRole")
    return {
        " ".join(filter(None, (o["kind"], o["metadata"]["name"], o["metadata"].get("namespace")))): o for o in found
    }


OPERATOR = [("default", f"ClusterRole {RELEASE}"), *(("namespaced", f"Role {RELEASE} team-{x}") for x in "ab")]


@pytest.mark.parametrize(("name", "role"), OPERATOR)
def test_the_operator_may_do_what_it_does_and_nothing_else(name: str, role: str) -> None:
    found = roles(name)[role]
    assert granted(found) == rights(IN_A_RUN, IN_NEED)
    pairs = [(g, r) for rule in found["rules"] for g in rule["apiGroups"] for r in rule["resources"]]
    assert len(pairs) == len(set(pairs)), "each resource is in one rule"


@pytest.mark.parametrize("name", ["default", "namespaced"])
def test_no_role_has_what_nobody_should_have(name: str) -> None:
    for who, role in roles(name).items():
        found = granted(role)
        assert not [r for r in found if "*" in r], who
        resources = {resource for _, resource, _ in found}
        assert not resources & {"pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers"}, who
        assert not {r.partition("/")[0] for r in resources} & {"roles", "rolebindings", "clusterroles", "nodes"}, who
        assert not [r for r in found if r[2] in ("escalate", "bind", "impersonate")], who
        assert {verb for _, resource, verb in found if resource == "secrets"} <= {"get"}, who


def test_every_kind_that_the_operator_knows_is_in_its_role() -> None:
    known = {(k.api_version.rpartition("/")[0], k.plural) for k in KINDS.values()}
    assert known == {(group, resource) for group, resource, _ in rights(IN_A_RUN) if "/" not in resource}


def test_people_read_versions_and_write_evolutions() -> None:
    found = roles("default")
    view, edit = found[f"ClusterRole {RELEASE}-view"], found[f"ClusterRole {RELEASE}-edit"]
    prefix = "rbac.authorization.k8s.io/aggregate-to"
    assert view["metadata"]["labels"][f"{prefix}-view"] == "true"
    assert edit["metadata"]["labels"][f"{prefix}-edit"] == "true"
    reading, writing = ("get", "list", "watch"), ("create", "delete", "deletecollection", "patch", "update")
    assert granted(view) == {(OURS, r, v) for r in ("curationevolutions", "policyversions") for v in reading}
    assert granted(edit) == {(OURS, "curationevolutions", v) for v in writing}


def test_the_uninstall_job_may_stop_the_operator_and_release_evolutions() -> None:
    for name, evolutions in (
        ("default", [f"ClusterRole {RELEASE}-uninstall-evolutions"]),
        ("namespaced", [f"Role {RELEASE}-uninstall-evolutions team-{x}" for x in "ab"]),
    ):
        found = roles(name)
        stop = found[f"Role {RELEASE}-uninstall curateevo-system"]
        assert granted(stop) == {("apps", "deployments", "get"), ("apps", "deployments", "patch")}
        assert stop["rules"][0]["resourceNames"] == [RELEASE]
        for who in evolutions:
            assert granted(found[who]) == {(OURS, "curationevolutions", "list"), (OURS, "curationevolutions", "patch")}


def test_accounts_hand_out_no_token_unasked() -> None:
    for name in ("default", "namespaced"):
        accounts = of_kind(case(name), "ServiceAccount")
        assert len(accounts) == 2 and all(o["automountServiceAccountToken"] is False for o in accounts)


def test_without_rights_to_give_nothing_is_given() -> None:
    kinds = {o["kind"] for o in case("minimal")}
    assert kinds == {"Deployment", "Service", "Job"}
    accounts = {
        o["spec"]["template"]["spec"]["serviceAccountName"] for o in of_kind(case("minimal"), "Deployment", "Job")
    }
    assert accounts == {"curation", "curation-uninstall"}
