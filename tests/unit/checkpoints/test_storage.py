"""Files of checkpoints: whole or not there, and never believed if they are damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from firesteel.common.checkpoints.state import KeyGroupSlice, StateFile
from firesteel.common.checkpoints.storage import CheckpointStorage, StorageError


@pytest.fixture(params=["path", "uri"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(str(tmp_path) if request.param == "path" else tmp_path.as_uri())


def test_what_is_written_can_be_read_whole_and_in_parts(storage: CheckpointStorage) -> None:
    file = storage.write("job/chk-1/a", [b"abc", b"", b"defg"])
    assert (file.path, file.size_bytes) == ("job/chk-1/a", 7)
    assert storage.read(file) == b"abcdefg"
    part = storage.write("x", [b"cde"])
    assert storage.read_slice(file, KeyGroupSlice(4, 2, 3, part.checksum)) == b"cde"
    assert storage.files() == ["job/chk-1/a", "x"]
    assert storage.at("job").read_unchecked("chk-1/a") == b"abcdefg"


def test_a_file_that_could_not_be_written_to_its_end_is_not_there(
    storage: CheckpointStorage,
) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"a" * 100_000
        raise RuntimeError("the task was cancelled")

    with pytest.raises(RuntimeError, match="cancelled"):
        storage.write("job/a", chunks())
    assert storage.files() == []


def test_damage_is_found(storage: CheckpointStorage, tmp_path: Path) -> None:
    file = storage.write("a", [b"abcdefg"])
    path = tmp_path / "a"
    for content, problem in [
        (b"abXdefg", "is damaged: the 7 bytes at 0 have checksum"),
        (b"abc", "is cut short: 7 bytes were written at 0, 3 are left"),
    ]:
        path.write_bytes(content)
        with pytest.raises(StorageError, match=problem):
            storage.read(file)
    path.unlink()
    with pytest.raises(StorageError, match=r"the file a of .* cannot be read"):
        storage.read(file)


def test_deleting_what_is_gone_is_fine(storage: CheckpointStorage) -> None:
    storage.write("job/a", [b"a"])
    storage.delete(["job/a", "job/a", "other"])
    storage.write("job/b", [b"b"])
    storage.delete_directory("job")
    storage.delete_directory("job")
    assert storage.files() == []
    assert not storage.exists("job/b")


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b"])
def test_no_path_leads_out(storage: CheckpointStorage, path: str) -> None:
    """A path may come from a metadata file (invariant 24)."""
    with pytest.raises(StorageError, match="leads out of the directory"):
        storage.read(StateFile(path=path, size_bytes=1, checksum=""))


def test_a_directory_that_cannot_be_written_is_named_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    storage = CheckpointStorage(str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError, match=r"file/below cannot be written \(execution.checkpoin"):
        storage.check_writable()
    good = CheckpointStorage(str(tmp_path / "new"))
    good.check_writable()
    assert good.files() == []


def test_a_uri_of_nothing_known_is_refused() -> None:
    with pytest.raises(StorageError, match="execution.checkpointing.dir: 'nope://x' is not"):
        CheckpointStorage("nope://x")


def test_a_full_disk_leaves_no_file(storage: CheckpointStorage, tmp_path: Path) -> None:
    """/dev/full takes nothing."""
    os.symlink("/dev/full", tmp_path / "a.part")
    with pytest.raises(StorageError, match=r"cannot be written: No space left on device"):
        storage.write("a", [b"x" * 100])
    assert storage.files() == []
