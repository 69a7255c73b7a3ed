"""Ends of compressed files."""

from __future__ import annotations

import bz2
import io
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import BinaryIO

import pyarrow as pa
import pytest

from taskexecutor.executor.columnar.readers.compression import bzip2_is_whole, zstandard_is_whole

TEXT = b"".join(b"%d,%d\n" % (n % 50, n % 7) for n in range(40_000))  # several blocks


def zstandard(text: bytes) -> bytes:
    return bytes(pa.compress(text, codec="zstd", asbytes=True))


SKIPPABLE = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
# A frame with a content size of 3, one raw block and a checksum.
WITH_CHECKSUM = b"\x28\xb5\x2f\xfd\x24\x03\x19\0\0abcSUM!"


@pytest.mark.parametrize(
    ("is_whole", "files"),
    [
        (bzip2_is_whole, [bz2.compress(TEXT, 1), bz2.compress(b""), bz2.compress(b"1,a\n")]),
        (
            zstandard_is_whole,
            [zstandard(TEXT), zstandard(b""), SKIPPABLE, WITH_CHECKSUM, zstandard(bytes(300_000))],
        ),
    ],
    ids=["bzip2", "Zstandard"],
)
def test_files_one_behind_the_other_are_whole_where_one_ends(
    is_whole: Callable[[BinaryIO, int], bool], files: Sequence[bytes]
) -> None:
    ends = set(accumulate(map(len, files)))
    whole = b"".join(files)
    assert {
        size for size in range(1, len(whole) + 1) if is_whole(io.BytesIO(whole[:size]), size)
    } == ends


def test_what_is_no_frame_is_no_end() -> None:
    for garbage in (b"\0", b"garbage"):
        found = zstandard(b"1,a\n") + garbage
        assert not zstandard_is_whole(io.BytesIO(found), len(found))
        found = bz2.compress(b"1,a\n") + garbage
        assert not bzip2_is_whole(io.BytesIO(found), len(found))
