"""Models that are served elsewhere: the serve program, and an evaluation that asks its servers and checks them first."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.errors import ContractBroken, ExitCode
from curateevo.api.evolution import Stage
from curateevo.api.spec import BaseModelRef, Evaluation, Memory, Sampling, Serving, SuiteRef
from curateevo.api.stage import EvaluateParams, Manifest, StageRequest, StoreRef, Subject, SubjectKind
from curateevo.evolution.pods import ENDPOINTS_VARIABLE, SERVE_GPUS_VARIABLE, SERVE_WAIT_VARIABLE
from curateevo.store.artifacts import read_manifest
from curateevo.store.local import LocalStore
from curateevo.store.s3 import S3Store
from curateevo_jobs.agents.identity import digest_files, digest_model, expected_name
from curateevo_jobs.agents.served import parse_endpoints
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.program import main
from curateevo_jobs.training.base_model import find_base, fingerprint
from tests.conftest import free_port

FAKE = Path(__file__).with_name("fake_vllm")
BUILTIN = Path(str(registry.__file__)).parent / "toolworld" / "base"
SUITES = (SuiteRef(name="toolworld", params={"perSkill": 1}),)
SUBJECTS = (
    Subject(name="seed-0", kind=SubjectKind.MODEL),
    Subject(name="untrained", kind=SubjectKind.BASE),
    Subject(name="do-nothing", kind=SubjectKind.NOTHING),
)
WITH_MODEL = SUBJECTS[:2]
START_SECONDS = 300.0


class World:
    """A store with a trained model, tasks and notes, and the request to evaluate them."""

    def __init__(self, folder: Path, subjects: tuple[Subject, ...] = SUBJECTS, **changes: Any) -> None:
        self.folder = folder
        self.store = LocalStore(folder / "store")
        model = {
            "config.json": b'{"dtype": "float32"}',
            "model.safetensors": b"weights",
            "sub/a.json": b"1",
            "sub.b": b"2",
        }
        files = changes.pop("files", model)
        note = {"title": "", "content": "paris is a city", "scope": "", "evidence": []}
        ids = [task.id for task in registry.suite("toolworld").tasks(SUITES[0].params)]
        inputs = {f"seed-0/model/{path}": data for path, data in files.items()}
        inputs["seed-0/memory.jsonl"] = json.dumps(note).encode()
        inputs["splits.json"] = json.dumps({"sel": ids, "diag": []}).encode()
        params = EvaluateParams(
            subjects=subjects,
            splits=("sel",),
            model=BaseModelRef(base="builtin://toolworld", chat_template=changes.pop("chat_template", None)),
            evaluation=Evaluation(suites=SUITES, sampling=Sampling(max_turns=3, max_tokens=32), max_error_fraction=0.0),
            memory=Memory(),
            serving=Serving(engine="vllm", args=changes.pop("args", ())),
            serve_start_seconds=changes.pop("serve_start_seconds", 60),
            seed=3,
        )
        self.request = StageRequest(
            evolution_uid="u",
            version=0,
            stage=Stage.EVALUATE,
            attempt=1,
            store=StoreRef(uri=self.store.root.as_uri()),
            prefix="evaluate/a1",
            inputs={path: self.store.put(f"made/{path}", data) for path, data in inputs.items()},
            params=params,
        )
        self.params = params

    @property
    def path(self) -> Path:
        path = self.folder / "request.json"
        path.write_text(json.dumps(self.request.to_wire()))
        return path

    def evaluate(self) -> int:
        return main(["evaluate", *self.common()])

    def fetch(self, subject: str) -> int:
        folder = self.folder / f"model-{subject}"
        folder.mkdir(exist_ok=True)
        return main(["serve", "--subject", subject, "--step", "fetch", "--model", str(folder), *self.common()])

    def serve(self, subject: str, port: int, **environment: str) -> subprocess.Popen[bytes]:
        folder = self.folder / f"model-{subject}"
        command = [sys.executable, "-m", "curateevo_jobs", "serve", "--subject", subject, "--step", "run"]
        command += ["--model", str(folder), "--port", str(port), *self.common()]
        with (self.folder / f"{subject}.log").open("wb") as log:
            return subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)

    def common(self) -> list[str]:
        return ["--request", str(self.path), "--termination-log", str(self.folder / "told.json"), "--progress", "json"]

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "told.json").read_text())
        return found

    def manifest(self) -> Manifest | None:
        return read_manifest(self.store, self.request.prefix)

    def forget(self) -> None:
        """Leave neither artifact nor cache behind, nor the trained model: whoever needs it fails."""
        shutil.rmtree(self.store.root / "evaluate")
        shutil.rmtree(self.store.root / "cache")
        shutil.rmtree(self.store.root / "made/seed-0/model")


class Servers:
    """Server processes that end with the test."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, world: World, *subjects: str, **environment: str) -> dict[str, str]:
        out = {}
        for subject in subjects:
            assert world.fetch(subject) == 0, world.told()
            port = free_port()
            self.running.append(world.serve(subject, port, **environment))
            out[subject] = f"http://127.0.0.1:{port}/v1"
        return out

    def stop(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(timeout=60)


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.stop()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is what `python -m vllm.entrypoints.openai.api_server` starts."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))


def tell(monkeypatch: pytest.MonkeyPatch, endpoints: dict[str, str], wait_seconds: int = 60) -> None:
    monkeypatch.setenv(ENDPOINTS_VARIABLE, json.dumps(endpoints))
    monkeypatch.setenv(SERVE_WAIT_VARIABLE, str(wait_seconds))


@pytest.mark.usefixtures("fake")
def test_served_elsewhere_gives_what_served_here_gives(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    assert world.evaluate() == 0, world.told()
    here = world.manifest()
    assert here is not None
    endpoints = servers.start(world, "seed-0", "untrained")
    world.forget()
    tell(monkeypatch, endpoints)
    monkeypatch.setenv(SERVE_GPUS_VARIABLE, "3")
    assert world.evaluate() == 0, world.told()
    elsewhere = world.manifest()
    assert elsewhere is not None
    assert elsewhere.digest == here.digest
    assert elsewhere.input_digest == here.input_digest
    assert elsewhere.summary == here.summary
    assert here.usage.gpu_seconds == 0.0 < elsewhere.usage.gpu_seconds
    results = [json.loads(x) for x in (world.store.root / "evaluate/a1/sel/results.jsonl").read_text().splitlines()]
    assert len({row["subject"] for row in results if row["turns"] > 1}) == 2, "both models played"
    assert not any(row["error"] for row in results)


@pytest.mark.usefixtures("fake")
def test_servers_are_asked_as_they_get_ready_and_end_when_they_were(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place for a server: the one of the second subject holds it, and the other comes when that has gone."""
    world = World(tmp_path)
    endpoints = servers.start(world, "untrained")
    assert world.fetch("seed-0") == 0
    port = free_port()
    endpoints["seed-0"] = f"http://127.0.0.1:{port}/v1"
    tell(monkeypatch, endpoints)

    def take_the_place() -> None:
        assert servers.running[0].wait(timeout=60) == 0
        servers.running.append(world.serve("seed-0", port))

    waiter = threading.Thread(target=take_the_place)
    waiter.start()
    assert world.evaluate() == 0, world.told()
    waiter.join()
    assert servers.running[1].wait(timeout=60) == 0
    table = json.loads((world.store.root / "evaluate/a1/sel/results.jsonl").read_text().splitlines()[0])
    assert table["subject"] == "seed-0", "what is written stands in the order of the subjects"


@pytest.mark.usefixtures("fake")
def test_a_server_that_ends_by_itself_is_a_passing_failure(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, SUBJECTS[:1])
    [url] = servers.start(world, "seed-0", FAKE_VLLM_DIES_AFTER="0").values()
    _await_answer(url)
    asked = urllib.request.Request(f"{url}/chat/completions", data=b"{}", method="POST")
    with contextlib.suppress(OSError):
        urllib.request.urlopen(asked, timeout=5).close()
    assert servers.running[0].wait(timeout=60) == ExitCode.TRANSIENT
    assert "ended with 1\nValueError: no memory for a single sequence" in world.told()["message"]
    assert "ValueError" in (tmp_path / "seed-0.log").read_text()


@pytest.mark.usefixtures("fake")
def test_another_model_is_not_scored(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    endpoints = servers.start(world, "seed-0", "untrained")
    tell(monkeypatch, {"seed-0": endpoints["untrained"], "untrained": endpoints["untrained"]})
    assert world.evaluate() == ExitCode.CONTRACT_BROKEN
    assert "serves" in world.told()["message"]
    assert world.manifest() is None


@pytest.mark.usefixtures("fake")
def test_weights_that_changed_under_the_server_show_in_its_name(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, SUBJECTS[:1])
    assert world.fetch("seed-0") == 0
    (tmp_path / "model-seed-0/model/model.safetensors").write_bytes(b"others!")
    port = free_port()
    servers.running.append(world.serve("seed-0", port))
    tell(monkeypatch, {"seed-0": f"http://127.0.0.1:{port}/v1"})
    assert world.evaluate() == ExitCode.CONTRACT_BROKEN
    assert "serves" in world.told()["message"]


def test_a_server_that_does_not_come_up_is_waited_for_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, SUBJECTS[:1])
    tell(monkeypatch, {"seed-0": f"http://127.0.0.1:{free_port()}/v1"}, wait_seconds=1)
    started = time.monotonic()
    assert world.evaluate() == ExitCode.TRANSIENT
    assert 1.0 <= time.monotonic() - started < 20
    assert "seed-0" in world.told()["message"]


def test_without_another_word_servers_may_take_the_start_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, SUBJECTS[:1], serve_start_seconds=1)
    monkeypatch.setenv(ENDPOINTS_VARIABLE, json.dumps({"seed-0": f"http://127.0.0.1:{free_port()}/v1"}))
    assert world.evaluate() == ExitCode.TRANSIENT
    assert "within 1 s" in world.told()["message"]


@pytest.mark.slow
@pytest.mark.usefixtures("fake")
def test_a_server_that_goes_and_does_not_come_back_is_a_passing_failure(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, SUBJECTS[:1])
    endpoints = servers.start(world, "seed-0", FAKE_VLLM_DIES_AFTER="4")
    tell(monkeypatch, endpoints)
    monkeypatch.setenv(SERVE_WAIT_VARIABLE, "2")
    assert world.evaluate() == ExitCode.TRANSIENT
    assert "no model server within 2 s: seed-0" in world.told()["message"]
    assert world.manifest() is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ("[]", "object"),
        ('{"seed-0": 7}', "base URL"),
        ('{"seed-0": "server/v1"}', "base URL"),
        ('{"seed-0": "file:///v1"}', "base URL"),
        ('{"another": "http://server/v1"}', "no server for subject seed-0"),
    ],
)
def test_addresses_that_are_none_are_said_to_be(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    monkeypatch.setenv(ENDPOINTS_VARIABLE, text)
    assert world.evaluate() == ExitCode.CONTRACT_BROKEN
    assert says in world.told()["message"]


def test_a_base_url_may_end_in_a_slash() -> None:
    assert parse_endpoints('{"a": "http://x:1/v1/"}') == {"a": "http://x:1/v1"}


def test_a_models_name_is_the_same_from_its_files_and_from_its_references(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "a/b": b"1", "a.b": b"2", "a-b/c": b"3"}
    world = World(tmp_path / "w", files=files)
    folder = tmp_path / "m"
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    name = expected_name(world.request, world.params, SUBJECTS[0])
    assert name == f"sha256-{digest_model(folder)[:32]}"
    (folder / "a/b").write_bytes(b"other")
    assert name != f"sha256-{digest_model(folder)[:32]}"
    assert digest_files({"a": "1", "b": "2"}) != digest_files({"a": "2", "b": "1"})


def test_a_subject_without_a_model_can_be_neither_served_nor_checked(tmp_path: Path) -> None:
    world = World(tmp_path, files={"weights": b""})
    assert world.fetch("seed-0") == ExitCode.CONTRACT_BROKEN
    assert world.fetch("do-nothing") == ExitCode.CONTRACT_BROKEN
    assert world.fetch("nobody") == ExitCode.CONTRACT_BROKEN
    with pytest.raises(ContractBroken, match="seed-0"):
        expected_name(world.request, world.params, SUBJECTS[0])


def test_a_truncated_model_is_not_served(tmp_path: Path) -> None:
    world = World(tmp_path)
    (world.store.root / "made/seed-0/model/model.safetensors").write_bytes(b"w")
    assert world.fetch("seed-0") == ExitCode.CONTRACT_BROKEN
    folder = tmp_path / "model-seed-0"
    arguments = ["--subject", "seed-0", "--step", "run", "--model", str(folder)]
    assert main(["serve", *arguments, *world.common()]) == ExitCode.CONTRACT_BROKEN
    assert "fetch" in world.told()["message"]


@pytest.mark.usefixtures("fake")
def test_the_server_listens_everywhere_with_the_specs_arguments(servers: Servers, tmp_path: Path) -> None:
    world = World(tmp_path, SUBJECTS[:1], chat_template="{{ messages }}", args=("--max-model-len=256",))
    [url] = servers.start(world, "seed-0").values()
    _await_answer(url)
    command = _command_line(servers.running[0].pid)
    assert command[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert command[command.index("--host") + 1] == "0.0.0.0"
    assert command[-1] == "--max-model-len=256"
    template = Path(command[command.index("--chat-template") + 1])
    assert template.read_text() == "{{ messages }}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--step", "fetch"],
        ["serve", "--subject", "x", "--model", "m"],
        ["serve", "--subject", "x", "--model", "m", "--step", "publish"],
        ["curate", "--step", "fetch"],
        ["curate", "--step", "run", "--work", "w"],
        ["train", "--step", "fetch"],
    ],
)
def test_steps_that_no_program_has_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--request", "r.json"])
    assert ended.value.code == 2


def _await_answer(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/models", timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the server did not answer")


def _command_line(parent: int) -> list[str]:
    """Of the only child of a process."""
    [child] = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return Path(f"/proc/{child}/cmdline").read_bytes().decode().rstrip("\0").split("\0")


@pytest.mark.vllm
def test_a_real_server_scores_elsewhere_as_here(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {p.name: p.read_bytes() for p in BUILTIN.iterdir() if p.is_file()}
    world = World(tmp_path, SUBJECTS[:1], files=files, serve_start_seconds=int(START_SECONDS))
    assert world.evaluate() == 0, world.told()
    here = world.manifest()
    endpoints = servers.start(world, "seed-0")
    world.forget()
    tell(monkeypatch, endpoints, wait_seconds=int(START_SECONDS))
    assert world.evaluate() == 0, world.told()
    elsewhere = world.manifest()
    assert here is not None
    assert elsewhere is not None
    assert elsewhere.digest == here.digest
    assert servers.running[0].wait(timeout=60) == 0, "it was told to end, and did"


@pytest.mark.s3
def test_a_base_model_in_the_store_is_fetched_and_named_by_its_tags(s3_endpoint: str, tmp_path: Path) -> None:
    store = S3Store("bucket", "bases", s3_endpoint)
    files = {"config.json": b"{}", "model.safetensors": b"weights", "sub/a.json": b"1"}
    for path, data in files.items():
        store.put(f"qwen/{path}", data)
    store.put("qwen-other/config.json", b"{}")
    model = BaseModelRef(base="s3://bucket/bases/qwen")
    found = find_base(model, endpoint=s3_endpoint, downloads=tmp_path)
    assert {p.relative_to(found).as_posix(): p.read_bytes() for p in found.rglob("*") if p.is_file()} == files
    (found / "config.json").write_bytes(b"mine")
    assert (find_base(model, endpoint=s3_endpoint, downloads=tmp_path) / "config.json").read_bytes() == b"mine"
    before = fingerprint(model, s3_endpoint)
    assert fingerprint(model, s3_endpoint) == before
    store.put("qwen/more.json", b"x")
    assert fingerprint(model, s3_endpoint) != before
    with pytest.raises(ContractBroken, match="config.json"):
        find_base(BaseModelRef(base="s3://bucket/bases/none"), endpoint=s3_endpoint, downloads=tmp_path)
