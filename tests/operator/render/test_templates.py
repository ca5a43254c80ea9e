"""What a user's template may change of a pod, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest

from curateevo.api.base import JsonObject
from curateevo.api.errors import SpecInvalid
from curateevo.api.evolution import Stage
from curateevo_operator.render.merge import merge_pod_template
from tests.operator.render.cases import containers, env, pods, render, spec_of
from tests.operator.render.restricted import violations

BASE: JsonObject = {
    "metadata": {"labels": {"ours": "1"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "command": ["a", "b"],
                "env": [
                    {"name": "X", "value": "1"},
                    {"name": "Y", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            }
        ],
        "initContainers": [{"name": "fetch"}],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
        "tolerations": [{"key": "a"}],
        "imagePullSecrets": [{"name": "one"}],
    },
}


def merged(**spec: Any) -> JsonObject:
    found: JsonObject = merge_pod_template(BASE, {"spec": spec}, "spec.templates.train")["spec"]
    return found


def merged_main(**fields: Any) -> JsonObject:
    found: JsonObject = merged(containers=[{"name": "main", **fields}])["containers"][0]
    return found


def test_named_things_are_merged_by_their_key() -> None:
    main = merged_main(
        env=[{"name": "Z", "value": "3"}, {"name": "X", "value": "2"}],
        volumeMounts=[{"name": "big", "mountPath": "/tmp"}, {"name": "data", "mountPath": "/data"}],
        resources={"limits": {"memory": "2Gi", "nvidia.com/gpu": 1}},
    )
    assert [e["name"] for e in main["env"]] == ["X", "Y", "Z"]
    assert main["env"][0]["value"] == "2"
    assert [(m["mountPath"], m["name"]) for m in main["volumeMounts"]] == [("/tmp", "big"), ("/data", "data")]
    assert main["resources"]["limits"] == {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": 1}
    assert main["command"] == ["a", "b"]


def test_another_source_replaces_the_whole_variable_or_volume() -> None:
    main = merged_main(env=[{"name": "Y", "value": "open"}])
    assert main["env"][1] == {"name": "Y", "value": "open"}
    claim = {"name": "tmp", "persistentVolumeClaim": {"claimName": "c"}}
    assert merged(volumes=[claim])["volumes"] == [claim]
    grown = {"name": "tmp", "emptyDir": {"medium": "Memory"}}
    assert merged(volumes=[grown])["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}}]


def test_other_lists_are_replaced_and_tolerations_added() -> None:
    assert merged_main(command=["c"])["command"] == ["c"]
    assert merged(tolerations=[{"key": "b"}, {"key": "a"}])["tolerations"] == [{"key": "a"}, {"key": "b"}]
    assert merged(imagePullSecrets=[{"name": "two"}])["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]


def test_new_containers_come_last_and_new_init_containers_first() -> None:
    found = merged(containers=[{"name": "side"}], initContainers=[{"name": "prepare"}])
    assert [c["name"] for c in found["containers"]] == ["main", "side"]
    assert [c["name"] for c in found["initContainers"]] == ["prepare", "fetch"]


def test_keys_are_removed_by_a_directive_and_not_by_null() -> None:
    """kubectl apply drops nulls before it sends."""
    limits = merged_main(resources={"limits": {"$patch": "replace", "memory": "4Gi"}})["resources"]["limits"]
    assert limits == {"memory": "4Gi"}
    assert merged_main(resources={"limits": {"cpu": None}})["resources"]["limits"] == {"cpu": "2", "memory": "1Gi"}
    assert merged(tolerations=None)["tolerations"] == [{"key": "a"}]


@pytest.mark.parametrize(
    "spec",
    [
        {"securityContext": {"$patch": "delete"}},
        {"$setElementOrder/containers": []},
        {"containers": [{"name": "main", "$patch": "replace"}]},
        {"containers": [{"name": "main", "env": [{"name": "X", "$patch": "delete"}]}]},
    ],
)
def test_other_directives_are_refused(spec: JsonObject) -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.templates\.train\.spec.*\$"):
        merged(**spec)


def test_neither_side_is_changed() -> None:
    before = repr(BASE)
    template = {"spec": {"containers": [{"name": "main", "env": [{"name": "X", "value": "2"}]}]}}
    merge_pod_template(BASE, template, "x")
    assert repr(BASE) == before
    assert template == {"spec": {"containers": [{"name": "main", "env": [{"name": "X", "value": "2"}]}]}}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"containers": [{"image": "x"}]}, r"train\.spec\.containers\[0\]: each element needs its name"),
        ({"containers": ["main"]}, r"train\.spec\.containers\[0\]"),
        ({"containers": [{"name": "main", "env": {"X": "1"}}]}, r"containers\[0\]\.env: must be a list"),
        ({"containers": [{"name": "main", "resources": "all"}]}, r"containers\[0\]\.resources: must be a map"),
        ({"volumes": {"a": 1}}, r"train\.spec\.volumes: must be a list"),
    ],
)
def test_values_of_the_wrong_kind_are_named(spec: JsonObject, path: str) -> None:
    with pytest.raises(SpecInvalid, match=path):
        merged(**spec)


def rendered(stage: Stage, key: str, template: JsonObject, **changes: Any) -> list[JsonObject]:
    return pods(render(stage, spec_of(templates={key: template}, **changes)))


def with_main(**fields: Any) -> JsonObject:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


@pytest.mark.parametrize("stage", [Stage.FLOORS, Stage.SEAL, Stage.EVALUATE])
def test_one_template_is_for_all_evaluations_and_one_for_servers(stage: Stage) -> None:
    found = rendered(stage, "evaluate", with_main(env=[{"name": "WHO", "value": "me"}]))
    assert ["WHO" in env(containers(pod)["main"]) for pod in found][-1] is True
    assert not any("WHO" in env(containers(pod)["main"]) for pod in found[:-1])
    found = rendered(stage, "serve", with_main(env=[{"name": "WHO", "value": "me"}]))
    assert all("WHO" in env(containers(pod)["main"]) for pod in found[:-1])
    assert "WHO" not in env(containers(found[-1])["main"])


def test_labels_and_annotations_are_added() -> None:
    template = {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}}
    [pod] = rendered(Stage.TRAIN, "train", template)
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"]["curateevo.io/stage"] == "train"
    assert set(pod["metadata"]["annotations"]) == {"note", "curateevo.io/request"}


@pytest.mark.parametrize(
    ("given", "requests", "limits"),
    [
        ({"requests": {"memory": "200Gi"}}, "200Gi", "200Gi"),
        ({"limits": {"memory": "256Mi"}}, "256Mi", "256Mi"),
        ({"limits": {"memory": "256Gi"}}, "2Gi", "256Gi"),
        ({"requests": {"memory": "3Gi"}}, "3Gi", "32Gi"),
        ({"requests": {"memory": 5 * 2**40}}, 5 * 2**40, 5 * 2**40),
        ({"requests": {"memory": "8Gi"}, "limits": {"memory": "4Gi"}}, "8Gi", "4Gi"),
    ],
)
def test_our_defaults_make_room_for_what_is_given(given: JsonObject, requests: Any, limits: Any) -> None:
    [pod] = rendered(Stage.TRAIN, "train", with_main(resources=given))
    found = containers(pod)["main"]["resources"]
    assert (found["requests"]["memory"], found["limits"]["memory"]) == (requests, limits)


REFUSED_ANYWHERE: list[tuple[JsonObject, str]] = [
    ({"kind": "Pod"}, r"spec\.templates\.KEY\.kind"),
    ({"metadata": []}, r"KEY\.metadata: must be a map"),
    ({"metadata": {"$patch": "replace"}}, r"KEY\.metadata\.\$patch"),
    ({"metadata": {"labels": "x"}}, r"KEY\.metadata\.labels: must be a map"),
    ({"metadata": {"labels": {"$patch": "replace"}}}, r"KEY\.metadata\.labels\[\$patch\]"),
    ({"metadata": {"name": "x"}}, r"KEY\.metadata\.name"),
    ({"metadata": {"labels": {"curateevo.io/evolution-uid": "x"}}}, r"labels\[curateevo\.io/evolution-uid\]"),
    ({"metadata": {"labels": {"app.kubernetes.io/component": "x"}}}, r"labels\[app\.kubernetes\.io/component\]"),
    ({"metadata": {"annotations": {"curateevo.io/request": "{}"}}}, r"annotations\[curateevo\.io/request\]"),
    ({"spec": "x"}, r"KEY\.spec: must be a map"),
    ({"spec": {"$patch": "replace"}}, r"KEY\.spec\.\$patch"),
    ({"spec": {"restartPolicy": "OnFailure"}}, r"KEY\.spec\.restartPolicy"),
    ({"spec": {"volumes": "x"}}, r"KEY\.spec\.volumes: must be a list"),
    ({"spec": {"containers": {}}}, r"KEY\.spec\.containers: must be a list"),
    ({"spec": {"volumes": [{"name": "request", "emptyDir": {}}]}}, r"KEY\.spec\.volumes\[0\]: request"),
    (with_main(volumeMounts=[{"name": "x", "mountPath": "/etc/curateevo"}]), r"containers\[0\]\.volumeMounts\[0\]"),
    (with_main(volumeMounts=[{"name": "x", "mountPath": "/etc/curateevo/request.json"}]), r"volumeMounts\[0\]"),
    (with_main(volumeMounts={}), r"containers\[0\]\.volumeMounts: must be a list"),
]


@pytest.mark.parametrize("key", ["train", "curate", "serve"])
@pytest.mark.parametrize(("template", "path"), REFUSED_ANYWHERE)
def test_what_belongs_to_the_operator_is_refused(key: str, template: JsonObject, path: str) -> None:
    stage = Stage.EVALUATE if key == "serve" else Stage(key)
    with pytest.raises(SpecInvalid, match=path.replace("KEY", key)):
        rendered(stage, key, template)


def policy(**fields: Any) -> JsonObject:
    return {"spec": {"initContainers": [{"name": "policy", **fields}]}}


REFUSED_BESIDE_POLICIES: list[tuple[JsonObject, str]] = [
    *(
        (policy(**{field: value}), rf"curate\.spec\.initContainers\[0\]\.{field}")
        for field, value in {
            "env": [{"name": "X", "value": "1"}],
            "envFrom": [{"secretRef": {"name": "s3"}}],
            "command": ["sh"],
            "args": ["x"],
            "volumeMounts": [{"name": "trusted", "mountPath": "/x"}],
            "volumeDevices": [{"name": "x", "devicePath": "/dev/x"}],
            "securityContext": {"privileged": True},
            "restartPolicy": "Always",
            "lifecycle": {},
            "ports": [{"containerPort": 1}],
        }.items()
    ),
    *(
        ({"spec": {field: value}}, rf"curate\.spec\.{field}")
        for field, value in {
            "hostNetwork": True,
            "hostPID": True,
            "hostIPC": True,
            "shareProcessNamespace": True,
            "automountServiceAccountToken": True,
            "enableServiceLinks": True,
            "runtimeClassName": "runc",
            "securityContext": "x",
        }.items()
    ),
    ({"spec": {"securityContext": {"runAsNonRoot": False}}}, r"securityContext\.runAsNonRoot"),
    ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, r"securityContext\.seccompProfile"),
    ({"spec": {"volumes": [{"name": "answers", "emptyDir": {}}]}}, r"volumes\[0\]: answers"),
    ({"spec": {"volumes": [{"name": "visible", "secret": {"secretName": "s3"}}]}}, r"volumes\[0\]: visible"),
    ({"spec": {"volumes": [{"name": "trusted", "emptyDir": {}}]}}, r"volumes\[0\]: trusted"),
    ({"spec": {"volumes": [{"name": "policy-tmp", "hostPath": {"path": "/"}}]}}, r"volumes\[0\]: policy-tmp"),
    ({"spec": {"containers": [{"name": "policy", "image": "x"}]}}, r"containers\[0\]\.name"),
]


@pytest.mark.parametrize(("template", "path"), REFUSED_BESIDE_POLICIES)
def test_the_policys_container_can_not_be_opened(template: JsonObject, path: str) -> None:
    with pytest.raises(SpecInvalid, match=path):
        rendered(Stage.CURATE, "curate", template)


def test_the_policys_image_and_resources_can_be_chosen() -> None:
    template = policy(image="mine:1", imagePullPolicy="Always", resources={"requests": {"cpu": "3"}})
    [pod] = rendered(Stage.CURATE, "curate", template)
    found = containers(pod)["policy"]
    assert (found["image"], found["imagePullPolicy"], found["resources"]["requests"]["cpu"]) == (
        "mine:1",
        "Always",
        "3",
    )
    assert [c["name"] for c in pod["spec"]["initContainers"]] == ["fetch", "policy"]


def test_another_user_can_be_chosen_where_a_cluster_assigns_them() -> None:
    """OpenShift gives each namespace a range of uids."""
    [pod] = rendered(Stage.CURATE, "curate", {"spec": {"securityContext": {"$patch": "replace", "fsGroup": 1000}}})
    assert pod["spec"]["securityContext"] == {"fsGroup": 1000}
    assert violations(pod["spec"]) == [], "each container is restricted by itself"


def test_null_changes_nothing() -> None:
    nulls = {"metadata": None, "spec": {"volumes": None, "containers": [{"name": "main", "volumeMounts": None}]}}
    assert rendered(Stage.CURATE, "curate", nulls) == pods(render(Stage.CURATE, spec_of()))


def test_host_networks_are_the_users_choice_where_no_policy_runs() -> None:
    [pod] = rendered(Stage.TRAIN, "train", {"spec": {"hostNetwork": True}})
    assert pod["spec"]["hostNetwork"] is True
