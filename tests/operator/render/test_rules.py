"""Rules that hold for everything that is rendered, whatever the spec."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest

from curateevo.api.base import JsonObject
from curateevo.api.errors import SpecInvalid
from curateevo.api.evolution import Stage
from curateevo.api.stage import StageRequest
from curateevo_operator.render import labels
from curateevo_operator.render.attempt import MAX_REQUEST_BYTES, SLACK_SECONDS
from tests.operator.render.cases import (
    NAMES,
    SETTINGS,
    SPECS,
    UID,
    containers,
    env,
    everything,
    pod_of,
    pods,
    render,
    request_of,
    spec_of,
)
from tests.operator.render.restricted import violations

KUBERNETES = "1.37"
RENDERED = everything()
ALL = [(name, m) for name, manifests in RENDERED.items() for m in manifests]
PODS = [(name, pod) for name, manifests in RENDERED.items() for pod in pods(manifests)]
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
STORE_KEYS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
USERS_OWN = "prepare"
"""A container that only a template knows."""
KEYS = {*STORE_KEYS, "HF_TOKEN", "CURATEEVO_LLM_API_KEY", "CURATEEVO_REWRITE_API_KEY"}
POLICIES = {"policy": "answers", "policy-again": "answers-again"}


def ids(values: list[tuple[str, JsonObject]]) -> list[str]:
    return [name for name, _ in values]


def test_every_object_is_valid_for_kubernetes() -> None:
    seen = set()
    for _, manifest in ALL:
        seen.add(manifest["kind"])
        if manifest["apiVersion"].startswith("trainer.kubeflow.org"):
            pod = pod_of(manifest)
            if pod is not None:
                manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod}}
        if manifest["kind"] != "TrainJob":
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    assert seen == {"Job", "Service", "NetworkPolicy", "TrainJob", "TrainingRuntime", "PersistentVolumeClaim"}


@pytest.mark.parametrize(("name", "pod"), PODS, ids=ids(PODS))
def test_every_pod_passes_restricted(name: str, pod: JsonObject) -> None:
    assert violations(pod["spec"]) == []


def test_the_checker_finds_what_breaks_restricted() -> None:
    [pod] = pods(render(Stage.INGEST, spec_of()))
    spec = pod["spec"]
    main = spec["containers"][0]
    broken: list[JsonObject] = [
        {**spec, "hostNetwork": True},
        {**spec, "volumes": [{"name": "x", "hostPath": {"path": "/"}}]},
        *(
            {**spec, "containers": [{**main, "securityContext": {**main["securityContext"], **change}}]}
            for change in (
                {"privileged": True},
                {"allowPrivilegeEscalation": True},
                {"capabilities": {"drop": ["NET_RAW"]}},
                {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}},
                {"runAsNonRoot": False},
                {"runAsUser": 0},
                {"seccompProfile": {"type": "Unconfined"}},
            )
        ),
    ]
    assert all(len(violations(b)) == 1 for b in broken)


def test_every_container_is_hardened_beyond_restricted() -> None:
    for _, pod in PODS:
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["enableServiceLinks"] is False
        assert pod["spec"]["restartPolicy"] == "Never"
        for container in containers(pod).values():
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert env(container)["HOME"] == "/tmp"
            mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
            assert not mounts["/tmp"].get("readOnly")
            assert container["terminationMessagePolicy"] == "File"


def test_a_container_mounts_what_the_pod_has_and_every_volume_is_used() -> None:
    for name, pod in PODS:
        volumes = [v["name"] for v in pod["spec"]["volumes"]]
        mounted = {m["name"] for c in containers(pod).values() for m in c["volumeMounts"]}
        assert len(volumes) == len(set(volumes))
        assert mounted == set(volumes), name


def test_resources_are_always_given_and_requests_are_within_limits() -> None:
    for name, pod in PODS:
        for container in containers(pod).values():
            resources = container["resources"]
            assert set(resources["requests"]) >= {"cpu", "memory"}, name
            if name not in ("templates/train", "train-job/train"):
                assert set(resources["limits"]) >= {"cpu", "memory"}, name


def test_names_are_dns_labels() -> None:
    for _, manifest in ALL:
        assert DNS_LABEL.fullmatch(manifest["metadata"]["name"])
        for value in manifest["metadata"]["labels"].values():
            assert LABEL_VALUE.fullmatch(value)


def test_services_begin_with_a_letter_where_evolutions_do_not() -> None:
    for manifest in render(Stage.EVALUATE, spec_of(), "2nd-try"):
        if manifest["kind"] == "Service":
            assert DNS_LABEL.fullmatch(manifest["metadata"]["name"])


def test_a_name_that_is_no_label_value_is_refused() -> None:
    with pytest.raises(SpecInvalid, match="metadata.name"):
        render(Stage.INGEST, spec_of(), "x" * 64)


def test_everything_is_labelled_and_owned() -> None:
    for name, manifest in ALL:
        metadata = manifest["metadata"]
        found = metadata["labels"]
        assert found[labels.EVOLUTION_UID] == UID
        assert found[labels.EVOLUTION] == NAMES.get(name.split("/")[0], "airline")
        assert found[labels.MANAGED_BY] == "curateevo-operator"
        assert found[labels.NAME] == "curateevo"
        [owner] = metadata["ownerReferences"]
        assert owner["controller"] is True
        assert metadata["namespace"] == "agents"
    selected = dict(pair.split("=") for pair in labels.selector(UID).split(","))
    assert all(selected.items() <= m["metadata"]["labels"].items() for _, m in ALL)


@pytest.mark.parametrize("name", [n for n in RENDERED if not n.endswith("/network")])
def test_the_main_job_comes_last_and_names_the_group(name: str) -> None:
    manifests = RENDERED[name]
    main = manifests[-1]
    assert main["kind"] == ("TrainJob" if name == "train-job/train" else "Job")
    assert main["metadata"]["labels"][labels.ROLE] == "main"
    assert {m["metadata"]["labels"][labels.JOB] for m in manifests} == {main["metadata"]["name"]}
    assert all(m["metadata"]["labels"][labels.ROLE] in ("serve", "runtime", "step") for m in manifests[:-1])
    assert len({(m["kind"], m["metadata"]["name"]) for m in manifests}) == len(manifests)
    for manifest in manifests:
        if manifest["kind"] == "Job":
            pod = manifest["spec"]["template"]["metadata"]["labels"]
            assert pod.items() <= {**manifest["metadata"]["labels"], **pod}.items()
            assert pod[labels.JOB] == main["metadata"]["name"]


def test_attempts_are_counted_by_the_operator_alone() -> None:
    for _, manifest in ALL:
        if manifest["kind"] == "Job":
            spec = manifest["spec"]
            assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (0, "Failed")
            for rule in spec.get("podFailurePolicy", {}).get("rules", ()):
                assert rule["action"] == "Ignore"
                assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_an_evicted_pod_comes_back_but_that_of_an_evaluator_whose_first_servers_have_ended() -> None:
    for case, manifests in RENDERED.items():
        jobs = [m for m in manifests if m["kind"] == "Job"]
        servers = [m for m in jobs if m["metadata"]["labels"][labels.ROLE] == labels.SERVE]
        for job in jobs:
            comes_back = job in servers or len(servers) < 2
            assert ("podFailurePolicy" in job["spec"]) is comes_back, (case, job["metadata"]["name"])


def test_the_request_travels_whole_in_the_pod() -> None:
    for stage in Stage:
        spec = SPECS["hub-on-aws"]
        for pod in pods(render(stage, spec)):
            text = pod["metadata"]["annotations"][labels.REQUEST]
            assert StageRequest.model_validate_json(text) == request_of(stage, spec)
            for name, container in containers(pod).items():
                mounted = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "request"]
                assert mounted == ([] if name == "policy" else ["/etc/curateevo"])
                if name != "policy":
                    assert "/etc/curateevo/request.json" in container["command"]
    [volume] = [v for v in pod["spec"]["volumes"] if v["name"] == "request"]
    [item] = volume["downwardAPI"]["items"]
    assert item == {"path": "request.json", "fieldRef": {"fieldPath": "metadata.annotations['curateevo.io/request']"}}


def test_a_request_that_is_too_large_is_refused_with_what_to_do() -> None:
    long = spec_of(training={"sft": {"args": {"text": "x" * MAX_REQUEST_BYTES}}})
    with pytest.raises(SpecInvalid, match="200 fit") as caught:
        render(Stage.TRAIN, long)
    assert "chatTemplate" in caught.value.hint


@pytest.mark.parametrize("name", SPECS)
def test_keys_reach_those_alone_that_need_them(name: str) -> None:
    spec = SPECS[name]
    called = NAMES.get(name, "airline")
    with_store = spec.storage.secret_ref is not None
    hub = spec.model.token_secret_ref is not None
    for stage in Stage:
        for pod in pods(render(stage, spec, called)):
            serving = pod["metadata"]["labels"][labels.ROLE] == "serve"
            for container, made in containers(pod).items():
                found = set(env(made)) & KEYS
                trusted = container not in (*POLICIES, USERS_OWN) and not (serving and container == "main")
                assert (found >= STORE_KEYS) == (trusted and with_store)
                assert ("CURATEEVO_LLM_API_KEY" in found) == (stage is Stage.PROPOSE and name in ("llm", "agent"))
                assert ("CURATEEVO_REWRITE_API_KEY" in found) == (container == "fulfil")
                downloads = stage is Stage.TRAIN or (stage is Stage.INGEST and spec.corpus.grace)
                downloads = downloads or (stage is Stage.FLOORS and serving and container == "fetch")
                assert ("HF_TOKEN" in found) == (hub and downloads)


def test_no_secret_is_written_out_and_none_is_mounted() -> None:
    for _, pod in PODS:
        for container in containers(pod).values():
            for name, value in env(container).items():
                assert (name in KEYS) <= isinstance(value, dict)
            assert not container.get("envFrom")
        assert not any("secret" in v or "projected" in v for v in pod["spec"]["volumes"])


def test_the_policys_container_has_nothing_to_steal() -> None:
    for name in SPECS:
        made = pods(render(Stage.CURATE, SPECS[name], NAMES.get(name, "airline")))
        found = {n: c for pod in made for n, c in containers(pod).items()}
        assert ("policy-again" in found) == ("fulfil" in found) == (name == "augmentation")
        for policy in (found[n] for n in POLICIES if n in found):
            assert env(policy) == {"HOME": "/tmp"}
            assert "envFrom" not in policy
            assert policy["image"] == "registry/sandbox:1"
            mounts = {m["mountPath"]: m for m in policy["volumeMounts"]}
            own = f"/work/{POLICIES[policy['name']]}"
            assert set(mounts) == {"/tmp", "/work/visible", own}
            assert mounts["/work/visible"]["readOnly"] is True
            others = (c for n, c in found.items() if n not in (policy["name"], USERS_OWN))
            assert not writable(policy) & set().union(*map(writable, others))
            readable = {(m["name"], m.get("subPath")) for m in policy["volumeMounts"]}
            trusted = {m["mountPath"]: m for m in found["fetch"]["volumeMounts"]}["/work/trusted"]
            assert (trusted["name"], trusted.get("subPath")) not in readable
            answers = {m["mountPath"]: m for m in found["main"]["volumeMounts"]}[own]
            assert answers["readOnly"] is True


def writable(container: JsonObject) -> set[tuple[str, str | None]]:
    """Volumes, or parts of them, that a container may write to."""
    return {(m["name"], m.get("subPath")) for m in container["volumeMounts"] if not m.get("readOnly")}


def test_the_steps_of_a_curate_pod_run_in_order() -> None:
    for name in ("minimal", "templates", "gvisor"):
        [pod] = pods(render(Stage.CURATE, SPECS[name]))
        assert [c["name"] for c in pod["spec"]["initContainers"]] == ["fetch", "policy"]
        assert "--wait" not in [word for c in containers(pod).values() for word in c["command"]]


def test_with_augmentation_the_policy_runs_again_after_the_model_was_asked() -> None:
    [pod] = pods(render(Stage.CURATE, SPECS["augmentation"]))
    assert [c["name"] for c in pod["spec"]["initContainers"]] == ["fetch", "policy", "fulfil", "policy-again"]
    found = containers(pod)
    assert ["--again" in found[name]["command"] for name in POLICIES] == [False, True]
    assert pod["metadata"]["annotations"]["eks.amazonaws.com/skip-containers"] == "policy,policy-again"
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in found["fulfil"]["volumeMounts"]}
    assert (mounts["/work/visible"], mounts["/work/trusted"], mounts["/work/answers"]) == (False, False, True)


def test_a_policy_in_a_pod_of_its_own_is_alone_there() -> None:
    claim, fetch, policy, main = render(Stage.CURATE, SPECS["pod"])
    assert [m["kind"] for m in (claim, fetch, policy, main)] == ["PersistentVolumeClaim", "Job", "Job", "Job"]
    assert [list(containers(p)) for p in pods((fetch, policy, main))] == [["prepare", "fetch"], ["policy"], ["main"]]
    names = [m["metadata"]["name"] for m in (claim, fetch, policy, main)]
    assert names == [f"airline-v1-curate-a2{end}" for end in ("-work", "-fetch", "-policy", "")]
    assert [m["metadata"]["labels"][labels.ROLE] for m in (claim, fetch, policy, main)] == ["step"] * 3 + ["main"]
    [pod] = pods((policy,))
    assert pod["metadata"]["labels"][labels.COMPONENT] == policy["metadata"]["labels"][labels.COMPONENT] == "policy"
    assert labels.REQUEST not in pod["metadata"]["annotations"]
    assert "serviceAccountName" not in pod["spec"]
    assert {v["name"] for v in pod["spec"]["volumes"]} == {"policy-tmp", "work"}
    [other, _] = pods((fetch, main))
    assert other["spec"]["serviceAccountName"] == "store-reader"
    for made in pods((fetch, policy, main)):
        assert made["spec"]["runtimeClassName"] == "gvisor"
        assert made["spec"]["nodeSelector"] == {"pool": "untrusted"}
        claims = [v["persistentVolumeClaim"] for v in made["spec"]["volumes"] if v["name"] == "work"]
        assert claims == [{"claimName": claim["metadata"]["name"]}]


def test_steps_in_pods_of_their_own_follow_the_last_one_to_its_node_and_wait() -> None:
    _, fetch, policy, main = render(Stage.CURATE, SPECS["pod"])
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    [main_pod] = pods((main,))
    for pod in pods((fetch, policy)):
        theirs, ours = pod["spec"]["affinity"]["podAffinity"][required]
        assert theirs["topologyKey"] == "zone"
        assert ours["topologyKey"] == "kubernetes.io/hostname"
        assert ours["labelSelector"]["matchLabels"].items() <= main_pod["metadata"]["labels"].items()
        assert not ours["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert len(main_pod["spec"]["affinity"]["podAffinity"][required]) == 1
    for pod in pods((policy, main)):
        command = pod["spec"]["containers"][0]["command"]
        assert command[command.index("--wait") + 1] == "110"


def test_the_claim_has_room_and_its_class_can_be_chosen() -> None:
    settings = dataclasses.replace(SETTINGS, work_storage_class="fast")
    claim = render(Stage.CURATE, SPECS["pod"], settings=settings)[0]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == "1025Mi"
    assert "storageClassName" not in render(Stage.CURATE, SPECS["pod"])[0]["spec"]


def test_the_policys_limits_are_the_sandboxs_with_room_for_the_corpus() -> None:
    [pod] = pods(render(Stage.CURATE, spec_of(sandbox={"memory": "2Gi", "cpu": "200m"})))
    resources = containers(pod)["policy"]["resources"]
    assert resources["limits"]["cpu"] == "200m"
    assert resources["requests"]["cpu"] == "200m"
    memory = int(resources["limits"]["memory"].removesuffix("Mi"))
    assert 3 * 1024 < memory < 4 * 1024
    [gvisor] = pods(render(Stage.CURATE, SPECS["gvisor"]))
    assert gvisor["spec"]["runtimeClassName"] == "gvisor"


def test_images_by_what_runs() -> None:
    expected = {
        Stage.INGEST: {"main": "jobs"},
        Stage.PROPOSE: {"main": "jobs"},
        Stage.CURATE: {"fetch": "jobs", "policy": "sandbox", "main": "jobs"},
        Stage.TRAIN: {"main": "trainer"},
    }
    for stage, images in expected.items():
        [pod] = pods(render(stage, spec_of()))
        assert {n: c["image"] for n, c in containers(pod).items()} == {n: f"registry/{i}:1" for n, i in images.items()}
    server, evaluator = pods(render(Stage.EVALUATE, spec_of()))
    assert {c["image"] for c in containers(server).values()} == {"registry/serve:1"}
    assert containers(evaluator)["main"]["image"] == "registry/jobs:1"
    [alone] = pods(render(Stage.EVALUATE, SPECS["in-process"]))
    assert containers(alone)["main"]["image"] == "registry/trainer:1"


def test_an_evaluator_is_told_where_each_subject_is_served() -> None:
    manifests = render(Stage.SEAL, SPECS["hub-on-aws"])
    told = env(containers(pods(manifests)[-1])["main"])
    endpoints = json.loads(told["CURATEEVO_ENDPOINTS"])
    assert set(endpoints) == {"first-seed-0", "first-seed-1", "last-seed-0", "last-seed-1"}
    services = {m["metadata"]["name"]: m for m in manifests if m["kind"] == "Service"}
    jobs = {m["metadata"]["name"]: m for m in manifests if m["kind"] == "Job"}
    for subject, url in endpoints.items():
        name = re.fullmatch(r"http://([a-z0-9-]+)\.agents\.svc:8000/v1", url)
        assert name is not None
        selector = services[name[1]]["spec"]["selector"]
        selected = [
            n for n, j in jobs.items() if selector.items() <= j["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert selected == [name[1]], "a Service reaches one server"
        server = containers(jobs[name[1]]["spec"]["template"])
        for container in server.values():
            assert container["command"][container["command"].index("--subject") + 1] == subject
    deadlines = SPECS["hub-on-aws"].deadlines
    wait = deadlines.pending_seconds + deadlines.serve_start_seconds
    assert told["CURATEEVO_SERVE_WAIT_SECONDS"] == str(wait)


def test_floors_serve_the_base_and_nobody_serves_nothing() -> None:
    manifests = render(Stage.FLOORS, spec_of())
    assert [m["kind"] for m in manifests] == ["Service", "Job", "Job"]
    assert len(render(Stage.FLOORS, SPECS["in-process"])) == 1


def test_gpus_of_a_server_are_counted() -> None:
    told = env(containers(pods(render(Stage.SEAL, SPECS["templates"]))[-1])["main"])
    assert told["CURATEEVO_SERVE_GPUS"] == "1"
    assert env(containers(pods(render(Stage.SEAL, spec_of()))[-1])["main"])["CURATEEVO_SERVE_GPUS"] == "0"


def test_a_server_frees_its_gpu_though_nobody_watches() -> None:
    spec = spec_of(deadlines={"serveStartSeconds": 302, "evaluateSeconds": 100, "pendingSeconds": 50})
    for manifest in render(Stage.EVALUATE, spec):
        if manifest["kind"] == "Job":
            assert manifest["spec"]["activeDeadlineSeconds"] == 302 + 100 + 50 + SLACK_SECONDS
    [server] = pods(render(Stage.EVALUATE, spec)[:-1])
    main = containers(server)["main"]
    probe = main["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] in range(302, 308)
    assert main["readinessProbe"]["httpGet"]["port"] == main["ports"][0]["containerPort"] == 8000


@pytest.mark.parametrize(
    ("stage", "field"),
    [
        (Stage.INGEST, "ingestSeconds"),
        (Stage.CURATE, "curateSeconds"),
        (Stage.TRAIN, "trainSeconds"),
        (Stage.PROPOSE, "proposeSeconds"),
    ],
)
def test_a_job_ends_itself_after_its_stages_deadline(stage: Stage, field: str) -> None:
    [job] = render(stage, spec_of(deadlines={field: 77, "pendingSeconds": 11}))
    assert job["spec"]["activeDeadlineSeconds"] == 77 + 11 + SLACK_SECONDS


def test_queues() -> None:
    for stage in Stage:
        for manifest in render(stage, SPECS["queue"]):
            found = manifest["metadata"]["labels"]
            if manifest["kind"] == "Job":
                assert manifest["spec"]["suspend"] is True
                assert found["kueue.x-k8s.io/queue-name"] == "gpus"
                assert found["kueue.x-k8s.io/priority-class"] == "low"
        for manifest in render(stage, spec_of(queue={"priorityClassName": "low"})):
            assert "suspend" not in manifest["spec"]
            assert not any(key.startswith("kueue") for key in manifest["metadata"]["labels"])


def test_base_models_of_claims_are_only_read() -> None:
    for stage in (Stage.TRAIN, Stage.FLOORS):
        mounts = [
            m
            for pod in pods(render(stage, SPECS["claim"]))
            for c in containers(pod).values()
            for m in c["volumeMounts"]
            if m["mountPath"] == "/mnt/claims/models"
        ]
        assert len(mounts) == (1 if stage is Stage.TRAIN else 3), "the fetch, the server, and the evaluator"
        assert all(m["readOnly"] for m in mounts)
    with pytest.raises(SpecInvalid, match="names no claim"):
        render(Stage.TRAIN, spec_of(model={"base": "pvc:///qwen"}))


def test_a_directory_is_no_store_for_pods() -> None:
    with pytest.raises(SpecInvalid, match="spec.storage.uri"):
        render(Stage.INGEST, spec_of(storage={"uri": "file:///data"}))


def test_rendering_is_deterministic_and_its_values_are_plain() -> None:
    again = everything()
    assert again == RENDERED
    assert json.loads(json.dumps(again)) == {name: list(manifests) for name, manifests in again.items()}
    assert not any(value is None for _, manifest in ALL for value in leaves(manifest))


def test_what_was_rendered_can_be_changed() -> None:
    [job] = render(Stage.TRAIN, spec_of())
    for volume in job["spec"]["template"]["spec"]["volumes"]:
        volume.get("emptyDir", {})["sizeLimit"] = "1"
    assert render(Stage.TRAIN, spec_of()) == RENDERED["minimal/train"]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value
