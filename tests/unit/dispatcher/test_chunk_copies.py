"""Rows and files in an object store, of which the next leader has nothing else. The object store is
a directory, which is written as one is.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import xxhash

from dispatcher.blob_store import SUBMIT_WITHIN_S, BlobStore
from dispatcher.chunk_copies import ChunkCopies
from dispatcher.results import ChunkReader, ResultStore
from firesteel.common.checkpoints.storage import CheckpointStorage, StorageError

JOB, OTHER_JOB, SINK = "a" * 32, "b" * 32, "c" * 32
FIRST = 1


class Leaders:
    """Successive leaders, each with a separate directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.storage = folder / "storage"
        self.epoch = 0

    def next(self) -> ResultStore:
        self.epoch += 1
        copies = ChunkCopies(CheckpointStorage(str(self.storage)), self.epoch)
        return ResultStore(self._folder / f"leader-{self.epoch}", copies=copies)


@pytest.fixture
def leaders(tmp_path: Path) -> Leaders:
    return Leaders(tmp_path)


def append(store: ResultStore, index: int, content: bytes, **more: str) -> None:
    store.append(JOB, SINK, FIRST, index, content, **more)


def read(store: ResultStore, generation: int = FIRST) -> list[bytes]:
    assert store.newest(JOB, SINK) == generation
    reader = ChunkReader(store.path(JOB, SINK, generation))
    chunks = []
    while (chunk := reader.next()) is not None:
        chunks.append(chunk)
    return chunks


def test_the_next_leader_has_what_was_acknowledged(leaders: Leaders) -> None:
    first = leaders.next()
    append(first, 0, b"one", group="g1", attempt_id="x")
    append(first, 1, b"two", group="g2", attempt_id="y")
    append(first, 2, b"", group="g1")
    assert read(first) == [b"one"]
    second = leaders.next()
    assert second.total_bytes == first.total_bytes > 0
    (collected,) = second.collected(JOB)
    assert (collected.generation, collected.chunks) == (FIRST, 3)
    assert collected.by_attempt == {"x": 1, "y": 1}
    assert read(second) == [b"one"]
    append(second, 2, b"", group="g1")  # it is sent again: its answer was lost
    append(second, 3, b"", group="g2")
    assert read(leaders.next()) == [b"one", b"two"]


def test_a_generation_without_chunks_replaces_the_one_before(leaders: Leaders) -> None:
    first = leaders.next()
    append(first, 0, b"void")
    first.begin(JOB, SINK, FIRST + 1)
    assert read(leaders.next(), FIRST + 1) == []


def test_what_a_replaced_leader_still_stores_does_not_count(leaders: Leaders) -> None:
    replaced = leaders.next()
    append(replaced, 0, b"0")
    leads = leaders.next()
    append(leads, 1, b"1")
    append(replaced, 1, b"other 1")
    append(replaced, 2, b"other 2")
    assert read(leaders.next()) == [b"0", b"1"]


def test_rows_that_were_deleted_are_gone_for_the_next_leader_too(leaders: Leaders) -> None:
    first = leaders.next()
    append(first, 0, b"row")
    first.append(OTHER_JOB, SINK, FIRST, 0, b"row")
    first.drop(OTHER_JOB)
    second = leaders.next()  # which has fetched nothing
    second._evict(JOB, "too old")
    third = leaders.next()
    assert third.jobs() == [JOB]
    assert third.evicted(JOB) == "too old"
    assert third.newest(JOB, SINK) is None
    assert not list(leaders.storage.rglob("*-1"))


def test_a_chunk_is_not_kept_before_it_is_stored(leaders: Leaders) -> None:
    store = leaders.next()
    append(store, 0, b"0")
    away = leaders.storage.rename(leaders.storage.with_name("away"))
    leaders.storage.write_text("")
    with pytest.raises(StorageError):
        append(store, 1, b"1")
    assert read(store) == [b"0"]
    leaders.storage.unlink()
    away.rename(leaders.storage)
    append(store, 1, b"1")
    assert read(leaders.next()) == [b"0", b"1"]


def test_the_next_leader_has_the_files(tmp_path: Path) -> None:
    content = b"ONE = 1\n"
    name = xxhash.xxh3_128_hexdigest(content)

    def store(leader: str) -> BlobStore:
        copies = CheckpointStorage(str(tmp_path / "storage"))
        return BlobStore(tmp_path / leader, 1000, copies=copies)

    with store("first").begin(name) as upload:
        upload.write(content)
        upload.finish()
    shutil.rmtree(tmp_path / "first")
    second = store("second")
    with second.open(name) as file:
        assert file.read() == content
    assert store("third").missing([name, "f" * 32]) == ["f" * 32]
    fourth = store("fourth")
    assert fourth.drop_unneeded([name], now=0.0) == []
    assert fourth.drop_unneeded([], now=0.0) == [], "a client may have just learned that it is here"
    assert fourth.drop_unneeded([], now=SUBMIT_WITHIN_S + 1) == [name]
    assert store("fifth").missing([name]) == [name]


def test_a_damaged_file_is_not_used(tmp_path: Path) -> None:
    name = "f" * 32
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / name).write_bytes(b"other")
    store = BlobStore(
        tmp_path / "leader", 1000, copies=CheckpointStorage(str(tmp_path / "storage"))
    )
    with pytest.raises(StorageError, match=f"the file {name} of .* is damaged"):
        store.open(name)
    with pytest.raises(FileNotFoundError):
        (tmp_path / "leader" / name).read_bytes()
