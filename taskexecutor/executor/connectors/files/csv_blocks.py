"""CSV files in blocks of lines: as Arrow's columns where it reads exactly what Spark would, and as
ranges for Spark where it may not. The content of a block decides, not the file's name or size.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

from firesteel.common.file_parts import FilePart
from firesteel.common.units import MIB
from taskexecutor.executor.connectors.files.csv_columns import BOM, CsvFormat, Differs, Lines

_BLOCK_BYTES = 2 * MIB  # of text
_LINE_BYTES = 64 * 1024  # are read behind a block at first, for its last line
_LONGEST_LINE_BYTES = 16 * MIB
_BUNDLE_BYTES = 16 * MIB  # of columns, before they are handed over
_MOST_SKIPPED = 64

Piece: TypeAlias = pa.Table | list[FilePart]


class Files(Protocol):
    def compressed(self, path: str) -> bool:
        """Whether the file is compressed as a whole."""

    def values(self, path: str) -> Mapping[str, pa.Scalar]:
        """Of the columns that the path gives."""


class CsvBlocks:
    """Reads the files of one source."""

    def __init__(self, format: CsvFormat, names: Sequence[str], files: Files) -> None:
        """`names`: of all columns, in order."""
        self._format = format
        self._names = tuple(names)
        self._files = files
        self._refused = 0  # parts in a row that began with something for Spark
        self._skipped = 0  # of the parts that follow, so many are not looked at
        self._for_spark = ""  # the last block that was refused, and why

    @property
    def reader(self) -> str:
        """Who reads the files, for users."""
        if not self._for_spark:
            return "Files are read by Arrow"
        return f"Files are read by Arrow, or by Spark, as in {self._for_spark}"

    def pieces(
        self, parts: Sequence[FilePart], names: Collection[str]
    ) -> Generator[Piece, None, None]:
        """The rows of the parts, in order: tables that have the columns `names`, and parts that
        Spark must read.
        """
        tables: list[pa.Table] = []
        left: list[FilePart] = []
        size = 0
        for part in parts:
            for piece in self._of(part, names):
                if isinstance(piece, FilePart):
                    if tables:
                        yield pa.concat_tables(tables)
                        tables, size = [], 0
                    left.append(piece)
                    continue
                if left:
                    yield left
                    left = []
                tables.append(piece)
                size += piece.nbytes
                if size >= _BUNDLE_BYTES:
                    yield pa.concat_tables(tables)
                    tables, size = [], 0
        if left:
            yield left
        if tables:
            yield pa.concat_tables(tables)

    def _of(self, part: FilePart, names: Collection[str]) -> Iterator[pa.Table | FilePart]:
        if self._skipped or self._files.compressed(part.path):
            self._skipped = max(0, self._skipped - 1)
            yield part
            return
        end = part.start + part.length
        try:
            file = os.open(part.path, os.O_RDONLY)
        except OSError:
            yield part  # Spark says what is wrong, or leaves it out
            return
        try:
            stop = part.start
            while stop < end:
                start = stop  # from where Spark reads if what follows is refused
                stop = _end_of_block(file, start, end)
                block = lines(file, start, stop)
                table = self._format.columns(block, names, first=start == 0)
                self._refused = 0
                if table.num_rows:
                    yield self._with_values(table, part.path)
        except (Differs, OSError) as reason:
            self._for_spark = f"{part.path} from byte {start}: {reason}"
            self._refused += 1
            self._skipped = min(2**self._refused, _MOST_SKIPPED) - 2
            yield part._replace(start=start, length=end - start)
        finally:
            os.close(file)

    def _with_values(self, table: pa.Table, path: str) -> pa.Table:
        """With the columns that the file's path gives, each in its place."""
        values = self._files.values(path)
        if not values:
            return table
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        for name, value in values.items():
            columns[name] = pa.chunked_array([pa.repeat(value, table.num_rows)])
        return pa.table({name: columns[name] for name in self._names if name in columns})


def _end_of_block(file: int, start: int, end: int) -> int:
    """Where a block of a range may end: not before a byte order mark, which Spark takes for a part
    of the text except in the first line of what it reads.
    """
    stop = min(start + _BLOCK_BYTES, end)
    while stop < end:
        last = lines(file, stop, stop).end
        following = stop + last
        if following > end or os.pread(file, len(BOM), following) != BOM:
            break
        stop = following  # the line that begins there is this block's
    return stop


def lines(file: int, start: int, end: int) -> Lines:
    """The lines that Spark counts as those of this range: a line that begins where a range ends is
    the range's. Raises Differs.
    """
    more = _LINE_BYTES
    while True:
        text = _read(file, start, end - start + more)
        last = text.find(b"\n", end - start) + 1
        if last:
            break
        if len(text) < end - start + more:  # there is no more
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
