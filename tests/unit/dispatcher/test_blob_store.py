from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from dispatcher.blob_store import BadBlob, BlobStore
from firesteel.errors import PayloadTooLarge

CONTENT = b"some Python" * 1000
HASH = xxhash.xxh3_128_hexdigest(CONTENT)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs", limit_bytes=20_000)


def upload(store: BlobStore, content: bytes = CONTENT, blob_hash: str = HASH) -> None:
    with store.begin(blob_hash) as upload:
        upload.write(content[:500])
        upload.write(content[500:])
        upload.finish()


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "blobs").iterdir())


def test_what_was_uploaded_is_there(store: BlobStore, tmp_path: Path) -> None:
    assert store.missing([HASH]) == [HASH]
    upload(store)
    upload(store)  # again is as good
    assert store.missing([HASH]) == []
    with store.open(HASH) as content:
        assert content.read() == CONTENT
    assert files(tmp_path) == [HASH]


def test_other_content_than_the_hash_says_is_refused_and_not_kept(
    store: BlobStore, tmp_path: Path
) -> None:
    with pytest.raises(BadBlob, match="different content"):
        upload(store, b"something else")
    assert files(tmp_path) == []


def test_an_upload_over_the_limit_names_both_numbers_and_is_not_kept(
    store: BlobStore, tmp_path: Path
) -> None:
    with pytest.raises(PayloadTooLarge, match=r"20,500 bytes.*20,000"):
        upload(store, b"x" * 20_500)
    assert files(tmp_path) == []


def test_an_interrupted_upload_is_not_kept(store: BlobStore, tmp_path: Path) -> None:
    def interrupted() -> None:
        with store.begin(HASH) as upload:
            upload.write(CONTENT)
            raise RuntimeError("the client went away")

    with pytest.raises(RuntimeError):
        interrupted()
    assert files(tmp_path) == []


def test_what_an_earlier_process_left_unfinished_is_removed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / f"{HASH}.1234.part").write_bytes(b"half")
    BlobStore(tmp_path / "blobs", limit_bytes=1)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../../etc/passwd",
        "A" * 32,
        "a" * 31,
        "a" * 33,
        "/etc/passwd",
        "a" * 31 + "/",
        "a" * 32 + "\n",
    ],
)
def test_no_name_but_a_hash_reaches_the_file_system(store: BlobStore, name: str) -> None:
    for ask in (store.path, store.begin, store.open, lambda name: store.missing([name])):
        with pytest.raises(BadBlob):
            ask(name)


def test_what_no_job_needs_is_dropped_once_it_cannot_be_about_to_be_named(
    store: BlobStore, tmp_path: Path
) -> None:
    others = [b"another", b"a third"]
    for content in (CONTENT, *others):
        upload(store, content, xxhash.xxh3_128_hexdigest(content))
    other, third = map(xxhash.xxh3_128_hexdigest, others)
    now = (tmp_path / "blobs" / HASH).stat().st_mtime
    assert store.drop_unneeded({HASH}, now) == []
    for name in (HASH, other, third):
        os.utime(tmp_path / "blobs" / name, (1, 1))
    assert store.missing([third]) == []  # somebody is about to submit a job with it
    assert store.drop_unneeded({HASH}, now) == [other]
    assert files(tmp_path) == sorted([HASH, third])


def test_files_that_another_call_drops_at_the_same_time_are_its_own(
    store: BlobStore, tmp_path: Path
) -> None:
    upload(store, CONTENT, HASH)
    os.utime(tmp_path / "blobs" / HASH, (1, 1))
    (tmp_path / "blobs" / ("0" * 32)).symlink_to("nowhere")  # listed, and not there
    assert store.drop_unneeded(set(), now=1e9) == [HASH]
