"""Parts of files in pieces: Arrow's columns where Arrow reads exactly what Spark would, and ranges
for Spark where it may not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from firesteel.common.file_parts import FilePart
from firesteel.errors import FiresteelError
from taskexecutor.executor.spark.plans.wanted_rows import Bounds, Ints, WantedRows


class Place(NamedTuple):
    """Everything before it has been read."""

    part: int  # its number
    start: int = 0  # a byte of its file; 0: where the part begins
    rows: int = 0  # from there on, which have been read, too


class Columns(NamedTuple):
    """Rows that Arrow has read."""

    table: pa.Table
    end: Place
    rows: int  # that have been read for it, with those that are not wanted
    size_bytes: int  # of what was read, as it counts for `Size`


class ForSpark(NamedTuple):
    """What Spark must read: parts, or ends of them."""

    parts: list[FilePart]
    numbers: list[int]  # of the parts
    rows: int = 0  # the first ones of the first part, which have been read


Piece: TypeAlias = Columns | ForSpark

_READ_PER_RUN = 8  # a row that is left out costs at least as little, beside one that Spark runs


class Wanted(NamedTuple):
    """Of the rows of parts."""

    names: Collection[str]  # the columns
    rows: WantedRows | None = None  # others may be left out
    # Columns of which values may be chosen before any is looked at; texts may be dictionaries in
    # which each row has a value of its own.
    late: Collection[str] = ()
    dictionaries: bool = False  # columns of texts may be some


class Rows(NamedTuple):
    """Of a text or a batch, without those that are not wanted."""

    table: pa.Table
    read: int  # how many there were
    chosen: Ints | None = None  # their places there, in order; None: all

    @staticmethod
    def of(table: pa.Table, wanted: WantedRows | None) -> Rows:
        chosen = None if wanted is None else wanted.chosen(table)
        if chosen is None:
            return Rows(table, table.num_rows)
        return Rows(table.take(pa.array(chosen)), table.num_rows, chosen)

    def at(self, place: int) -> int:
        """Where the table begins with what is at that place or behind it."""
        return place if self.chosen is None else int(np.searchsorted(self.chosen, place))

    def place(self, at: int) -> int:
        return at if self.chosen is None else int(self.chosen[at])


class Block(NamedTuple):
    """Rows of one part, without the columns that the file's path gives."""

    found: Rows
    start: int  # a byte of the file
    rows: int  # from there on, which precede those of the block
    end: int | None = None  # the byte behind them; None: more rows follow, counted from `start`
    size_bytes: int = 0  # of what was read


class Size(Protocol):
    limit_bytes: int  # of columns, before they are handed over


class Differs(Exception):
    """Spark may read it otherwise; the message says why."""


class Files(Protocol):
    def compressed(self, path: str) -> bool:
        """Whether the file is compressed as a whole."""

    def values(self, path: str) -> Mapping[str, pa.Scalar]:
        """Of the columns that the path gives."""


class PartReader(ABC):
    """Reads the files of one source."""

    def __init__(self, names: Sequence[str], files: Files) -> None:
        """`names`: of all columns, in order."""
        self._names = tuple(names)
        self._files = files
        self._for_spark = ""  # what was refused last, and why

    @property
    def reader(self) -> str:
        """Who reads the files, for users."""
        if not self._for_spark:
            return "Files are read by Arrow"
        return f"Files are read by Arrow, or by Spark, as in {self._for_spark}"

    def pieces(
        self,
        parts: Sequence[FilePart],
        wanted: Wanted,
        size: Size,
        *,
        first: int = 0,
        skip: int = 0,
    ) -> Generator[Piece, None, None]:
        """The rows of the parts, in order: tables that have the columns, and parts that Spark must
        read.

        `first`: the number of the first part. `skip`: the first rows, which have been read.
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
                    f"{part.path}: the position is behind {skip} rows more than there are"
                )
        if left is not None:
            yield left
        yield from collected.handed_over()

    @abstractmethod
    def _of(self, part: FilePart, wanted: Wanted, begun_before: bool) -> Iterator[Block | FilePart]:
        """The rows of one part, in order. Behind a part, or the end of one, nothing follows.
        `begun_before`: the first rows have been read, and must be among them to be counted.
        """

    def _known(self, part: FilePart) -> dict[str, Bounds]:
        """What the file's path says of its rows."""
        values = self._files.values(part.path).items()
        return {name: Bounds(value.as_py(), value.as_py()) for name, value in values}

    def _with_values(self, table: pa.Table, path: str) -> pa.Table:
        """With the columns that the file's path gives, each in its place."""
        values = self._files.values(path)
        if not values:
            return table
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        for name, value in values.items():
            columns[name] = pa.chunked_array([pa.repeat(value, table.num_rows)])
        return pa.table({name: columns[name] for name in self._names if name in columns})


class _Collected:
    """Tables of one schema until they are handed over."""

    def __init__(self, end: Place) -> None:
        self._end = end
        self._tables: list[pa.Table] = []
        self._rows = 0
        self.size_bytes = 0

    @property
    def schema(self) -> pa.Schema | None:
        return self._tables[0].schema if self._tables else None

    def add(self, table: pa.Table, rows: int, end: Place, left_out: int = 0) -> None:
        """`rows`: that were read for the table; `end`: of these rows; `left_out`: the bytes of what
        was read, if there is more than in the table.
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
    """What the rows take, without the values of dictionaries that many of them share."""
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


def is_plain(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_decimal128(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"))
    )
