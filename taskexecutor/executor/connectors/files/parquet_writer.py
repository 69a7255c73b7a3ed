"""Writes Parquet with a layout chosen per column: a dictionary where values repeat, compression
where it reduces the size.

Arrow's writer builds a dictionary for every column until it is full, and compresses everything. For
distinct numbers and texts like identifiers, that takes more than half of the time and saves
nothing. Therefore the first rows of a file decide. If later rows no longer suit the layout, the
file ends and the next one gets a new layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firesteel.common.units import MIB

_SAMPLE_ROWS = 4_096  # smaller tables decide nothing
_DICTIONARY_BYTES = MIB  # size at which Arrow gives up a dictionary
_DISTINCT = 0.5  # share of distinct values above which a dictionary does not pay
_COMPRESSED = 0.95  # maximum size ratio of a column that is worth compressing
_CODEC = "snappy"
_KINDS = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_temporal,
    pa.types.is_string,
    pa.types.is_binary,
)


class Layout(NamedTuple):
    plain: frozenset[str] = frozenset()  # columns without a dictionary
    uncompressed: frozenset[str] = frozenset()  # some of the columns

    @staticmethod
    def of(table: pa.Table, *, compress: bool) -> Layout:
        """Chooses the layout for a table. `compress` allows compression of columns that gain from
        it; other columns are never compressed.
        """
        if table.num_rows < _SAMPLE_ROWS or len(set(table.schema.names)) < table.num_columns:
            return Layout()
        sample = table.slice(0, _SAMPLE_ROWS)
        plain = frozenset(
            name
            for name in table.schema.names
            if _distinct(sample.column(name)) and _distinct(_filling(table.column(name)))
        )
        return Layout(plain, _not_compressible(sample, plain) if compress else frozenset())

    def suits(self, table: pa.Table) -> bool:
        """Returns whether these rows would gain nothing from a dictionary or compression that the
        layout lacks.
        """
        if table.num_rows < _SAMPLE_ROWS:
            return True
        sample = table.slice(0, _SAMPLE_ROWS)
        return (
            all(_distinct(sample.column(name)) for name in self.plain)
            and _not_compressible(sample, self.uncompressed) == self.uncompressed
        )


class ParquetWriter:
    def __init__(self, stream: BinaryIO, first: pa.Table, options: Mapping[str, str]) -> None:
        """`first` is the table that is written first."""
        codec = options.get("compression")
        self._layout = Layout.of(first, compress=codec is None)
        compression: str | dict[str, str] = codec or _CODEC
        dictionaries: bool | list[str] = True
        if self._layout.plain:
            leaves = _leaves(first.schema)
            dictionaries = [leaf for leaf in leaves if leaf not in self._layout.plain]
        if self._layout.uncompressed:
            compression = {
                leaf: "none" if leaf in self._layout.uncompressed else _CODEC for leaf in leaves
            }
        self._writer = pq.ParquetWriter(
            stream, first.schema, compression=compression, use_dictionary=dictionaries
        )

    def suits(self, table: pa.Table) -> bool:
        return self._layout.suits(table)

    def write_table(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()


def _distinct(column: pa.ChunkedArray) -> bool:
    """Returns whether most of its values are distinct."""
    if not any(known(column.type) for known in _KINDS):
        return False
    values = len(column) - column.null_count
    return bool(values and pc.count_distinct(column).as_py() > _DISTINCT * values)


def _filling(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the rows that would fill a dictionary if they were all distinct."""
    return column.slice(0, max(_SAMPLE_ROWS, _DICTIONARY_BYTES * len(column) // column.nbytes))


def _not_compressible(sample: pa.Table, names: frozenset[str]) -> frozenset[str]:
    if not names:
        return names
    written = pa.BufferOutputStream()
    pq.write_table(sample.select(sorted(names)), written, use_dictionary=False, compression=_CODEC)
    group = pq.read_metadata(pa.BufferReader(written.getvalue())).row_group(0)
    columns = (group.column(place) for place in range(group.num_columns))
    return frozenset(
        column.path_in_schema
        for column in columns
        if column.total_compressed_size > _COMPRESSED * column.total_uncompressed_size
    )


def _leaves(schema: pa.Schema) -> list[str]:
    """Returns the paths of the Parquet columns: each leaf of a nested column is one."""
    written = pa.BufferOutputStream()
    pq.write_metadata(schema, written)
    found = pq.read_metadata(pa.BufferReader(written.getvalue())).schema
    return [found.column(place).path for place in range(len(found))]
