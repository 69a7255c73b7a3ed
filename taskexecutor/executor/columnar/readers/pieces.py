"""Reads parts of files in pieces: Arrow columns where Arrow reads exactly what Spark would, and
ranges for Spark elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from firesteel.common.file_parts import FilePart
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.cached_plans.wanted_rows import Bounds, Ints, WantedRows


class Place(NamedTuple):
    """A position: everything before it has been read."""

    part: int  # number of the part
    start: int = 0  # byte of the file; 0: the start of the part
    rows: int = 0  # rows from there on that have also been read


class Columns(NamedTuple):
    """Rows that Arrow has read."""

    table: pa.Table
    end: Place
    rows: int  # rows read for it, including unwanted ones
    size_bytes: int  # size of the data read, as counted for `Size`


class ForSpark(NamedTuple):
    """Parts, or ends of parts, that Spark must read."""

    parts: list[FilePart]
    numbers: list[int]  # of the parts
    rows: int = 0  # first rows of the first part, which have been read


Piece: TypeAlias = Columns | ForSpark

_READ_PER_RUN = 8  # skipping a row costs at most this fraction of a row that Spark processes


class Wanted(NamedTuple):
    """The wanted rows and columns of parts."""

    names: Collection[str]  # of the columns
    rows: WantedRows | None = None  # other rows may be skipped
    # Columns that may be filtered before their values are read; texts may be dictionaries with one
    # entry per row.
    late: Collection[str] = ()
    dictionaries: bool = False  # text columns may be dictionaries


class Rows(NamedTuple):
    """The wanted rows of a text or a batch."""

    table: pa.Table
    read: int  # number of all rows
    chosen: Ints | None = None  # indices of the wanted rows, in order; None: all

    @staticmethod
    def of(table: pa.Table, wanted: WantedRows | None) -> Rows:
        chosen = None if wanted is None else wanted.chosen(table)
        if chosen is None:
            return Rows(table, table.num_rows)
        return Rows(table.take(pa.array(chosen)), table.num_rows, chosen)

    def at(self, place: int) -> int:
        """Returns the table's first row with this index or a greater one."""
        return place if self.chosen is None else int(np.searchsorted(self.chosen, place))

    def place(self, at: int) -> int:
        return at if self.chosen is None else int(self.chosen[at])


class Block(NamedTuple):
    """Rows of one part, without the columns given by the file's path."""

    found: Rows
    start: int  # byte of the file
    rows: int  # rows from there on that precede the block's
    end: int | None = None  # byte after them; None: more rows follow, counted from `start`
    size_bytes: int = 0  # of the data read


class Size(Protocol):
    limit_bytes: int  # maximum bytes of columns per piece


class Differs(Exception):
    """Spark may read it differently; the message says why."""


class Files(Protocol):
    def compressed(self, path: str) -> bool:
        """Returns whether the whole file is compressed."""

    def values(self, path: str) -> Mapping[str, pa.Scalar]:
        """Returns the values of the columns given by the path."""


class PartReader(ABC):
    """Reads the files of one source."""

    def __init__(self, names: Sequence[str], files: Files) -> None:
        """`names` are those of all columns, in order."""
        self._names = tuple(names)
        self._files = files
        self.for_spark = ""  # the last part that was left to Spark, and the reason

    def pieces(
        self,
        parts: Sequence[FilePart],
        wanted: Wanted,
        size: Size,
        *,
        first: int = 0,
        skip: int = 0,
    ) -> Generator[Piece, None, None]:
        """Yields the rows of the parts, in order: tables with the columns, and parts that Spark
        must read.

        `first` is the number of the first part. `skip` is the number of first rows that have been
        read.
        """
        collected = _Collected(Place(first))
        left: ForSpark | None = None
        asked = wanted.rows
        for number, part in enumerate(parts, first):
            if asked is not None and not skip and not asked.may_be(self._known(part)):
                continue
            for block in self._of(part, wanted, skip > 0):
                if isinstance(block, FilePart):
                    yield from collected.handed_over()
                    if left is None:
                        left = ForSpark([], [], skip)
                    left.parts.append(block)
                    left.numbers.append(number)
                    skip = 0
                    continue
                found, start, rows, behind, _ = block
                done = min(skip, found.read)  # of the block
                skip -= done
                if done == found.read:
                    continue
                if left is not None:
                    yield left
                    left = None
                at = found.at(done)
                table = self._with_values(found.table.slice(at), part.path)
                if collected.schema != table.schema:
                    yield from collected.handed_over()
                while table.num_rows > 1 and bytes_of(table) > 2 * size.limit_bytes:
                    cut = max(1, table.num_rows * size.limit_bytes // bytes_of(table))
                    at += cut
                    read = found.place(at) - done
                    done += read
                    collected.add(table.slice(0, cut), read, Place(number, start, rows + done))
                    yield from collected.handed_over()
                    table = table.slice(cut)
                if behind is None:
                    end = Place(number, start, rows + found.read)
                elif behind < part.start + part.length:
                    end = Place(number, behind)
                else:
                    end = Place(number + 1)
                left_out = 0 if found.chosen is None else block.size_bytes
                collected.add(table, found.read - done, end, left_out)
                if collected.size_bytes >= size.limit_bytes:
                    yield from collected.handed_over()
            if skip:
                raise FiresteelError(
                    f"{part.path}: the restored position is past the end by {skip} rows"
                )
        if left is not None:
            yield left
        yield from collected.handed_over()

    @abstractmethod
    def _of(self, part: FilePart, wanted: Wanted, begun_before: bool) -> Iterator[Block | FilePart]:
        """Yields the rows of one part, in order. A part, or the end of one, is yielded last.
        `begun_before`: the first rows have been read, and must be yielded to be counted.
        """

    def _known(self, part: FilePart) -> dict[str, Bounds]:
        """Returns the bounds that the file's path implies for its rows."""
        values = self._files.values(part.path).items()
        return {name: Bounds(value.as_py(), value.as_py()) for name, value in values}

    def _with_values(self, table: pa.Table, path: str) -> pa.Table:
        """Adds the columns given by the file's path, in their places."""
        values = self._files.values(path)
        if not values:
            return table
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        for name, value in values.items():
            columns[name] = pa.chunked_array([pa.repeat(value, table.num_rows)])
        return pa.table({name: columns[name] for name in self._names if name in columns})


class _Collected:
    """Tables of one schema until they are yielded."""

    def __init__(self, end: Place) -> None:
        self._end = end
        self._tables: list[pa.Table] = []
        self._rows = 0
        self.size_bytes = 0

    @property
    def schema(self) -> pa.Schema | None:
        return self._tables[0].schema if self._tables else None

    def add(self, table: pa.Table, rows: int, end: Place, left_out: int = 0) -> None:
        """Adds a table. `rows` is the number of rows read for it and `end` their end; `left_out` is
        the size of the data read, if it exceeds the table.
        """
        self._tables.append(table)
        self._rows += rows
        self._end = end
        self.size_bytes += max(bytes_of(table), left_out // _READ_PER_RUN)

    def handed_over(self) -> Iterator[Columns]:
        if self._tables:
            table = pa.concat_tables(self._tables)
            yield Columns(table, self._end, self._rows, self.size_bytes)
            self._tables, self._rows, self.size_bytes = [], 0, 0


def bytes_of(table: pa.Table) -> int:
    """Returns the size of the rows, without dictionary values that many of them share."""
    return sum(
        sum(map(_bytes_of_codes, column.chunks))
        if pa.types.is_dictionary(column.type)
        else column.nbytes
        for column in table.columns
    )


def _bytes_of_codes(column: pa.DictionaryArray) -> int:
    values = column.dictionary
    shared = len(values) < len(column)
    return int(column.indices.nbytes) + (
        0 if shared else values.nbytes * len(column) // max(1, len(values))
    )
