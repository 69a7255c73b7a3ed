"""The directory that Dispatchers share, and those that they only seem to share."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.shared_storage import BadStorage, SharedStorage
from firesteel.common.config import Configuration

MINE, OTHER = "1" * 32, "2" * 32


def configured(value: str) -> Configuration:
    return Configuration({"high-availability.storageDir": value})


def at(directory: Path) -> SharedStorage:
    return SharedStorage(directory, None)


def test_it_is_the_dispatchers_own_unless_configured(tmp_path: Path) -> None:
    assert SharedStorage.of(Configuration({}), tmp_path) == at(tmp_path)
    for value in ("/mnt/a b", "file:///mnt/a%20b", "file://localhost/mnt/a%20b"):
        assert SharedStorage.of(configured(value), tmp_path) == at(Path("/mnt/a b"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("ftp://bucket/ha", "is not a directory's URI"),
        ("file://server/ha", "the directory where its files are mounted here"),
        ("ha", "specify an absolute path"),
    ],
)
def test_what_is_no_shared_directory_is_refused(value: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(BadStorage, match=reason) as error:
        SharedStorage.of(configured(value), tmp_path)
    assert f"high-availability.storageDir: {value!r}" in str(error.value)


def test_the_next_dispatcher_finds_the_first_ones_directory(tmp_path: Path) -> None:
    storage = tmp_path / "new" / "ha"
    at(storage).check(store_id=MINE, had_leader=False)
    at(storage).claim(store_id=MINE, had_leader=False)
    at(storage).check(store_id=MINE, had_leader=True)
    at(storage).claim(store_id=MINE, had_leader=True)
    assert [path.name for path in storage.iterdir()] == ["job-store"]


def test_a_directory_that_the_leader_did_not_have_is_refused(tmp_path: Path) -> None:
    for check in (at(tmp_path).check, at(tmp_path).claim):
        with pytest.raises(BadStorage, match=f"{tmp_path} does not contain the files and rows"):
            check(store_id=MINE, had_leader=True)
    assert not list(tmp_path.iterdir())


def test_a_directory_from_before_there_was_a_marker_is_taken(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    at(tmp_path).claim(store_id=MINE, had_leader=True)
    assert (tmp_path / "job-store").read_text() == f"{MINE}\n"


def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    at(tmp_path).claim(store_id=OTHER, had_leader=False)
    for check in (at(tmp_path).check, at(tmp_path).claim):
        with pytest.raises(
            BadStorage, match=f"with the job store {OTHER}; the job store here is {MINE}"
        ):
            check(store_id=MINE, had_leader=False)
    assert (tmp_path / "job-store").read_text() == f"{OTHER}\n"


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadStorage, match=f"{tmp_path}/file/ha cannot be written and read by"):
        at(tmp_path / "file" / "ha").check(store_id=MINE, had_leader=False)


def test_a_leader_sees_that_another_one_has_followed(tmp_path: Path) -> None:
    storage = at(tmp_path)
    assert storage.epoch() == 0
    storage.lead(7)
    assert at(tmp_path).epoch() == 7
