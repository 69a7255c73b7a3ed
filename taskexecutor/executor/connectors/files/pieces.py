"""Parts of files in pieces: Arrow's columns where Arrow reads exactly what Spark would, and ranges
for Spark where it may not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

from firesteel.common.file_parts import FilePart
from firesteel.common.units import MIB

BUNDLE_BYTES = 16 * MIB  # of columns, before they are handed over

Piece: TypeAlias = pa.Table | list[FilePart]


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
                tables.append(self._with_values(piece, part.path))
                size += piece.nbytes
                if size >= BUNDLE_BYTES:
                    yield pa.concat_tables(tables)
                    tables, size = [], 0
        if left:
            yield left
        if tables:
            yield pa.concat_tables(tables)

    @abstractmethod
    def _of(self, part: FilePart, names: Collection[str]) -> Iterator[pa.Table | FilePart]:
        """The pieces of one part, without the columns that the file's path gives."""

    def _with_values(self, table: pa.Table, path: str) -> pa.Table:
        """With the columns that the file's path gives, each in its place."""
        values = self._files.values(path)
        if not values:
            return table
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        for name, value in values.items():
            columns[name] = pa.chunked_array([pa.repeat(value, table.num_rows)])
        return pa.table({name: columns[name] for name in self._names if name in columns})


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
