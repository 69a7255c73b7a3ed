"""The directory that Dispatchers share, and those that they only seem to share."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.shared_storage import BadStorage, check_storage, claim_storage, storage_directory
from firesteel.common.config import Configuration

MINE, OTHER = "1" * 32, "2" * 32


def configured(value: str) -> Configuration:
    return Configuration({"high-availability.storageDir": value})


def test_it_is_the_dispatchers_own_unless_configured(tmp_path: Path) -> None:
    assert storage_directory(Configuration({}), tmp_path) == tmp_path
    for value in ("/mnt/a b", "file:///mnt/a%20b", "file://localhost/mnt/a%20b"):
        assert storage_directory(configured(value), tmp_path) == Path("/mnt/a b")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("s3://bucket/ha", "a directory that all Dispatchers have mounted"),
        ("file://server/ha", "a directory that all Dispatchers have mounted"),
        ("ha", "give an absolute path"),
    ],
)
def test_what_is_no_shared_directory_is_refused(value: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(BadStorage, match=reason) as error:
        storage_directory(configured(value), tmp_path)
    assert f"high-availability.storageDir: {value!r}" in str(error.value)


def test_the_next_dispatcher_finds_the_first_ones_directory(tmp_path: Path) -> None:
    storage = tmp_path / "new" / "ha"
    check_storage(storage, store_id=MINE, had_leader=False)
    claim_storage(storage, store_id=MINE, had_leader=False)
    check_storage(storage, store_id=MINE, had_leader=True)
    claim_storage(storage, store_id=MINE, had_leader=True)
    assert [path.name for path in storage.iterdir()] == ["job-store"]


def test_a_directory_that_the_leader_did_not_have_is_refused(tmp_path: Path) -> None:
    for check in (check_storage, claim_storage):
        with pytest.raises(BadStorage, match=f"{tmp_path} does not have the files and rows"):
            check(tmp_path, store_id=MINE, had_leader=True)
    assert not list(tmp_path.iterdir())


def test_a_directory_from_before_there_was_a_marker_is_taken(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    claim_storage(tmp_path, store_id=MINE, had_leader=True)
    assert (tmp_path / "job-store").read_text() == f"{MINE}\n"


def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    claim_storage(tmp_path, store_id=OTHER, had_leader=False)
    for check in (check_storage, claim_storage):
        with pytest.raises(BadStorage, match=f"to the job store {OTHER}, and this one's is {MINE}"):
            check(tmp_path, store_id=MINE, had_leader=False)
    assert (tmp_path / "job-store").read_text() == f"{OTHER}\n"


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadStorage, match=f"{tmp_path}/file/ha cannot be written and read by"):
        check_storage(tmp_path / "file" / "ha", store_id=MINE, had_leader=False)
