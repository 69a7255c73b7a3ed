"""Parquet files by row groups: read as Arrow columns where Arrow reads exactly what Spark would,
and passed to Spark as ranges elsewhere. A file's footer decides.

A row group belongs to the range that contains its midpoint, as in Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firesteel.common.file_parts import FilePart
from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.cached_plans.wanted_rows import Bounds, WantedRows
from taskexecutor.executor.columnar.readers.pieces import (
    Block,
    Differs,
    Files,
    PartReader,
    Rows,
    Wanted,
    bytes_of,
)
from taskexecutor.executor.columnar.schemas import is_plain

_BATCH_ROWS = 16_384
_BATCH_BYTES = 4 * MIB  # average size of a batch
_LARGEST_BATCH_BYTES = 64 * MIB  # limit for a batch of the longest text in a dictionary
_LARGEST_GROUP_BYTES = 512 * MIB  # of the columns that are read, uncompressed
_READ_BYTES = MIB  # of a column at a time
_DICTIONARY_BYTES = 2 * MIB  # most writers end a dictionary before
_INDEX_BYTES = 3  # maximum per row

# These writers record the row group size that Spark expects, and use the proleptic Gregorian
# calendar unless they declare another.
_WRITERS = re.compile(r"parquet-cpp-arrow version \d|parquet-mr version 1\.(1\d|[2-9]\d)\.")
_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"})
_ENCODINGS = frozenset(
    {
        "PLAIN",
        "PLAIN_DICTIONARY",
        "RLE_DICTIONARY",
        "RLE",
        "BIT_PACKED",
        "DELTA_BINARY_PACKED",
        "DELTA_LENGTH_BYTE_ARRAY",
        "DELTA_BYTE_ARRAY",
    }
)
_SPARK_VERSION = b"org.apache.spark.version"
_LEGACY_CALENDAR = b"org.apache.spark.legacyDateTime"
_FIRST_CORRECTED = b"3.0.0"  # compared as a string, as in Spark
# Times as Spark writes them, unless spark.sql.parquet.outputTimestampType is set.
_INT96 = "INT96"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"
_FIRST_CORRECTED_INT96 = b"3.1.0"


class _Group(NamedTuple):
    number: int
    middle: int  # offset in the file


class ParquetGroups(PartReader):
    """Reads the files of one source."""

    def __init__(
        self,
        schema: pa.Schema,
        names: Sequence[str],
        files: Files,
        *,
        corrected: bool,
    ) -> None:
        """`schema` is that of the columns in the files; `names` are those of all columns, in order.
        `corrected`: files that declare no calendar use the proleptic Gregorian one.
        """
        super().__init__(names, files)
        self._schema = schema
        self._corrected = corrected

    def _of(self, part: FilePart, wanted: Wanted, begun_before: bool) -> Iterator[Block | FilePart]:
        fields = [field for field in self._schema if field.name in wanted.names]
        end = part.start + part.length
        # where Spark would resume; whether part of the range was yielded
        start, begun = part.start, False
        try:
            with pa.OSFile(part.path) as stream:
                file = _opened(stream)
                places = self._checked(file, fields)
                groups = _groups(file.metadata, part.start, end)
                if wanted.rows is not None:
                    groups = [
                        group
                        for place, group in enumerate(groups)
                        if (begun_before and not place)
                        or self._may_be_wanted(
                            part, file.metadata.row_group(group.number), wanted.rows
                        )
                    ]
                for group, middle in groups:
                    if begun:
                        start, begun = middle, False
                    rows = _batch_rows(stream, file, group, fields, places)
                    behind = end if group == groups[-1].number else middle + 1
                    read, every = 0, file.metadata.row_group(group).num_rows
                    reader = file
                    if wanted.dictionaries and (
                        repeated := _repeated(file.metadata, group, fields, places)
                    ):
                        reader = _opened(stream, metadata=file.metadata, read_dictionary=repeated)
                    for batch in reader.iter_batches(
                        rows, [group], list(places), use_threads=False
                    ):
                        begun = True
                        last = read + batch.num_rows == every
                        table = _table(batch, fields)
                        yield Block(
                            Rows.of(table, wanted.rows),
                            middle,
                            read,
                            behind if last else None,
                            bytes_of(table),
                        )
                        read += batch.num_rows
        except (Differs, OSError, UnicodeError, pa.ArrowException) as reason:
            if begun:
                raise FiresteelError(
                    f"{part.path}: a row group cannot be read to its end: {reason}"
                ) from reason
            self.for_spark = f"{part.path}: {reason}"
            yield part._replace(start=start, length=end - start)

    def _may_be_wanted(
        self, part: FilePart, group: pq.RowGroupMetaData, wanted: WantedRows
    ) -> bool:
        """Decides by the values from the file's path, and by the group's minimum and maximum
        statistics.
        """
        known = self._known(part)
        columns = map(group.column, range(group.num_columns))
        for column in columns:
            bounds = _bounds(column)
            if bounds is not None:
                known.setdefault(column.path_in_schema, bounds)
        return wanted.may_be(known)

    def _checked(self, file: pq.ParquetFile, fields: Sequence[pa.Field]) -> dict[str, int]:
        """Returns the positions of these columns in the file. Raises Differs unless both readers
        read the same values.
        """
        metadata, found = file.metadata, file.schema_arrow
        if not _WRITERS.match(metadata.created_by or ""):
            raise Differs(f"it was written by {metadata.created_by or 'a program without a name'}")
        if len({name.lower() for name in found.names}) < len(found):
            raise Differs("two columns have one name")
        columns = {metadata.schema.column(i).path: i for i in range(len(metadata.schema))}
        places = {}
        for field in fields:
            name, kind = field.name, field.type
            if name not in columns or "." in name:
                raise Differs(f"the column {name!r} is not in it")
            if not (is_plain(kind) or _is_text(kind)):
                raise Differs(f"the column {name!r} is {kind}")
            have = found.field(name).type
            place = places[name] = columns[name]
            if metadata.schema.column(place).physical_type == _INT96:
                _check_int96(name, have, kind, metadata.metadata or {})
                continue
            if not _reads_as(have, kind):
                raise Differs(f"the column {name!r} is {have} in it")
            if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
                self._check_calendar(metadata.metadata or {})
            if pa.types.is_timestamp(kind):
                logical = json.loads(metadata.schema.column(place).logical_type.to_json())
                if logical.get("isAdjustedToUTC") != (kind.tz is not None):
                    raise Differs(f"the column {name!r} has times of another kind")
        return places

    def _check_calendar(self, keys: Mapping[bytes, bytes]) -> None:
        version = keys.get(_SPARK_VERSION)
        if version is None:
            if not self._corrected:
                raise Differs("its dates may be of another calendar")
        elif version < _FIRST_CORRECTED or _LEGACY_CALENDAR in keys:
            raise Differs("its dates are of another calendar")


def _check_int96(
    name: str, have: pa.DataType, kind: pa.DataType, keys: Mapping[bytes, bytes]
) -> None:
    """Raises Differs unless Spark has written the times of a column, and changes nothing in them
    when it reads them.
    """
    if not pa.types.is_timestamp(kind) or kind.tz is None or have.unit != kind.unit:
        raise Differs(f"the column {name!r} is {_INT96} in it")
    if keys.get(_SPARK_VERSION, b"") < _FIRST_CORRECTED_INT96 or _LEGACY_INT96 in keys:
        raise Differs(f"the times of {name!r} may be of another calendar or time zone")


def _bounds(column: pq.ColumnChunkMetaData) -> Bounds | None:
    """Returns None if the file has no statistics."""
    found = column.statistics
    try:
        if found is None or column.physical_type == _INT96:
            return None
        if found.has_null_count and found.null_count == column.num_values:
            return Bounds(None, None)
        return Bounds(found.min, found.max) if found.has_min_max else None
    except (ValueError, OverflowError, NotImplementedError, pa.ArrowException):
        return None  # a type whose values are not supported here, or years beyond Python's range


def _opened(stream: pa.NativeFile, **options: object) -> pq.ParquetFile:
    """Opens a file so that a column's pages are read on demand, and not whole columns."""
    return pq.ParquetFile(
        stream,
        pre_buffer=False,
        buffer_size=_READ_BYTES,
        coerce_int96_timestamp_unit="us",
        **options,
    )


def _reads_as(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether the two types differ at most in their memory layout."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        kind == wanted
        or (pa.types.is_large_string(kind) and pa.types.is_string(wanted))
        or (pa.types.is_large_binary(kind) and pa.types.is_binary(wanted))
        or (
            pa.types.is_timestamp(kind)
            and pa.types.is_timestamp(wanted)
            and kind.unit == wanted.unit
            and kind.tz is not None
            and wanted.tz is not None
        )
    )


def _groups(metadata: pq.FileMetaData, start: int, end: int) -> list[_Group]:
    """Returns the row groups in this byte range, in order. Raises Differs if the file stores them
    in a different order.
    """
    found = []
    last = -1
    for number in range(metadata.num_row_groups):
        middle = _middle(metadata.row_group(number))
        if middle <= last:
            raise Differs("its row groups are not in order")
        last = middle
        if start <= middle < end and metadata.row_group(number).num_rows:
            found.append(_Group(number, middle))
    return found


def _middle(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    offset = first.data_page_offset
    if first.has_dictionary_page:
        offset = min(offset, first.dictionary_page_offset)
    size = sum(group.column(place).total_compressed_size for place in range(group.num_columns))
    return int(offset + size // 2)


def _batch_rows(
    stream: pa.NativeFile,
    file: pq.ParquetFile,
    number: int,
    fields: Sequence[pa.Field],
    places: Mapping[str, int],
) -> int:
    """Returns how many rows of a row group make a batch of bounded size. Raises Differs if Arrow
    may not read the columns' pages.
    """
    group = file.metadata.row_group(number)
    size = 0
    row_bytes = 1.0  # average
    repeated = {}  # sizes of columns whose dictionaries may repeat long texts
    for field in fields:
        column = group.column(places[field.name])
        if column.compression not in _CODECS or column.file_path:
            raise Differs(f"the column {field.name!r} is compressed by {column.compression}")
        if unknown := set(column.encodings) - _ENCODINGS:
            raise Differs(f"the column {field.name!r} is encoded as {unknown.pop()}")
        size += column.total_uncompressed_size
        row_bytes += max(8, column.total_uncompressed_size / group.num_rows)
        if column.has_dictionary_page and _is_text(field.type):
            repeated[field.name] = column.total_uncompressed_size
    if size > _LARGEST_GROUP_BYTES:
        raise Differs(f"a row group has {size} bytes")
    rows = min(group.num_rows, _BATCH_ROWS, max(1, int(_BATCH_BYTES / row_bytes)))
    if rows * sum(repeated.values()) > _LARGEST_BATCH_BYTES:
        longest = _longest(stream, file.metadata, number, list(repeated))
        rows = min(rows, max(1, _LARGEST_BATCH_BYTES // max(1, longest)))
    return int(rows)


def _repeated(
    metadata: pq.FileMetaData, number: int, fields: Sequence[pa.Field], places: Mapping[str, int]
) -> list[str]:
    """Returns the text columns whose values are all in the row group's dictionary, by size: writers
    end a large dictionary and write further values plainly.
    """
    group = metadata.row_group(number)
    found = []
    for field in fields:
        column = group.column(places[field.name])
        size = column.total_uncompressed_size - _INDEX_BYTES * group.num_rows
        if column.has_dictionary_page and _is_text(field.type) and size < _DICTIONARY_BYTES:
            found.append(field.name)
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _longest(
    stream: pa.NativeFile, metadata: pq.FileMetaData, number: int, names: list[str]
) -> int:
    """Returns the maximum size of a row in these columns, from the texts in their dictionaries."""
    file = _opened(stream, metadata=metadata, read_dictionary=names)
    # A batch contains the complete dictionary, regardless of its rows.
    batch = next(file.iter_batches(1, [number], names, use_threads=False))
    lengths = (pc.max(pc.binary_length(column.dictionary)).as_py() for column in batch.columns)
    return sum(length or 0 for length in lengths)


def _table(batch: pa.RecordBatch, fields: Sequence[pa.Field]) -> pa.Table:
    if not fields:
        return pa.table({"": pa.nulls(batch.num_rows)})
    columns = [_as(batch.column(field.name), field.type) for field in fields]
    return pa.Table.from_arrays(columns, [field.name for field in fields])


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type) and column.type.value_type == kind:
        return column
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type):
        return column.view(kind)  # of the same unit
    return column if column.type == kind else column.cast(kind)
