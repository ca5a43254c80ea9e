"""Evolutions on a real control plane: the same end whatever is killed, deleted, suspended or taken away meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import ROOT, Cluster
from tests.cluster.story import Object, Story, until

pytestmark = pytest.mark.cluster
SCRIPT: Object = {"p": {0: 0.2, 1: 0.5, 2: 0.48, 3: 0.2, 4: 0.57}}
S3_AWAY_SECONDS = float(os.environ.get("CURATEEVO_TEST_S3_AWAY", "30"))
END = {0: "Committed", 1: "Committed", 2: "Reverted"}


@pytest.fixture
def story(control_plane: Cluster, namespace: Callable[[], str], tmp_path: Path) -> Iterator[Story]:
    story = Story(control_plane, namespace(), tmp_path)
    yield story
    for name in story.names("ce"):  # nobody is left to do it
        story.kubectl("patch", "ce", name, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')


def verdicts(story: Story, name: str = "evo") -> dict[int, str]:
    found = story.outcome(name)["versions"]
    return {n: v["verdict"] for n, v in sorted(found.items())}


def check_store(story: Story, name: str = "evo") -> None:
    """The ledger in the store, replayed, equals the status."""
    live = story.get(name)
    uid, status = live["metadata"]["uid"], live["status"]
    pointer = story.read(uid, "champion.json")
    assert pointer["number"] == status["champion"]["number"] and pointer["p"] == status["champion"]["p"]
    decided = {n: story.read(uid, f"versions/{n}/decision.json")["verdict"] for n in range(status["decided"] + 1)}
    assert decided == verdicts(story, name)
    committed = [n for n, v in decided.items() if v == "Committed"]
    assert pointer["number"] == max(committed)


def told(story: Story) -> set[str]:
    """Reasons of the events about evolutions."""
    return {e["reason"] for e in story.items("events") if e["involvedObject"]["kind"] == "CurationEvolution"}


def check_jobs(story: Story) -> None:
    """No attempt was made twice."""
    made = Counter(x["job"] for x in story.finished())
    assert made and max(made.values()) == 1, made


def test_an_evolution_runs_to_its_end_and_reads_as_the_story(story: Story) -> None:
    with story.kubelet(**SCRIPT), story.operator("--list-seconds", "3600"):
        until(lambda: story.http("/readyz")[0] == 200, "the operator to be ready")
        time.sleep(2.0)  # the list is behind it: from now on it knows of the evolution by the watch alone
        story.apply()
        until(lambda: story.names("jobs"), "the first job", 10.0)
        story.kubectl("wait", "--for=condition=Complete", "ce/evo", "--timeout=120s")
        until(
            lambda: {"Proposed", "Committed", "Reverted", "Complete"} <= told(story), "the events, told after the save"
        )
    assert "ERROR" not in (story.folder / "operator.log").read_text()
    assert verdicts(story) == END
    check_store(story)
    check_jobs(story)
    status = story.status()
    assert status["observedGeneration"] == 1 and status["counts"]["committed"] == 2
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Ready": "True", "Reconciling": "False", "Stalled": "False", "Complete": "True", "Failed": "False",
        "Suspended": "False", "CurationComplete": "True", "TrainingComplete": "True", "EvaluationComplete": "True",
        "QuotaReserved": "Unknown", "ArtifactStoreReachable": "True",
    }  # fmt: skip
    table = story.kubectl("get", "ce,pver")
    assert "MaxRounds" in table and "ObjectiveImproved" in table and "WorseThanMargin" in table
    for job in story.items("jobs"):
        assert job["metadata"]["ownerReferences"][0]["kind"] in ("CurationEvolution", "PolicyVersion")


def test_an_operator_killed_after_every_write_comes_to_the_same_end(story: Story) -> None:
    with story.kubelet(**SCRIPT):
        story.apply("calm")
        with story.operator():
            story.wait("Complete", "calm")
        story.apply("crash")
        command = (sys.executable, "-m", "tests.cluster.crashing", f"{story.namespace}/crash")
        with story.process(*command, log="crashing.log") as process:
            assert process.wait(timeout=300) == 0
    died = json.loads((story.folder / "crashing.log").read_text().splitlines()[-1])["died"]
    assert died > 40, "each of some fifty writes of two rounds should have been the last of an operator"
    assert story.outcome("crash") == story.outcome("calm")
    check_store(story, "crash")
    check_jobs(story)


def test_two_operators_at_once_move_the_champion_once_for_each_commit(story: Story) -> None:
    with story.kubelet(**SCRIPT), story.operator(), story.operator(port=8081, log="second.log"):
        story.apply()
        story.wait("Complete")
    assert verdicts(story) == END
    check_store(story)
    check_jobs(story)


def test_a_job_that_finished_and_was_removed_while_no_operator_was_there_is_not_run_again(story: Story) -> None:
    with story.kubelet(delay=3.0, **SCRIPT):
        with story.operator():
            story.apply()
            until(lambda: "evo-v0-train-a1" in story.names("jobs"), "the training to begin")
        until(lambda: any(x["job"] == "evo-v0-train-a1" for x in story.finished()), "the training to end")
        time.sleep(2.0)
        story.kubectl("delete", "job", "evo-v0-train-a1")
        with story.operator():
            story.wait("Complete")
    assert "evo-v0-train-a2" not in {x["job"] for x in story.finished()}
    check_jobs(story)
    check_store(story)


@pytest.mark.parametrize("propagation", ["background", "orphan"])
def test_a_job_deleted_by_hand_is_another_attempt(story: Story, propagation: str) -> None:
    with story.kubelet(**SCRIPT, ends={"train/0/1": "never"}), story.operator():
        story.apply()
        until(lambda: "evo-v0-train-a1" in story.names("jobs"), "the training to begin")
        until(lambda: _stage(story, "evo-v0", "train").get("observed"), "the job to be seen")
        story.kubectl("delete", "job", "evo-v0-train-a1", f"--cascade={propagation}", "--wait=false")
        story.wait("Complete")
    assert _stage(story, "evo-v0", "train")["attempt"] == 2
    assert _stage(story, "evo-v0", "train")["infrastructureFailures"] == 1


def _stage(story: Story, version: str, stage: str) -> Object:
    return dict(((story.get(version, "pver").get("status") or {}).get("stages") or {}).get(stage) or {})


@pytest.mark.parametrize(
    ("ends", "attempts", "end"),
    [
        ({"train/0/1": 75, "train/0/2": 75}, 3, "Complete"),
        ({"train/0/1": 1}, 2, "Complete"),
        ({"train/0/1": 1, "train/0/2": 1}, 2, "Failed"),
        ({"train/0/1": 65}, 1, "Failed"),
        ({"curate/0/1": "Rejected"}, 0, "Failed"),
    ],
)
def test_attempts_follow_the_class_of_failure(story: Story, ends: Object, attempts: int, end: str) -> None:
    with story.kubelet(**SCRIPT, ends=ends), story.operator():
        story.apply(rounds={"max": 0})
        story.wait(end)
    assert _stage(story, "evo-v0", "train").get("attempt", 0) == attempts
    if end == "Failed":
        assert story.status()["reason"] == "BaselineFailed" and story.condition("Stalled")["status"] == "True"


@pytest.mark.parametrize(
    ("stage", "reclaim"),
    [
        ("ingest", "Retain"),
        ("v0-train", "Delete"),
        ("v1-propose", "Retain"),
        ("v1-evaluate", "Delete"),
        ("done", "Retain"),
        ("done", "Delete"),
    ],
)
def test_an_evolution_deleted_in_any_phase_leaves_nothing(story: Story, stage: str, reclaim: str) -> None:
    job = f"evo-{stage}-a1"
    ends = {} if stage == "done" else {_key(stage): "never"}
    with story.kubelet(**SCRIPT, ends=ends), story.operator():
        story.apply(rounds={"max": 1}, reclaimPolicy=reclaim)
        if stage == "done":
            story.wait("Complete")
        else:
            until(lambda: job in story.names("jobs"), f"{job} to begin")
        uid = story.get()["metadata"]["uid"]
        story.kubectl("delete", "ce", "evo", "--timeout=60s")
        until(lambda: not any(story.names(k) for k in ("jobs", "pver", "pods", "netpol", "services")), "all to go")
    assert bool(story.stored(uid)) == (reclaim == "Retain")


def _key(stage: str) -> str:
    version, _, name = stage.rpartition("-")
    return f"{name}/{version.removeprefix('v') or '-'}/1"


def test_an_evolution_deleted_while_no_operator_was_there_is_cleaned_up_by_the_next(story: Story) -> None:
    with story.kubelet(**SCRIPT, ends={"train/0/1": "never"}):
        with story.operator():
            story.apply(reclaimPolicy="Delete")
            until(lambda: "evo-v0-train-a1" in story.names("jobs"), "the training to begin")
            uid = story.get()["metadata"]["uid"]
        story.kubectl("delete", "ce", "evo", "--wait=false")
        assert story.stored(uid)
        with story.operator():
            until(lambda: not story.get(), "the evolution to go")
            until(lambda: not story.names("jobs"), "its jobs to go")
    assert story.stored(uid) == []


@pytest.mark.parametrize("stage", ["ingest", "v0-train", "v1-propose"])
def test_suspension_stops_jobs_and_costs_no_attempt(story: Story, stage: str) -> None:
    job = f"evo-{stage}-a1"
    with story.kubelet(delay=2.0, **SCRIPT), story.operator():
        story.apply(rounds={"max": 1})
        until(lambda: job in story.names("jobs"), f"{job} to begin")
        story.patch({"suspend": True})
        story.wait("Suspended")
        until(lambda: job not in story.names("jobs"), f"{job} to go")
        assert story.condition("Suspended")["status"] == "True"
        story.patch({"suspend": False})
        story.wait("Complete")
    found = story.outcome()
    attempts = [*found["attempts"].values(), *(a for v in found["versions"].values() for a in v["attempts"].values())]
    assert set(attempts) == {1}
    assert story.condition("Suspended")["status"] == "False"


def test_suspended_and_resumed_within_a_second(story: Story) -> None:
    with story.kubelet(delay=1.0, **SCRIPT), story.operator():
        story.apply(rounds={"max": 1})
        until(lambda: "evo-v0-train-a1" in story.names("jobs"), "the training to begin")
        for _ in range(5):
            story.patch({"suspend": True})
            story.patch({"suspend": False})
        story.wait("Complete")
    assert verdicts(story) == {0: "Committed", 1: "Committed"}


def test_stop_now_ends_jobs_and_stop_after_round_ends_the_run(story: Story) -> None:
    with story.kubelet(**SCRIPT, ends={"train/1/1": "never"}), story.operator():
        story.apply()
        until(lambda: "evo-v1-train-a1" in story.names("jobs"), "the training to begin")
        story.patch({"stop": "Now"})
        assert story.wait("Complete")["reason"] == "Stopped"
        until(lambda: "evo-v1-train-a1" not in story.names("jobs"), "the training to go")
    with story.kubelet(delay=1.0, **SCRIPT), story.operator():
        story.apply("round")
        until(lambda: "round-v1-train-a1" in story.names("jobs"), "the training to begin")
        story.patch({"stop": "AfterRound"}, "round")
        assert story.wait("Complete", "round")["decided"] == 1


def test_a_finished_evolution_goes_when_its_time_is_over(story: Story) -> None:
    with story.kubelet(**SCRIPT), story.operator():
        story.apply(rounds={"max": 0}, ttlSecondsAfterFinished=3)
        until(lambda: not story.get() and story.finished(), "the evolution to end and to go")


def test_nothing_is_done_to_a_paused_evolution(story: Story) -> None:
    paused = story.manifest()
    paused["metadata"]["annotations"] = {"curateevo.io/paused": "true"}
    with story.kubelet(**SCRIPT), story.operator():
        story.kubectl("apply", "-f", "-", input=json.dumps(paused))
        time.sleep(3.0)
        assert not story.status() and not story.names("jobs")
        story.kubectl("annotate", "ce", "evo", "curateevo.io/paused-")
        story.wait("Complete")


def test_the_operator_never_touches_spec_or_users_labels_and_a_second_apply_changes_nothing(story: Story) -> None:
    mine = story.manifest(rounds={"max": 1})
    mine["metadata"] |= {"labels": {"argocd.argoproj.io/instance": "app"}, "annotations": {"team": "agents"}}
    with story.kubelet(**SCRIPT), story.operator():
        story.kubectl("apply", "-f", "-", input=json.dumps(mine))
        first = story.get()
        story.wait("Complete")
    last = story.get()
    assert (last["spec"], last["metadata"]["generation"]) == (first["spec"], 1)
    assert last["metadata"]["labels"] == mine["metadata"]["labels"]
    assert last["metadata"]["annotations"].keys() == first["metadata"]["annotations"].keys()
    assert "unchanged" in story.kubectl("apply", "-f", "-", input=json.dumps(mine))
    managers = {m["manager"]: m for m in story.get()["metadata"].get("managedFields", ())}
    assert all("f:spec" not in m.get("fieldsV1", {}) for n, m in managers.items() if n == "curateevo-operator")
    for kind in ("jobs", "pver", "netpol"):
        for child in story.items(kind):
            assert "argocd.argoproj.io/instance" not in child["metadata"]["labels"]


def test_a_name_that_is_taken_is_said_and_the_run_goes_on_when_it_is_free(story: Story) -> None:
    foreign = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "evo-ingest-a1"},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [_container()]}}},
    }  # fmt: skip
    story.kubectl("create", "-f", "-", input=json.dumps(foreign))
    with story.kubelet(**SCRIPT), story.operator():
        story.apply(rounds={"max": 0})
        until(lambda: story.condition("Ready").get("reason") == "AlreadyExists", "the conflict to be said")
        assert "evo-ingest-a1" in story.condition("Ready")["message"]
        story.kubectl("delete", "job", "evo-ingest-a1")
        story.kubectl("annotate", "ce", "evo", "look=again")
        story.wait("Complete")


def _container() -> Object:
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True,
                  "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
    return {"name": "main", "image": "x", "securityContext": restricted}


def test_a_quota_that_is_full_is_said_in_the_job_controllers_words(story: Story) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    story.kubectl("create", "-f", "-", input=json.dumps(quota))
    with story.kubelet(**SCRIPT), story.operator("--resync-seconds", "5"):
        story.apply(rounds={"max": 0})
        until(lambda: "exceeded quota" in story.condition("QuotaReserved").get("message", ""), "the quota to be said")
        assert story.condition("QuotaReserved")["status"] == "False"
        story.kubectl("delete", "resourcequota", "none")
        story.wait("Complete", seconds=240)


def test_a_wrong_template_is_said_and_can_be_mended_while_the_round_runs(story: Story) -> None:
    wrong = {"train": {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "much"}}}]}}}
    with story.kubelet(**SCRIPT), story.operator():
        story.apply(rounds={"max": 0}, templates=wrong)
        until(lambda: story.condition("Stalled").get("reason") == "SpecInvalid", "the template to be refused")
        assert "quantities" in story.condition("Ready")["message"] or "memory" in story.condition("Ready")["message"]
        wrong["train"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "4Gi"
        story.apply(rounds={"max": 0}, templates=wrong)
        story.wait("Complete")
    assert story.condition("Stalled")["status"] == "False"


def test_the_policy_may_come_from_a_configmap_and_its_absence_is_said(story: Story) -> None:
    initial = {"initial": {"configMapKeyRef": {"name": "policy"}}}
    with story.kubelet(**SCRIPT), story.operator():
        story.apply(rounds={"max": 0}, policy=initial)
        until(lambda: "ConfigMap policy" in story.condition("Ready").get("message", ""), "the absence to be said")
        source = Path(__file__).parents[2] / "examples/policies/000.py"
        story.kubectl("create", "configmap", "policy", f"--from-file=policy.py={source}")
        story.kubectl("annotate", "ce", "evo", "look=again")
        story.wait("Complete")


def test_wrong_keys_are_said_and_right_ones_are_taken_up(story: Story) -> None:
    with story.kubelet(**SCRIPT), story.operator():
        story.kubectl("patch", "secret", "s3", "-p", '{"stringData": {"AWS_SECRET_ACCESS_KEY": "wrong"}}')
        story.apply(rounds={"max": 0})
        until(lambda: story.condition("ArtifactStoreReachable").get("status") == "False", "the keys to be refused")
        found = story.condition("ArtifactStoreReachable")
        assert found["reason"] == "Denied" and "SignatureDoesNotMatch" in found["message"]
        assert story.condition("Stalled")["status"] == "True"
        right = json.dumps({"stringData": {"AWS_SECRET_ACCESS_KEY": story.cluster.s3_keys["AWS_SECRET_ACCESS_KEY"]}})
        story.kubectl("patch", "secret", "s3", "-p", right)
        story.wait("Complete", seconds=180)
    assert story.condition("ArtifactStoreReachable")["status"] == "True"


@pytest.mark.parametrize("mode", ["refuse", "hang", "watch-error", "watch-gone", "silent"])
def test_an_api_server_that_misbehaves_costs_time_and_nothing_else(story: Story, mode: str) -> None:
    port, seconds = 8899, 90.0 if mode == "refuse" else 15.0
    config = story.folder / "proxy.kubeconfig"
    config.write_text(json.dumps(_kubeconfig(port)))
    proxy = ("-m", "tests.cluster.faultproxy", "--kubeconfig", str(story.cluster.kubeconfig), "--port", str(port))
    with (
        story.process(sys.executable, *proxy, log="proxy.log"),
        story.kubelet(delay=1.0, **SCRIPT),
        story.operator("--list-seconds", "10", "--resync-seconds", "5", KUBECONFIG=str(config)),
    ):
        story.apply(rounds={"max": 1})
        until(lambda: "evo-v0-curate-a1" in story.names("jobs"), "the first round to begin")
        assert story.http(f"/_fault/{mode}", port, "POST")[0] == 200
        story.apply("late", rounds={"max": 0})
        time.sleep(seconds)
        if mode in ("refuse", "hang"):
            story.http("/_fault/none", port, "POST")
        story.wait("Complete", seconds=240)
        story.wait("Complete", "late", seconds=120)
    assert verdicts(story) == {0: "Committed", 1: "Committed"}
    check_jobs(story)
    check_store(story)


def _kubeconfig(port: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "unused"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }


@pytest.mark.parametrize("reclaim", ["Retain", "Delete"])
def test_a_namespace_may_be_deleted_under_a_run(story: Story, reclaim: str) -> None:
    """Even where the Secret with the store's keys goes first."""
    with story.kubelet(ends={"train/1/1": "never"}, **SCRIPT), story.operator():
        story.apply(reclaimPolicy=reclaim)
        until(lambda: "evo-v1-train-a1" in story.names("jobs"), "the second training to begin")
        uid = story.get()["metadata"]["uid"]
        story.kubectl("delete", "secret", "s3")
        story.cluster.delete_namespace(story.namespace)
        gone = lambda: not story.cluster.kubectl("get", "namespace", story.namespace, "--ignore-not-found")  # noqa: E731
        until(gone, "the namespace to go")
    assert bool(story.stored(uid)) == (reclaim == "Retain")
    assert "ERROR" not in (story.folder / "operator.log").read_text()


def test_the_definitions_may_be_deleted_under_a_run_and_come_back(story: Story) -> None:
    """With them go all evolutions; the operator lives on."""
    with story.kubelet(**SCRIPT, ends={"train/0/1": "never"}), story.operator(everywhere=True):
        story.apply()
        until(lambda: "evo-v0-train-a1" in story.names("jobs"), "the training to begin")
        story.cluster.kubectl("delete", "-f", str(ROOT / "crds"), "--timeout=60s")
        until(lambda: not story.names("jobs"), "its jobs to go")
        story.cluster.install_crds()
        story.apply("again", rounds={"max": 0})
        until(lambda: story.names("jobs"), "the next evolution to begin")


def test_the_probe_fails_when_a_watch_has_ended_for_good(story: Story) -> None:
    """kopf's own probe would not."""
    kill_watch = (
        "import asyncio, sys; from curateevo_operator import health; health.DEAF_SECONDS = 2.0\n"
        "from curateevo_operator.__main__ import app\n"
        "from curateevo_operator.health import Health\n"
        "seen = Health._missing\n"
        "def missing(self):\n"
        "    for t in asyncio.all_tasks():\n"
        "        if t.get_name().startswith('watcher for jobs.'): t.cancel()\n"
        "    return seen(self)\n"
        "Health._missing = missing\n"
        "app()\n"
    )
    command = (sys.executable, "-c", kill_watch, "--jobs-image", "j", "--sandbox-image", "s", "--trainer-image", "t")
    with story.process(*command, "--namespace", story.namespace, "--port", "8082", log="deaf.log"):
        _, said = until(lambda: (a := story.http("/healthz", 8082))[0] == 503 and a, "the probe to fail", 60.0)
        assert "jobs" in said


def test_series_go_with_their_evolution(story: Story) -> None:
    with story.kubelet(**SCRIPT), story.operator():
        story.apply(rounds={"max": 1})
        story.wait("Complete")
        series = [x for x in story.http("/metrics")[1].splitlines() if 'evolution="evo"' in x]
        assert len(series) > 30
        score = next(x for x in series if x.startswith("curateevo_evolution_score"))
        assert float(score.split()[-1]) == story.status()["champion"]["p"]
        story.kubectl("delete", "ce", "evo", "--timeout=60s")
        until(lambda: 'evolution="evo"' not in story.http("/metrics")[1], "the series to go", 20.0)


def test_the_operator_stops_soon_when_it_is_told_to(story: Story) -> None:
    with story.operator() as process:
        until(lambda: story.http("/readyz")[0] == 200, "the operator to be ready", 30.0)
        process.terminate()
        began = time.monotonic()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pytest.fail("still there after 10 s")
        assert process.returncode == 0 and time.monotonic() - began < 10


def test_a_store_that_is_away_is_said_and_taken_up_again(story: Story) -> None:
    with story.kubelet(delay=1.0, **SCRIPT), story.operator():
        story.apply()
        until(lambda: "evo-v0-curate-a1" in story.names("jobs"), "the first round to begin")
        story.cluster.component("kill", "s3")
        try:
            until(lambda: story.condition("ArtifactStoreReachable").get("status") == "False", "the absence to be said")
            assert story.condition("ArtifactStoreReachable")["reason"] == "InfrastructureFailure"
            assert story.condition("Stalled")["status"] == "False", "it passes by itself"
            time.sleep(S3_AWAY_SECONDS)
        finally:
            story.cluster.component("start", "s3")
        story.wait("Complete", seconds=240)
    assert story.condition("ArtifactStoreReachable")["status"] == "True"
    assert verdicts(story)[0] == "Committed"
    check_store(story)
