"""Detects truncated compressed files where their reader mistakes a truncation for the end: Hadoop's
bzip2 between two blocks, zstd-jni in any frame but the first.
"""

from __future__ import annotations

import io
from typing import BinaryIO

_BZIP2_END = 0x177245385090
_BZIP2_END_BITS, _BZIP2_SUM_BITS = 48, 32
_FRAME = 0xFD2FB528  # of Zstandard: see RFC 8878
_SKIPPABLE_FRAMES = range(0x184D2A50, 0x184D2A60)
_RLE_BLOCK = 1  # has one byte, whatever its size


def bzip2_is_whole(file: BinaryIO, size: int) -> bool:
    """Returns whether the last bytes are the end of a stream: its marker and its checksum, which
    start at any bit.
    """
    file.seek(max(0, size - (_BZIP2_END_BITS + _BZIP2_SUM_BITS) // 8 - 1))
    bits = int.from_bytes(file.read(), "big")
    mask = (1 << _BZIP2_END_BITS) - 1
    return any(bits >> _BZIP2_SUM_BITS + pad & mask == _BZIP2_END for pad in range(8))


def zstandard_is_whole(file: BinaryIO, size: int) -> bool:
    """Returns whether the file consists of frames, the last of which ends at the end of the
    file.
    """
    try:
        while file.tell() < size:
            _pass_frame(file)
    except EOFError:
        return False
    return file.tell() == size


def _pass_frame(file: BinaryIO) -> None:
    """Skips a frame. Raises EOFError if the file ends before, or there is none."""
    magic = _number(file, 4)
    if magic in _SKIPPABLE_FRAMES:
        _skip(file, _number(file, 4))
        return
    if magic != _FRAME:
        raise EOFError
    descriptor = _number(file, 1)
    single = bool(descriptor & 0x20)
    _skip(file, (not single) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6])
    last = 0
    while not last:
        block = _number(file, 3)
        last, kind, length = block & 1, block >> 1 & 3, block >> 3
        _skip(file, 1 if kind == _RLE_BLOCK else length)
    if descriptor & 4:
        _skip(file, 4)  # the checksum


def _number(file: BinaryIO, size: int) -> int:
    found = file.read(size)
    if len(found) < size:
        raise EOFError
    return int.from_bytes(found, "little")


def _skip(file: BinaryIO, size: int) -> None:
    file.seek(size, io.SEEK_CUR)
