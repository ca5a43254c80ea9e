"""The clusters that tests run on are what they are taken for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest

from tests.cluster import harness
from tests.cluster.harness import BUCKET, Cluster, ClusterError

IMAGES = ("operator", "jobs", "sandbox")
SOMEBODY = 54321
"""A user id that no image knows."""
WAIT_SECONDS = 180.0


def pod(image: str, *command: str, uid: int = SOMEBODY, **more: Any) -> dict[str, Any]:
    """A pod's spec that Pod Security's `restricted` accepts, with a read-only root, /tmp excepted."""
    container = {
        "name": "main",
        "image": f"localhost/curateevo-{image}:test",
        "imagePullPolicy": "Never",
        "command": list(command),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": uid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container | more],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }


def job(name: str, spec: dict[str, Any], labels: dict[str, str] | None = None) -> dict[str, Any]:
    template = {"metadata": {"labels": labels or {}}, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": template},
    }


def run(cluster: Cluster, namespace: str, name: str, spec: dict[str, Any], labels: dict[str, str] | None = None) -> str:
    """Run a Job to its end; what it printed. Raises ClusterError with that when it failed."""
    cluster.apply(job(name, spec, labels), namespace=namespace)

    def ended() -> str | None:
        conditions = cluster.get("job", name, namespace)["status"].get("conditions", ())
        return next((c["type"] for c in conditions if c["type"] in ("Complete", "Failed")), None)

    try:
        end = cluster.wait(ended, seconds=WAIT_SECONDS)
    except ClusterError as error:
        raise AssertionError(f"{error}\n{cluster.kubectl('describe', 'pods', '-n', namespace)}") from error
    said = cluster.kubectl("logs", f"job/{name}", "-n", namespace)
    if end == "Failed":
        raise ClusterError(said)
    return said


# ---- the control plane


@pytest.mark.cluster
def test_the_api_server_is_ready_and_knows_the_custom_resources(control_plane: Cluster) -> None:
    assert control_plane.kubectl("get", "--raw", "/readyz") == "ok"
    fields = control_plane.kubectl("explain", "curationevolution.spec", "--recursive")
    assert {"corpus", "sources", "evaluation", "storage"} <= {
        line.split("\t")[0].strip() for line in fields.splitlines()
    }
    for how in ([], ["--server-side", "--force-conflicts"]):
        control_plane.kubectl("apply", *how, "-f", harness.ROOT / "crds")


@pytest.mark.cluster
def test_being_inside_ends_with_the_block(control_plane: Cluster) -> None:
    own = Path("/proc/thread-self/ns/net").readlink()
    with control_plane.inside():
        assert Path("/proc/thread-self/ns/net").readlink() != own
    assert Path("/proc/thread-self/ns/net").readlink() == own
    with pytest.raises(ZeroDivisionError), control_plane.inside():
        _ = 1 // 0
    assert Path("/proc/thread-self/ns/net").readlink() == own
    theirs = control_plane.run(["readlink", "/proc/self/ns/net"]).stdout.strip()
    assert theirs != str(own)


@pytest.mark.cluster
def test_s3_lets_one_writer_win_and_refuses_wrong_keys(control_plane: Cluster) -> None:
    with control_plane.inside():
        s3 = control_plane.s3()
        s3.put_object(Bucket=BUCKET, Key="harness/once", Body=b"first", IfNoneMatch="*")
        with pytest.raises(botocore.exceptions.ClientError, match="PreconditionFailed"):
            s3.put_object(Bucket=BUCKET, Key="harness/once", Body=b"second", IfNoneMatch="*")
        assert s3.get_object(Bucket=BUCKET, Key="harness/once")["Body"].read() == b"first"
        keys = control_plane.s3_keys
        control_plane.s3_keys = keys | {"AWS_SECRET_ACCESS_KEY": "wrong"}
        try:
            with pytest.raises(botocore.exceptions.ClientError, match="SignatureDoesNotMatch"):
                control_plane.s3().list_objects_v2(Bucket=BUCKET)
        finally:
            control_plane.s3_keys = keys
    assert (control_plane.s3_folder / BUCKET / "harness/once").read_bytes() == b"first"


@pytest.mark.cluster
def test_a_restricted_namespace_refuses_what_may_do_more(control_plane: Cluster, namespace: Callable[[], str]) -> None:
    name = namespace()
    bare = {"containers": [{"name": "main", "image": "any"}]}
    wide = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wide"}, "spec": bare}
    with pytest.raises(ClusterError, match='violates PodSecurity "restricted'):
        control_plane.apply(wide, namespace=name)
    narrow = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "narrow"}, "spec": pod("jobs", "true")}
    control_plane.apply(narrow, namespace=name)
    assert control_plane.get("pod", "narrow", name)["status"]["phase"] == "Pending"


@pytest.mark.cluster
def test_the_api_server_may_be_away_for_a_while(control_plane: Cluster, namespace: Callable[[], str]) -> None:
    name = namespace()
    with control_plane.without("kube-apiserver"), pytest.raises(ClusterError, match="refused"):
        control_plane.kubectl("get", "namespace", name)
    assert name in control_plane.kubectl("get", "namespace", name)


@pytest.mark.cluster
def test_nothing_is_left_of_a_cluster_that_crashed() -> None:
    with harness.folder("crash") as folder:
        cluster = harness.start(folder, node=False)
        for name in ("etcd", "kube-apiserver"):
            cluster.component("kill", name)
        left = cluster.popen(["sleep", "600"])
        pids = [int(file.read_text().split()[0]) for file in folder.glob("run/*.pid")]
        assert len(pids) == 5
    left.wait(timeout=10)
    assert not folder.exists() and not cluster.network.exists()
    deadline = time.monotonic() + 10
    while alive := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- a node


@pytest.mark.node
def test_jobs_run_as_anybody_with_a_read_only_root(node: Cluster, node_namespace: Callable[[], str]) -> None:
    script = (
        "import os, getpass, pathlib, torch, transformers, trl, curateevo_jobs\n"
        "pathlib.Path.home().joinpath('x').write_text('mine')\n"
        "try: open('/opt/curateevo/x', 'w')\n"
        "except OSError as error: print('root:', error.strerror)\n"
        "print(os.getuid(), getpass.getuser(), torch.ones(2, 2).sum().item())\n"
    )
    said = run(node, node_namespace(), "torch", pod("jobs", "python", "-c", script))
    assert said.splitlines()[-2:] == ["root: Read-only file system", f"{SOMEBODY} curateevo 4.0"], said


@pytest.mark.node
def test_each_image_holds_what_it_is_for_and_nothing_else(node: Cluster, node_namespace: Callable[[], str]) -> None:
    name = node_namespace()
    there = {
        "operator": "curateevo.evolution.plan_evolution, curateevo_operator, kopf, kubernetes.aio",
        "sandbox": "curateevo.policy.contained, curateevo.policy.child, sandlock, pyseccomp",
        "jobs": "curateevo_jobs.curate, curateevo_jobs.train, curateevo.policy.gate, vllm, openai",
    }
    absent = {
        "operator": {"torch", "curateevo_jobs", "pip"},
        "sandbox": {"torch", "boto3", "kubernetes", "curateevo_jobs", "curateevo_operator", "pip"},
        "jobs": {"kopf", "curateevo_operator", "pytest", "pip"},
    }
    for image in IMAGES:
        script = (
            f"import {there[image]}\n"
            "import importlib.util, shutil\n"
            f"print({{n for n in {sorted(absent[image])} if importlib.util.find_spec(n)}}, shutil.which('gcc'))\n"
        )
        said = run(node, name, image, pod(image, "python", "-I", "-c", script))
        assert said.splitlines()[-1] == "set() None"


@pytest.mark.node
def test_vllm_serves_a_model_in_a_restricted_pod(node: Cluster, node_namespace: Callable[[], str]) -> None:
    script = (
        "import json, pathlib, urllib.request, curateevo_jobs.benchmarks as b\n"
        "from curateevo_jobs.agents.vllm import serve\n"
        "base = pathlib.Path(b.__path__[0]) / 'toolworld/base'\n"
        "options = dict(arguments=['--max-model-len', '512'], chat_template=None, start_seconds=150)\n"
        "with serve(base, scratch=pathlib.Path('/tmp'), **options) as server:\n"
        "    asked = {'model': server.model, 'messages': [{'role': 'user', 'content': 'hello'}], 'max_tokens': 5}\n"
        "    request = urllib.request.Request(server.base_url + '/chat/completions', json.dumps(asked).encode(),\n"
        "        {'Content-Type': 'application/json'})\n"
        "    print(json.load(urllib.request.urlopen(request, timeout=60))['usage']['completion_tokens'])\n"
    )
    spec = pod("jobs", "python", "-c", script)
    spec["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    spec["containers"][0]["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
    said = run(node, node_namespace(), "vllm", spec)
    assert 1 <= int(said.splitlines()[-1]) <= 5, said


@pytest.mark.node
def test_a_pod_reaches_s3_on_the_nodes_address(node: Cluster, node_namespace: Callable[[], str]) -> None:
    script = (
        "import boto3\n"
        "s3 = boto3.client('s3')\n"
        f"s3.put_object(Bucket='{BUCKET}', Key='from/a/pod', Body=b'hello')\n"
        f"print(s3.get_object(Bucket='{BUCKET}', Key='from/a/pod')['Body'].read().decode())\n"
    )
    keys = {**node.s3_keys, "AWS_ENDPOINT_URL": node.s3_endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    env = [{"name": key, "value": value} for key, value in keys.items()]
    assert run(node, node_namespace(), "s3", pod("operator", "python", "-c", script, env=env)) == "hello\n"
    assert (node.s3_folder / BUCKET / "from/a/pod").read_bytes() == b"hello"


@pytest.mark.node
def test_services_have_names_and_network_policies_hold(node: Cluster, node_namespace: Callable[[], str]) -> None:
    name = node_namespace()
    ready = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    serve = pod("sandbox", "python", "-m", "http.server", "8000", "--directory", "/opt/curateevo", readinessProbe=ready)
    node.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}}, "spec": serve},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "friends-only"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "web"}},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}],
            },
        },
        namespace=name,
    )
    node.kubectl("wait", "--for=condition=Ready", "pod/web", "-n", name, "--timeout=60s", timeout=90)
    # The policy is in force some time after it was made; a name is known some time after its Service.
    script = (
        "import sys, time, urllib.request\n"
        "wanted, end = sys.argv[1], time.monotonic() + 60\n"
        "while True:\n"
        "    try: found = str(urllib.request.urlopen('http://web/', timeout=3).status)\n"
        "    except OSError as error: found = str(error)\n"
        "    if wanted in found or time.monotonic() > end: break\n"
        "    time.sleep(0.5)\n"
        "print(found)\n"
    )
    friend, stranger = ("python", "-c", script, "200"), ("python", "-c", script, "refused")
    assert run(node, name, "friend", pod("sandbox", *friend), {"app": "friend"}) == "200\n"
    assert "refused" in run(node, name, "stranger", pod("sandbox", *stranger), {"app": "stranger"})


@pytest.mark.node
def test_what_a_failed_job_leaves_can_be_read(node: Cluster, node_namespace: Callable[[], str]) -> None:
    name = node_namespace()
    script = "open('/dev/termination-log', 'w').write('said at the end'); raise SystemExit(65)"
    with pytest.raises(ClusterError):
        run(node, name, "fails", pod("sandbox", "python", "-c", script))
    pods = json.loads(node.kubectl("get", "pods", "-n", name, "-o", "json"))["items"]
    ended = pods[0]["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (65, "said at the end")
