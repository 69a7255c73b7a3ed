"""Files of checkpoints: whole or not there, and never believed if they are damaged. On a disk and
on S3.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import xxhash

from firesteel.common.checkpoints import storage as storage_module
from firesteel.common.checkpoints.state import KeyGroupSlice, StateFile
from firesteel.common.checkpoints.storage import CheckpointStorage, StorageError
from tests.object_store import BUCKET, SECRET_KEY, ObjectStore


class Place(NamedTuple):
    """A directory, and what others do there."""

    uri: str
    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]


@pytest.fixture(params=["path", "uri", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        store: ObjectStore = request.getfixturevalue("object_store")
        prefix = uuid.uuid4().hex
        return Place(
            store.uri(prefix),
            lambda path, content: store.put(f"{prefix}/{path}", content),
            lambda path: store.delete(f"{prefix}/{path}"),
        )
    return Place(
        str(tmp_path) if request.param == "path" else tmp_path.as_uri(),
        lambda path, content: (tmp_path / path).write_bytes(content),
        lambda path: (tmp_path / path).unlink(),
    )


@pytest.fixture
def storage(place: Place) -> CheckpointStorage:
    return CheckpointStorage(place.uri)


def test_files_that_are_missing_or_cut_short_are_found_without_reading(
    storage: CheckpointStorage, place: Place
) -> None:
    files = [storage.write(f"job/{name}", [b"whole"]) for name in "abc"]
    storage.check_whole(files)
    storage.check_whole([])
    place.put("job/b", b"who")
    with pytest.raises(StorageError, match=r"job/b of .* not whole: 5 bytes were written, and 3 "):
        storage.check_whole(files)
    place.delete("job/a")
    with pytest.raises(StorageError, match=r"the file job/a of .* is missing"):
        storage.check_whole(files)


def test_what_is_written_can_be_read_whole_and_in_parts(storage: CheckpointStorage) -> None:
    file = storage.write("job/chk-1/a", [b"abc", b"", b"defg"])
    assert (file.path, file.size_bytes) == ("job/chk-1/a", 7)
    assert storage.read(file) == b"abcdefg"
    storage.write("x", [b"cde"])
    assert storage.files() == ["job/chk-1/a", "x"]
    assert storage.directories() == ["job"]
    assert storage.exists("x")
    assert storage.at("job").read_unchecked("chk-1/a") == b"abcdefg"
    assert CheckpointStorage(storage.at("job").uri).files() == ["chk-1/a"]


def sliced(parts: list[bytes]) -> list[KeyGroupSlice]:
    ends = [0, *itertools.accumulate(map(len, parts))]
    return [
        KeyGroupSlice(number, offset, len(part), xxhash.xxh3_128_hexdigest(part))
        for number, (offset, part) in enumerate(zip(ends, parts, strict=False))
    ]


class Counted:
    """A file that counts how often it is read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.reads = 0

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        self.reads += 1
        content: bytes = self._file.read_at(size_bytes, offset)
        return content


def test_slices_are_read_in_few_pieces_and_checked_one_by_one(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [bytes([n]) * 1000 for n in range(100)] + [b"x" * (5 << 20), b"", b"y" * (3 << 20)]
    slices = sliced(parts)
    file = storage.write("a", parts)
    reads: list[int] = []
    opened = storage._opened

    @contextmanager
    def counted(file: StateFile) -> Iterator[Counted]:
        with opened(file) as source:
            yield (counted := Counted(source))
            reads.append(counted.reads)

    monkeypatch.setattr(storage, "_opened", counted)
    assert list(storage.read_slices(file, slices)) == parts
    wanted = [*slices[3:7], slices[9], *slices[20:30], slices[-1]]
    assert list(storage.read_slices(file, wanted)) == [parts[part.key_group] for part in wanted]
    assert list(storage.read_slices(file, [])) == []
    assert reads == [3, 4, 0]
    damaged = slices[5]._replace(checksum="0" * 32)
    found = storage.read_slices(file, [*slices[3:5], damaged])
    assert [next(found), next(found)] == parts[3:5]
    with pytest.raises(StorageError, match=r"is damaged: the 1000 bytes at 5000 have checksum"):
        next(found)
    short = slices[-1]._replace(size_bytes=9 << 20)
    with pytest.raises(StorageError, match=r"is cut short: 9437184 bytes were .* 3145728 are left"):
        list(storage.read_slices(file, [short]))


def test_a_file_is_copied_and_checked(storage: CheckpointStorage, tmp_path: Path) -> None:
    file = storage.write("shared/table", [b"content"])
    copy = tmp_path / "copy"
    storage.read_to(file, copy)
    assert copy.read_bytes() == b"content"
    copy.unlink()
    assert storage.read(file) == b"content", "also if the copy is a link"
    with pytest.raises(StorageError, match="damaged"):
        storage.read_to(replace(file, checksum="0" * 32), copy)


def test_a_copy_within_a_file_system_is_a_link(tmp_path: Path) -> None:
    storage = CheckpointStorage(str(tmp_path))
    file = storage.write("table", [b"content"])
    storage.read_to(file, tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_nlink == 2
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        elsewhere = Path(memory) / "copy"
        assert elsewhere.parent.stat().st_dev != tmp_path.stat().st_dev
        storage.read_to(file, elsewhere)
        assert elsewhere.read_bytes() == b"content" and elsewhere.stat().st_nlink == 1


def test_a_file_of_several_parts(storage: CheckpointStorage) -> None:
    """S3 takes parts of 5 MiB at least; chunks are smaller, and not of equal size."""
    chunks = [bytes([n]) * (3 << 20) for n in range(5)] + [b"end"]
    file = storage.write("a", chunks)
    assert storage.read(file) == b"".join(chunks)


@pytest.mark.parametrize("size", [100_000, 11 << 20])
def test_a_file_that_could_not_be_written_to_its_end_is_not_there(
    storage: CheckpointStorage, size: int, request: pytest.FixtureRequest
) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"a" * size
        raise RuntimeError("the task was cancelled")

    with pytest.raises(RuntimeError, match="cancelled"):
        storage.write("job/a", chunks())
    assert storage.files() == []
    if storage.uri.startswith("s3:"):
        assert request.getfixturevalue("object_store").unfinished_uploads() == 0


def test_damage_is_found(storage: CheckpointStorage, place: Place) -> None:
    file = storage.write("a", [b"abcdefg"])
    for content, problem in [
        (b"abXdefg", "is damaged: the 7 bytes at 0 have checksum"),
        (b"abc", "is cut short: 7 bytes were written at 0, 3 are left"),
    ]:
        place.put("a", content)
        with pytest.raises(StorageError, match=problem):
            storage.read(file)
    place.delete("a")
    for read in (lambda: storage.read(file), lambda: storage.read_unchecked("a")):
        with pytest.raises(StorageError, match=r"the file a of .* cannot be read"):
            read()
    assert not storage.exists("a")


def test_deleting_what_is_gone_is_fine(storage: CheckpointStorage) -> None:
    storage.write("job/a", [b"a"])
    storage.delete(["job/a", "job/a", "other"])
    storage.write("job/b", [b"b"])
    storage.delete_directory("job")
    storage.delete_directory("job")
    assert storage.files() == []
    assert not storage.exists("job/b")


def test_a_copy_is_elsewhere_under_the_same_path(
    storage: CheckpointStorage, tmp_path: Path, object_store: ObjectStore
) -> None:
    file = storage.write("chk-1/a", [b"x" * (6 << 20)])
    for there in (str(tmp_path / "elsewhere"), object_store.uri(uuid.uuid4().hex)):
        copied = CheckpointStorage(there)
        storage.copy("chk-1/a", copied)
        assert copied.read(file) == storage.read(file)


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b"])
def test_no_path_leads_out(storage: CheckpointStorage, path: str) -> None:
    """A path may come from a metadata file (invariant 24)."""
    with pytest.raises(StorageError, match="leads out of the directory"):
        storage.read(StateFile(path=path, size_bytes=1, checksum=""))


def test_a_directory_that_can_be_written_is_left_as_it_was(place: Place) -> None:
    storage = CheckpointStorage(place.uri)
    storage.check_writable()
    assert storage.files() == []


def test_a_directory_that_cannot_be_written_is_named_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    storage = CheckpointStorage(str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError, match=r"file/below cannot be written \(execution.checkpoin"):
        storage.check_writable()


def test_a_bucket_that_does_not_exist_is_named(object_store: ObjectStore) -> None:
    storage = CheckpointStorage(object_store.uri("x", bucket="nowhere"))
    problem = r"s3://nowhere/x\?.* cannot be written \(execution.*dir\): .*bucket does not exist"
    with pytest.raises(StorageError, match=problem):
        storage.check_writable()
    with pytest.raises(StorageError, match=r"the file a of s3://nowhere.* cannot be written: .*"):
        storage.write("a", [b"a"])


def test_an_endpoint_may_come_from_the_environment(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.endpoint)
    storage = CheckpointStorage(f"s3://{BUCKET}/{uuid.uuid4().hex}/")
    storage.write("a", [b"a"])
    assert storage.files() == ["a"]


def test_unknown_credentials_are_reported(object_store: ObjectStore) -> None:
    storage = CheckpointStorage(object_store.uri("x"))
    problem = r"cannot be written \(execution.*The AWS Access Key Id you provided does not exist"
    with object_store.refusing(), pytest.raises(StorageError, match=problem) as raised:
        storage.check_writable()
    assert SECRET_KEY not in str(raised.value)
    storage.check_writable()


def test_credentials_in_a_uri_are_refused_and_not_shown(object_store: ObjectStore) -> None:
    uri = object_store.uri("x").replace("s3://", f"s3://AKIAX:{SECRET_KEY}@")
    with pytest.raises(StorageError, match=r"'s3://checkpoints/x\?.*Set s3.access-key") as raised:
        CheckpointStorage(uri)
    assert SECRET_KEY not in str(raised.value)


def test_a_store_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections, and says nothing."""
    monkeypatch.setattr(storage_module, "_ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        storage = CheckpointStorage(f"s3://b/x?endpoint_override=127.0.0.1:{port}&scheme=http")
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"cannot be read: .*Timeout was reached"):
            storage.exists("a")
        assert time.monotonic() - began < 60


def test_a_uri_of_nothing_known_is_refused() -> None:
    for uri, problem in [("nope://x", "nope"), ("s3://b/x?endpoint=y", "unknown parameter 'endp")]:
        message = f"execution.checkpointing.dir: '{re.escape(uri)}' is not .*{problem}"
        with pytest.raises(StorageError, match=message):
            CheckpointStorage(uri)


def test_only_an_object_store_gets_several_files_concurrently(
    tmp_path: Path, object_store: ObjectStore
) -> None:
    both = threading.Barrier(2)
    storage = CheckpointStorage(object_store.uri("each"))
    assert sorted(storage.each(lambda _: both.wait(60), range(2))) == [0, 1]
    begun = []

    def fails_first(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise StorageError("the first")

    with pytest.raises(StorageError, match="the first"):
        storage.each(fails_first, range(10_000))
    assert len(begun) < 10_000, "the remaining calls do not start"
    here = CheckpointStorage(str(tmp_path)).each(lambda _: threading.get_ident(), range(3))
    assert here == [threading.get_ident()] * 3


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    """/dev/full takes nothing."""
    storage = CheckpointStorage(str(tmp_path))
    os.symlink("/dev/full", tmp_path / "a.part")
    with pytest.raises(StorageError, match=r"cannot be written: No space left on device"):
        storage.write("a", [b"x" * 100])
    assert storage.files() == []
