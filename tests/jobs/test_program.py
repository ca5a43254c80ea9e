"""What all stage programs share: manifest last, exit codes by class, the termination log, work that is not done twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from curateevo.api.errors import ExitCode
from curateevo.api.evolution import Stage
from curateevo.api.spec import Corpus, CorpusSource, Splits, SuiteRef
from curateevo.api.stage import IngestParams, Manifest, StageRequest, StoreRef
from curateevo.store.artifacts import read_manifest
from curateevo.store.local import LocalStore
from curateevo_jobs.program import MAX_TOLD_BYTES, main, told

ROW = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], "success": True}


def request(tmp_path: Path, attempt: int = 1, uri: str = "", suites: tuple[SuiteRef, ...] = ()) -> Path:
    source = tmp_path / "corpus.jsonl"
    if not source.exists():
        source.write_text("\n".join(json.dumps({**ROW, "id": str(n)}) for n in range(5)))
    params = IngestParams(
        corpus=Corpus(sources=(CorpusSource(uri=uri or str(source)),)), suites=suites, splits=Splits()
    )
    made = StageRequest(
        evolution_uid="u",
        stage=Stage.INGEST,
        attempt=attempt,
        store=StoreRef(uri=(tmp_path / "store").as_uri()),
        prefix=f"ingest/a{attempt}",
        inputs={},
        params=params,
    )
    path = tmp_path / f"request-{attempt}.json"
    path.write_text(json.dumps(made.to_wire()))
    return path


def run(tmp_path: Path, path: Path, stage: str = "ingest") -> tuple[int, dict[str, object]]:
    log = tmp_path / "termination.json"
    code = main([stage, "--request", str(path), "--termination-log", str(log), "--progress", "json"])
    return code, json.loads(log.read_text())


def manifest(tmp_path: Path, attempt: int) -> Manifest:
    found = read_manifest(LocalStore(tmp_path / "store"), f"ingest/a{attempt}")
    assert found is not None
    return found


def test_a_stage_ends_with_a_manifest_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(tmp_path, request(tmp_path))
    assert (code, said["exitCode"], said["outcome"]) == (ExitCode.OK, 0, "Ok")
    made = manifest(tmp_path, 1)
    assert {f.path for f in made.files} >= {"trajectories.parquet", "features.parquet", "tasks.parquet", "splits.json"}
    assert made.usage.seconds > 0 and made.usage.peak_bytes > 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines and {"stage", "phase", "done", "total", "metrics", "time"} == set(lines[0])


def test_the_same_work_is_not_done_twice(tmp_path: Path) -> None:
    run(tmp_path, request(tmp_path))
    code, _ = run(tmp_path, request(tmp_path, attempt=2))
    assert code == 0 and manifest(tmp_path, 2).cached_from == "ingest/a1"
    assert manifest(tmp_path, 2).digest == manifest(tmp_path, 1).digest and manifest(tmp_path, 2).usage.seconds == 0
    (tmp_path / "corpus.jsonl").unlink()
    assert run(tmp_path, request(tmp_path, attempt=1))[0] == 0, "an artifact that is there needs no input"


@pytest.mark.parametrize(
    ("uri", "suites", "code", "says"),
    [
        ("missing.jsonl", (), ExitCode.CONTRACT_BROKEN, "no such file"),
        ("ftp://x/y", (), ExitCode.CONTRACT_BROKEN, "not supported"),
        ("", (SuiteRef(name="moonworld"),), ExitCode.CONTRACT_BROKEN, "no suite called"),
        ("", (SuiteRef(name="toolworld", params={"perSkil": 3}),), ExitCode.CONTRACT_BROKEN, "perSkil"),
        ("s3://bucket/x", (), ExitCode.TRANSIENT, "127.0.0.1"),
    ],
)
def test_exit_codes_by_class(
    uri: str, suites: tuple[SuiteRef, ...], code: ExitCode, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    found, said = run(tmp_path, request(tmp_path, uri=uri, suites=suites))
    assert found == code and says in str(said["message"]), said
    assert read_manifest(LocalStore(tmp_path / "store"), "ingest/a1") is None


def test_requests_that_are_none(tmp_path: Path) -> None:
    assert run(tmp_path, tmp_path / "none.json")[0] == ExitCode.CONTRACT_BROKEN
    assert run(tmp_path, request(tmp_path), stage="train")[0] == ExitCode.CONTRACT_BROKEN
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    code, said = run(tmp_path, bad)
    assert code == ExitCode.CONTRACT_BROKEN and "required" in str(said["message"]).lower()


@pytest.mark.parametrize(
    "message", ["x" * 9000, "\N{SNOWMAN}" * 3000, '\n\t"' * 3000, "\x01" * 3000, "\ud800" * 3000, "short"]
)
def test_the_termination_log_is_short_json_whatever_is_said(message: str) -> None:
    text = told("train", ExitCode.CONTRACT_BROKEN, "ContractBroken", message)
    said = json.loads(text)
    assert len(text.encode()) <= MAX_TOLD_BYTES
    assert set(said) == {"stage", "exitCode", "outcome", "message"}
    assert len(said["message"]) > 200 or said["message"] == message


def test_a_bug_is_told_and_rises(tmp_path: Path) -> None:
    path = request(tmp_path)
    (tmp_path / "store").write_text("a file where a folder should be")
    log = tmp_path / "termination.json"
    with pytest.raises(OSError, match="store"):
        main(["ingest", "--request", str(path), "--termination-log", str(log), "--progress", "json"])
    said = json.loads(log.read_text())
    assert (said["exitCode"], said["outcome"]) == (1, "Bug")
    assert said["message"].startswith(("NotADirectoryError", "FileExistsError"))
