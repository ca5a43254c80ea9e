"""One suite for every store: a directory, and S3 as a real server speaks it."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from curateevo.api.errors import ArtifactCorrupt, Conflict, ContractBroken, Denied, StoreUnavailable
from curateevo.api.evolution import EarlyStop, Reason, Stage
from curateevo.api.spec import (
    Acceptance,
    BaseModelRef,
    Corpus,
    CorpusSource,
    Evaluation,
    Focus,
    Memory,
    Serving,
    Splits,
    SuiteRef,
)
from curateevo.api.stage import (
    AGAINST_SCORES,
    Against,
    EvaluateParams,
    EvaluateSummary,
    FileRef,
    IngestParams,
    IngestSummary,
    StageRequest,
    StoreRef,
    Subject,
    SubjectKind,
)
from curateevo.store import s3
from curateevo.store.artifacts import publish, read_manifest, remember, reuse
from curateevo.store.local import PARTIAL, LocalStore
from curateevo.store.protocol import Store
from curateevo.store.s3 import S3Store, fetch_objects
from tests.conftest import free_port

Raw = Callable[[str, bytes], None]


AGAINST = Against(focus=Focus.EFFECTIVENESS, acceptance=Acceptance(), lambda_=0.3, champion_c=0.5, c=0.5, seed=1)
STOPPED = EarlyStop(episodes=1, of_episodes=2, p_so_far=0.0, p_at_most=0.5, reason=Reason.NOT_IMPROVED)


def evaluation(prefix: str, against: Against | None = None) -> StageRequest:
    """An evaluation, which may end early where it is against a champion."""
    params = EvaluateParams(
        subjects=(Subject(name="seed-0", kind=SubjectKind.NOTHING),),
        splits=("diag", "sel"),
        model=BaseModelRef(base="builtin://toolworld"),
        evaluation=Evaluation(suites=(SuiteRef(name="toolworld"),)),
        memory=Memory(),
        serving=Serving(),
        serve_start_seconds=1,
        seed=0,
        against=against,
    )
    scores = {AGAINST_SCORES: FileRef(key="scores", digest="sha256:5", size_bytes=1)} if against else {}
    return StageRequest(
        evolution_uid="u",
        stage=Stage.EVALUATE,
        attempt=1,
        store=StoreRef(uri="file:///store"),
        prefix=prefix,
        inputs={"splits.json": FileRef(key="splits", digest="sha256:1", size_bytes=1), **scores},
        params=params,
    )


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    if kind == "local":
        return LocalStore(tmp_path / "store")
    return S3Store("bucket", uuid.uuid4().hex, request.getfixturevalue("s3_endpoint"))


@pytest.fixture
def raw(store: Store) -> Raw:
    """Write past the store, as a broken disk or a torn upload would."""

    def write(key: str, data: bytes) -> None:
        if isinstance(store, LocalStore):
            path = store.root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        else:
            assert isinstance(store, S3Store)
            store.client.put_object(Bucket=store.bucket, Key=store.prefix + key, Body=data)

    return write


def test_what_is_put_can_be_read_and_fetched(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "big"
    source.write_bytes(b"x" * 3_000_000)
    ref, big = store.put("a/b.txt", b"hello"), store.put("a/big", source)
    assert ref.size_bytes == 5 and ref.digest == f"sha256:{hashlib.sha256(b'hello').hexdigest()}"
    assert store.read(ref) == store.get("a/b.txt") == b"hello"
    store.fetch(big, tmp_path / "deep" / "copy")
    assert (tmp_path / "deep" / "copy").read_bytes() == source.read_bytes()
    assert store.get("a/none") is None


def test_objects_are_immutable_and_equal_puts_are_harmless(store: Store) -> None:
    first = store.put("k", b"one")
    assert store.put("k", b"one") == first
    with pytest.raises(Conflict, match="other bytes"):
        store.put("k", b"two")
    assert store.get("k") == b"one"


def test_wrong_bytes_are_refused_on_read_and_leave_no_file(store: Store, raw: Raw, tmp_path: Path) -> None:
    ref = store.put("k", b"right")
    for data in (b"wrong", b"", b"right and more"):
        raw("k", data)
        with pytest.raises(ArtifactCorrupt, match="size or digest"):
            store.read(ref)
        with pytest.raises(ArtifactCorrupt):
            store.fetch(ref, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    missing = ref.model_copy(update={"key": "none"})
    with pytest.raises(ArtifactCorrupt, match="missing"):
        store.read(missing)
    with pytest.raises(ArtifactCorrupt, match="missing"):
        store.fetch(missing, tmp_path / "out")


def test_put_once_has_exactly_one_winner(store: Store) -> None:
    for number in range(5):
        barrier = threading.Barrier(8)

        def race(writer: int, key: str = f"decision-{number}", barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            return store.put_once(key, f"writer {writer}".encode())

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(race, range(8)))
        assert sum(won) == 1
        assert store.get(f"decision-{number}") == f"writer {won.index(True)}".encode()


def test_swap_has_exactly_one_winner_and_stale_tags_lose(store: Store) -> None:
    tag = store.swap("champion", b"0", None)
    with pytest.raises(Conflict):
        store.swap("champion", b"again", None)
    for number in range(1, 6):
        barrier = threading.Barrier(8)

        def race(writer: int, tag: str = tag, number: int = number, barrier: threading.Barrier = barrier) -> str | None:
            barrier.wait()
            try:
                return store.swap("champion", f"{number} by {writer}".encode(), tag)
            except Conflict:
                return None

        with ThreadPoolExecutor(8) as pool:
            tags = list(pool.map(race, range(8)))
        winners = [w for w, t in enumerate(tags) if t is not None]
        assert len(winners) == 1
        found = store.read_tagged("champion")
        assert found is not None and found.data == f"{number} by {winners[0]}".encode()
        tag = found.tag
    with pytest.raises(Conflict):
        store.swap("nothing", b"x", '"d41d8cd98f00b204e9800998ecf8427e"')


def test_listing_is_sorted_and_deleting_takes_a_prefix(store: Store) -> None:
    for key in ("b/2", "a/1", "b/1", "b/c/3"):
        store.put(key, b"x")
    assert list(store.keys("")) == ["a/1", "b/1", "b/2", "b/c/3"]
    assert list(store.keys("b/")) == ["b/1", "b/2", "b/c/3"]
    assert store.delete("b/") == 3
    assert list(store.keys("")) == ["a/1"]


def test_check_accepts_this_store_and_leaves_nothing(store: Store) -> None:
    store.check()
    assert list(store.keys("")) == []


def request_for(prefix: str, seed: int = 0) -> StageRequest:
    params = IngestParams(corpus=Corpus(sources=(CorpusSource(uri="x"),)), suites=(), splits=Splits(seed=seed))
    return StageRequest(
        evolution_uid="u",
        stage=Stage.INGEST,
        attempt=1,
        store=StoreRef(uri="file:///x"),
        prefix=prefix,
        inputs={},
        params=params,
    )


SUMMARY = IngestSummary(trajectories=1, turns=2, successes=1, set_aside=0, leaked=0)


def test_the_manifest_comes_last_and_its_digest_leaves_volatile_files_out(store: Store, tmp_path: Path) -> None:
    digests = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "rows").write_text("rows")
        (folder / "times").write_text(f"took {number} s")
        assert read_manifest(store, f"art-{number}") is None
        made = publish(store, request_for(f"art-{number}"), folder, summary=SUMMARY, volatile=frozenset({"times"}))
        assert read_manifest(store, f"art-{number}") == made
        digests.append(made.digest)
    assert digests[0] == digests[1]


def test_a_torn_manifest_is_no_manifest(store: Store, raw: Raw, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "rows").write_text("rows")
    publish(store, request_for("art"), folder, summary=SUMMARY)
    whole = store.get("art/manifest.json")
    assert whole is not None
    for torn in (b"", whole[: len(whole) // 2], whole.replace(b'"path":"rows"', b'"path":"cows"')):
        raw("torn/manifest.json", torn)
        with pytest.raises(ContractBroken):
            read_manifest(store, "torn")


def test_work_is_found_by_its_inputs_and_only_by_them(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "rows").write_text("rows")
    first = request_for("art-1")
    assert reuse(store, first) is None
    made = publish(store, first, folder, summary=SUMMARY)
    remember(store, first, made)
    again = reuse(store, request_for("art-2"))
    assert again is not None and again.digest == made.digest and again.cached_from == "art-1"
    assert read_manifest(store, "art-2") == again and store.read(again.file("rows").ref) == b"rows"
    assert reuse(store, request_for("art-3", seed=1)) is None


def test_a_partial_file_of_a_killed_writer_is_not_seen(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/x", b"1")
    (tmp_path / "a" / f"{PARTIAL}left").write_bytes(b"half")
    assert list(store.keys("")) == ["a/x"]


def test_keys_may_not_leave_the_store(tmp_path: Path) -> None:
    with pytest.raises(ContractBroken, match="leave the store"):
        LocalStore(tmp_path / "store").put("../evil", b"x")


def test_a_full_disk_is_denied_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Denied, match="no space left"):
        LocalStore(tmp_path).put("k", b"x")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with pytest.raises(StoreUnavailable):
        S3Store("bucket", "", f"http://127.0.0.1:{free_port()}").get("k")


@pytest.mark.s3
def test_wrong_keys_and_a_missing_bucket_are_denied(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Denied, match="NoSuchBucket"):
        S3Store("none", "", s3_endpoint).put("k", b"x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Denied, match="SignatureDoesNotMatch"):
        S3Store("bucket", "", s3_endpoint).put("k", b"x")


@pytest.mark.s3
def test_a_server_without_conditional_writes_is_refused(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe notices a server that ignores the conditions (here: a client that leaves them out)."""
    store = S3Store("bucket", uuid.uuid4().hex, s3_endpoint)
    real = store.client.put_object

    def deaf(**arguments: object) -> object:
        arguments.pop("IfNoneMatch", None)
        arguments.pop("IfMatch", None)
        return real(**arguments)

    monkeypatch.setattr(store.client, "put_object", deaf)
    with pytest.raises(Denied, match="conditional writes"):
        store.check()


@pytest.mark.s3
def test_corpus_files_are_fetched_by_pattern(s3_endpoint: str, tmp_path: Path) -> None:
    store = S3Store("bucket", "", s3_endpoint)
    prefix = uuid.uuid4().hex
    for name in ("a.json", "b.json", "c.txt"):
        store.put(f"{prefix}/{name}", name.encode())
    found = fetch_objects(f"s3://bucket/{prefix}/*.json", s3_endpoint, tmp_path)
    assert [p.name for p in found] == ["a.json", "b.json"]


def test_a_full_evaluation_serves_one_that_may_end_early_and_never_the_other_way_round(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "scores.json").write_text("{}")
    free, against = evaluation("free"), evaluation("against", AGAINST)
    early = EvaluateSummary(scores={}, stopped=STOPPED)
    remember(store, against, publish(store, against, tmp_path, summary=early))
    assert reuse(store, free) is None
    assert reuse(store, evaluation("other", AGAINST.model_copy(update={"champion_c": 0.2}))) is None
    assert (again := reuse(store, evaluation("again", AGAINST))) is not None and again.summary == early
    full = evaluation("full", AGAINST.model_copy(update={"champion_c": 0.9}))
    remember(store, full, publish(store, full, tmp_path, summary=EvaluateSummary(scores={})))
    for name, race in (("free-2", None), ("against-2", AGAINST)):
        shared = reuse(store, evaluation(name, race))
        assert shared is not None and shared.cached_from == "full"
        assert isinstance(shared.summary, EvaluateSummary) and shared.summary.stopped is None


@pytest.mark.parametrize(("code", "kind"), [("SlowDown", StoreUnavailable), ("AccessDenied", Denied)])
@pytest.mark.parametrize("way", ["put", "fetch"])
def test_a_refused_part_of_a_large_file_is_the_stores_error(
    way: str, code: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store("bucket", "x", "http://127.0.0.1:1", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
    (tmp_path / "large").write_bytes(b"x" * 9)

    def answer(operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        if operation == "HeadObject":
            if way == "put":
                raise ClientError({"Error": {"Code": "404"}}, operation)
            return {"ContentLength": 9, "ETag": "e"}
        raise ClientError({"Error": {"Code": code}}, operation)

    monkeypatch.setattr(s3, "SINGLE_PUT_BYTES", 1)
    monkeypatch.setattr(store.client, "_make_api_call", answer)
    with pytest.raises(kind, match=code):
        if way == "put":
            store.put("k", tmp_path / "large")
        else:
            store.fetch(FileRef(key="k", digest=f"sha256:{'0' * 64}", size_bytes=9), tmp_path / "copy")
