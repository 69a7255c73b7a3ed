"""CSV files in blocks of lines: read as Arrow columns where Arrow reads exactly what Spark would,
and passed to Spark as ranges elsewhere. The content of a block decides, not the file's name or
size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from firesteel.common.file_parts import FilePart
from firesteel.common.units import MIB
from taskexecutor.executor.columnar.readers.csv_columns import BOM, CsvFormat, Lines
from taskexecutor.executor.columnar.readers.pieces import (
    Block,
    Differs,
    Files,
    PartReader,
    Wanted,
)

_BLOCK_BYTES = 4 * MIB  # of text
_LINE_BYTES = 64 * 1024  # first read-ahead after a block, to find the end of its last line
_LONGEST_LINE_BYTES = 16 * MIB
_MOST_SKIPPED = 64


class CsvBlocks(PartReader):
    """Reads the files of one source."""

    def __init__(self, format: CsvFormat, names: Sequence[str], files: Files) -> None:
        """`names` are those of all columns, in order."""
        super().__init__(names, files)
        self._format = format
        self._refused = 0  # consecutive parts that started with a block for Spark
        self._skipped = 0  # number of following parts that are not tried

    def _of(self, part: FilePart, wanted: Wanted, begun_before: bool) -> Iterator[Block | FilePart]:
        if self._skipped or self._files.compressed(part.path):
            self._skipped = max(0, self._skipped - 1)
            yield part
            return
        end = part.start + part.length
        try:
            file = os.open(part.path, os.O_RDONLY)
        except OSError:
            yield part  # Spark raises the error or drops the row
            return
        try:
            stop = part.start
            while stop < end:
                start = stop  # where Spark starts to read if the next block is refused
                stop = _end_of_block(file, start, end)
                block = lines(file, start, stop)
                rows = self._format.rows(block, wanted, first=start == 0)
                self._refused = 0
                if rows.read:
                    yield Block(rows, start, 0, stop, stop - start)
        except (Differs, OSError) as reason:
            self.for_spark = f"{part.path} from byte {start}: {reason}"
            self._refused += 1
            self._skipped = min(2**self._refused, _MOST_SKIPPED) - 2
            yield part._replace(start=start, length=end - start)
        finally:
            os.close(file)


def _end_of_block(file: int, start: int, end: int) -> int:
    """Returns a possible end of a block in a range: not before a byte order mark, which Spark
    treats as text, except in the first line that it reads.
    """
    stop = min(start + _BLOCK_BYTES, end)
    while stop < end:
        last = lines(file, stop, stop).end
        following = stop + last
        if following > end or os.pread(file, len(BOM), following) != BOM:
            break
        stop = following  # the line that starts there belongs to this block
    return stop


def lines(file: int, start: int, end: int) -> Lines:
    """Returns the lines that Spark counts as those of this range: a line that starts where a range
    ends belongs to the range. Raises Differs.
    """
    more = _LINE_BYTES
    while True:
        text = _read(file, start, end - start + more)
        last = text.find(b"\n", end - start) + 1
        if last:
            break
        if len(text) < end - start + more:  # end of file
            last = len(text)
            break
        if more >= _LONGEST_LINE_BYTES:
            raise Differs("a long line")
        more *= 4
    first = 0 if not start else text.find(b"\n", 0, last) + 1 or last
    return Lines(text, first, last)


def _read(file: int, start: int, size: int) -> bytes:
    parts = []
    while size and (part := os.pread(file, size, start)):
        parts.append(part)
        start += len(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
