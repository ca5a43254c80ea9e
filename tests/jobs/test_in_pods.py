"""The programs under a pod's conditions: a uid without a passwd entry, a read-only root, HOME=/tmp, no capabilities.

The conditions are made with a mount namespace: these tests need root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from curateevo.api.evolution import Stage
from curateevo.api.spec import (
    BaseModelRef,
    Corpus,
    CorpusSource,
    Evaluation,
    Memory,
    Sandbox,
    Serving,
    Splits,
    SuiteRef,
)
from curateevo.api.stage import (
    CurateParams,
    EvaluateParams,
    IngestParams,
    Manifest,
    StageParams,
    StageRequest,
    StoreRef,
    Subject,
    SubjectKind,
)
from curateevo.evolution.requests import CORPUS_FILES, POLICY, SPLITS
from curateevo.policy.builtin import source_of
from curateevo.store.artifacts import read_manifest
from curateevo.store.local import LocalStore
from tests.conftest import ROOT, free_port
from tests.jobs import test_train_support as support

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes a mount namespace")

UID = 65532
SUITES = (SuiteRef(name="toolworld", params={"perSkill": 1}),)
ENTER = f"""
set -e
exec 3</tmp 4</root
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /root
for path in "$@"; do
  test "$path" = -- && break
  case "$path" in
    /tmp/*) mkdir -p "$path"; mount -c --bind "/proc/self/fd/3/${{path#/tmp/}}" "$path";;
    /root/*) mkdir -p "$path"; mount -c --bind "/proc/self/fd/4/${{path#/root/}}" "$path";;
  esac
  shift
done
shift
mount --bind "$WORK" "$WORK"
exec 3<&- 4<&-
mount -o remount,bind,ro /
cd /
exec setpriv --reuid={UID} --regid={UID} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all env -i "$@"
"""
"""Arguments: what stays to be seen below /tmp and /root (the Python that runs here may lie there), --, the command."""


class Pod:
    """A folder that a pod may write to, and commands that are run as in one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for parent in (folder, *folder.parents[:2]):
            parent.chmod(0o755)
        self.work = folder / "work"
        self.work.mkdir()
        self.work.chmod(0o777)
        self.store = LocalStore(self.work / "store")
        self.log = self.work / "termination-log"

    def request(self, stage: Stage, params: StageParams, inputs: Mapping[str, str] = {}) -> Path:
        """A request's file, not writable for the programs. `inputs`: path to where the file lies in the store."""
        ingest = self.manifest("ingest/a1") if stage is not Stage.INGEST else None
        request = StageRequest(
            evolution_uid="u",
            version=0,
            stage=stage,
            attempt=1,
            store=StoreRef(uri=(self.work / "store").as_uri()),
            prefix=f"{stage.value}/a1",
            inputs={path: ingest.file(path).ref for path in inputs} if ingest else {},
            params=params,
        )
        if stage is Stage.CURATE:
            source = self.folder / "policy.py"
            source.write_text(source_of("starter"))
            ref = self.store.put("policy.py", source)
            (self.work / "store/policy.py").chmod(0o644)
            request = request.model_copy(update={"inputs": {**request.inputs, POLICY: ref}})
        path = self.folder / f"{stage.value}.json"
        path.write_text(json.dumps(request.to_wire()))
        path.chmod(0o444)
        return path

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """A program in the pod; its environment is HOME, and what is given."""
        self.log.unlink(missing_ok=True)
        self.log.touch()
        self.log.chmod(0o666)
        given = [f"{name}={value}" for name, value in {"HOME": "/tmp", **environment}.items()]
        seen = [str(self.work), sys.prefix, sys.base_prefix, str(ROOT), "--"]
        line = ["unshare", "-m", "--propagation", "private", "bash", "-c", ENTER, "x", *seen, *given]
        environment = {"WORK": str(self.work), "PATH": os.environ["PATH"]}
        return subprocess.Popen(
            [*line, sys.executable, *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, stage: str, request: Path, *more: str) -> None:
        """A stage program, which must end well."""
        command = ["-m", "curateevo_jobs", stage, "--request", self.visible(request), "--progress", "json"]
        process = self.start(*command, "--termination-log", str(self.log), *more, USER="curateevo", OMP_NUM_THREADS="1")
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said
        told = json.loads(self.log.read_text())
        assert (told["stage"], told["exitCode"], told["outcome"]) == (stage, 0, "Ok")

    def visible(self, request: Path) -> str:
        """The request where the pod sees it."""
        target = self.work / request.name
        if not target.exists():
            target.write_bytes(request.read_bytes())
            target.chmod(0o444)
        return str(target)

    def manifest(self, prefix: str) -> Manifest:
        found = read_manifest(self.store, prefix)
        assert found is not None
        return found


def ingested(folder: Path) -> Pod:
    pod = Pod(folder)
    source = CorpusSource(uri="toolworld://corpus?seed=3", format="toolworld")
    params = IngestParams(corpus=Corpus(sources=(source,)), suites=SUITES, splits=Splits())
    pod.run("ingest", pod.request(Stage.INGEST, params))
    return pod


def evaluate_params(*subjects: Subject, engine: str = "vllm") -> EvaluateParams:
    return EvaluateParams(
        subjects=subjects,
        splits=("sel",),
        model=BaseModelRef(base="builtin://toolworld"),
        evaluation=Evaluation(suites=SUITES),
        memory=Memory(),
        serving=Serving.model_validate({"engine": engine}),
        serve_start_seconds=300,
        seed=0,
    )


def test_the_conditions_are_what_they_are_said_to_be(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, pwd\n"
        "assert os.getuid() == 65532 and not [p for p in pwd.getpwall() if p.pw_uid == 65532]\n"
        "assert dict(os.environ).keys() <= {'HOME', 'LC_CTYPE'}, os.environ\n"
        "pathlib.Path('/tmp/x').write_text('x')\n"
        "for place in ('/etc/x', '/usr/x', '/var/tmp/x'):\n"
        "    try: pathlib.Path(place).write_text('x')\n"
        "    except OSError: continue\n"
        "    raise AssertionError(place)\n"
    )
    process = Pod(tmp_path).start("-c", code)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said


def test_ingest_curate_and_evaluate(tmp_path: Path) -> None:
    pod = ingested(tmp_path)
    params = CurateParams(sandbox=Sandbox(timeout_seconds=60, memory="1Gi", cpu="1"), memory=Memory(), seed=1)
    request = pod.request(Stage.CURATE, params, dict.fromkeys(CORPUS_FILES, ""))
    folder = pod.work / "steps"
    pod.run("curate", request, "--step", "fetch", "--work", str(folder))
    contained = ["-m", "curateevo.policy.contained", "--visible", str(folder / "visible")]
    process = pod.start(*contained, "--answers", str(folder / "answers"), "--termination-log", str(pod.log))
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    pod.run("curate", request, "--step", "publish", "--work", str(folder))
    curated = pod.manifest("curate/a1")
    assert curated.summary.kind == "curate"
    assert curated.summary.sft_rows > 0
    assert curated.summary.tier.startswith("process+rlimits+")
    assert "seccomp" in curated.summary.tier
    assert "nobody" not in curated.summary.tier, "a pod's user is nobody already"
    nothing = Subject(name="do-nothing", kind=SubjectKind.NOTHING)
    pod.run("evaluate", pod.request(Stage.EVALUATE, evaluate_params(nothing), {SPLITS: ""}))


@pytest.mark.train
def test_train_and_evaluate_in_process(tmp_path: Path) -> None:
    pod = ingested(tmp_path)
    base = support.make_tiny_base(pod.work / "base")
    for path in base.iterdir():
        path.chmod(0o444)
    rows = {"sft.jsonl": support.sft_rows(8), "rl.jsonl": support.rl_rows(4)}
    request = StageRequest(
        evolution_uid="u",
        version=0,
        stage=Stage.TRAIN,
        attempt=1,
        store=StoreRef(uri=(pod.work / "store").as_uri()),
        prefix="train/a1",
        inputs={n: pod.store.put(n, "".join(json.dumps(r) + "\n" for r in rows[n]).encode()) for n in rows},
        params=support.train_params(base, sft_steps=2, grpo_steps=2),
    )
    for name in rows:
        (pod.work / "store" / name).chmod(0o644)
    path = tmp_path / "train.json"
    path.write_text(json.dumps(request.to_wire()))
    pod.run("train", path)
    assert pod.manifest("train/a1").under("model-0/")
    subject = Subject(name="untrained", kind=SubjectKind.BASE)
    pod.run("evaluate", pod.request(Stage.EVALUATE, evaluate_params(subject, engine="transformers"), {SPLITS: ""}))


@pytest.mark.vllm
def test_a_model_server(tmp_path: Path) -> None:
    pod = ingested(tmp_path)
    request = pod.request(
        Stage.EVALUATE, evaluate_params(Subject(name="untrained", kind=SubjectKind.BASE)), {SPLITS: ""}
    )
    folder = pod.work / "model"
    folder.mkdir()
    folder.chmod(0o777)
    common = ["--subject", "untrained", "--model", str(folder)]
    pod.run("serve", request, *common, "--step", "fetch")
    port = free_port()
    command = ["-m", "curateevo_jobs", "serve", "--request", pod.visible(request), *common, "--step", "run"]
    process = pod.start(*command, "--port", str(port), USER="curateevo", PYTHONUNBUFFERED="1")
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            except OSError:
                time.sleep(0.5)
            else:
                return
        process.kill()
        raise AssertionError(process.communicate()[0][-3000:])
    finally:
        process.terminate()
        process.communicate(timeout=60)
