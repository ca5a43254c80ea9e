"""Checkpoints that live in a store: what is copied, and what a cut or a loss leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from curateevo.api.errors import Conflict, StoreUnavailable
from curateevo.api.stage import FileRef
from curateevo.store.local import LocalStore
from curateevo_jobs.checkpoints import StoredCheckpoints

PREFIX = "runs/u/versions/0/train/checkpoints"


class Watched(LocalStore):
    """Remembers what was put, and may be away when the index is to be replaced."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.puts: list[int] = []
        self.away = False

    def put(self, key: str, source: bytes | Path) -> FileRef:
        ref = super().put(key, source)
        self.puts.append(ref.size_bytes)
        return ref

    def swap(self, key: str, data: bytes, tag: str | None) -> str:
        if self.away:
            raise StoreUnavailable("away")
        return super().swap(key, data, tag)


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "store")


def opened(store: Watched, folder: Path) -> StoredCheckpoints:
    """The checkpoints as another attempt finds them."""
    folder.mkdir()
    found = StoredCheckpoints(folder, store, PREFIX)
    found.restore()
    return found


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def read(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_another_attempt_finds_what_was_saved(store: Watched, tmp_path: Path) -> None:
    first = opened(store, tmp_path / "a")
    assert read(first.folder) == {}
    write(first.folder, "sft-0/checkpoint-2/model", "two")
    write(first.folder, "metrics.jsonl", "1\n")
    first.save()
    assert read(opened(store, tmp_path / "b").folder) == read(first.folder)


def test_a_save_copies_what_is_new_and_lets_go_of_what_went(store: Watched, tmp_path: Path) -> None:
    checkpoints = opened(store, tmp_path / "a")
    write(checkpoints.folder, "sft-0/checkpoint-2/model", "two")
    checkpoints.save()
    write(checkpoints.folder, "sft-0/checkpoint-4/model", "four!")
    (checkpoints.folder / "sft-0/checkpoint-2/model").unlink()
    checkpoints.save()
    assert store.puts == [len("two"), len("four!")]
    assert len(list(store.keys(f"{PREFIX}/files/"))) == 1
    later = opened(store, tmp_path / "b")
    assert read(later.folder) == {"sft-0/checkpoint-4/model": "four!"}
    later.save()
    assert len(store.puts) == 2, "what was restored is not copied again"


def test_a_save_that_was_cut_off_never_happened(store: Watched, tmp_path: Path) -> None:
    checkpoints = opened(store, tmp_path / "a")
    write(checkpoints.folder, "model", "old")
    checkpoints.save()
    write(checkpoints.folder, "model", "newer")
    store.away = True
    with pytest.raises(StoreUnavailable):
        checkpoints.save()
    store.away = False
    later = opened(store, tmp_path / "b")
    assert read(later.folder) == {"model": "old"}
    write(later.folder, "model", "newer")
    later.save()
    assert read(opened(store, tmp_path / "c").folder) == {"model": "newer"}


def test_a_file_that_was_lost_is_left_out(store: Watched, tmp_path: Path) -> None:
    checkpoints = opened(store, tmp_path / "a")
    write(checkpoints.folder, "lost", "x")
    write(checkpoints.folder, "kept", "y")
    checkpoints.save()
    lost = next(key for key in store.keys(f"{PREFIX}/files/") if store.get(key) == b"x")
    store.delete(lost)
    assert read(opened(store, tmp_path / "b").folder) == {"kept": "y"}


def test_of_two_attempts_at_once_one_goes_on(store: Watched, tmp_path: Path) -> None:
    first, second = opened(store, tmp_path / "a"), opened(store, tmp_path / "b")
    for attempt in (first, second):
        write(attempt.folder, "model", attempt.folder.name)
    second.save()
    with pytest.raises(Conflict):
        first.save()
    second.save()
    assert read(opened(store, tmp_path / "c").folder) == {"model": "b"}


def test_nothing_is_left_of_what_was_let_go(store: Watched, tmp_path: Path) -> None:
    checkpoints = opened(store, tmp_path / "a")
    write(checkpoints.folder, "model", "x")
    checkpoints.save()
    checkpoints.discard()
    assert not list(store.keys(PREFIX)) and read(opened(store, tmp_path / "b").folder) == {}
