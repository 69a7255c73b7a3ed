"""Reads JSON objects with Arrow: exactly the rows that Spark reads from them, or none.

Arrow accepts less than Spark, and whatever it refuses is left to Spark: other types of values, a
key twice, single quotes, comments, NaN. What the two might read differently is excluded before:
escapes of code points, control characters, bytes that are not UTF-8, texts around the object, and
numbers or nesting beyond Spark's limits. Times are read as texts, and converted like those of CSV
files. See docs/decisions/0054.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers.csv_columns import converted
from taskexecutor.executor.columnar.readers.pieces import Differs
from taskexecutor.executor.connectors.kafka.decoders.json_regular import RegularReader

_OPEN, _CLOSE = ord("{"), ord("}")
_ASCII = 128
_LONG = 1_000  # bytes; shorter records cannot exceed the limits of Spark's parser
_LONGEST = 50_000  # bytes; longer names are refused by Spark's parser
_LONG_NUMBER = re.compile(rb"[-+.0-9eE]{1000}")
_ROWS_AT_ONCE = 32_768  # in shared memory
_ZONED = pa.timestamp("us", "UTC")


class JsonColumns:
    """Reads values into columns of one schema."""

    def __init__(self, schema: pa.Schema, regular: RegularReader, *, utc: bool) -> None:
        """`utc`: times without a zone are UTC."""
        self._schema = schema
        self._regular = regular
        self._utc = utc
        self._options = json.ParseOptions(
            explicit_schema=pa.schema(
                [
                    pa.field(field.name, pa.string() if _is_time(field.type) else field.type)
                    for field in schema
                ]
            ),
            unexpected_field_behavior="ignore",
        )

    @staticmethod
    def of(schema: pa.Schema, engine: SparkEngine) -> JsonColumns | None:
        """Returns None for columns, or settings of the session, with which the two might differ."""
        times = any(_is_time(kind) for kind in schema.types)
        if times and _setting(engine, "spark.sql.legacy.timeParserPolicy").upper() == "LEGACY":
            return None
        if len(set(schema.names)) < len(schema):
            return None
        if not all(_is_time(kind) or _is_alike(kind) for kind in schema.types):
            return None
        utc = _setting(engine, "spark.sql.session.timeZone") in ("UTC", "Etc/UTC")
        return JsonColumns(schema, RegularReader(engine, schema, utc=utc), utc=utc)

    def rows(self, values: pa.BinaryArray) -> pa.RecordBatch | None:
        """Returns one row for each value, or None if Spark might read one differently."""
        parts = []
        for start in range(0, len(values), _ROWS_AT_ONCE):
            part = self._part(values.slice(start, _ROWS_AT_ONCE))
            if part is None:
                return None
            parts.append(part)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _part(self, values: pa.BinaryArray) -> pa.RecordBatch | None:
        content = _plain_objects(values)
        if content is None:
            return None
        rows = self._regular.rows(content, _ends(values))
        if rows is not None:
            return rows
        return None if _has_codes(content) or _exceeds_limits(values) else self._parsed(values)

    def close(self) -> None:
        self._regular.close()

    def _parsed(self, values: pa.BinaryArray) -> pa.RecordBatch | None:
        offsets = pa.array([0, len(values)], pa.int32())
        lines = pc.binary_join(pa.ListArray.from_arrays(offsets, values), b"\n")[0].as_buffer()
        try:
            table = json.read_json(
                pa.BufferReader(lines),
                json.ReadOptions(use_threads=False, block_size=lines.size + 1),
                self._options,
            )
            # Fewer or more objects than values: a value contains several.
            if table.num_rows != len(values):
                return None
            columns = [self._column(table, field) for field in self._schema]
        except (pa.ArrowException, Differs):
            return None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, table: pa.Table, field: pa.Field) -> pa.Array:
        chunks = table.column(field.name).chunks
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        if _is_time(field.type):
            if pc.any(pc.equal(pc.binary_length(column), 0)).as_py():
                raise Differs("an empty time")
            return converted(column, field, utc=self._utc)
        if pa.types.is_floating(field.type) and not _are_finite(column):
            raise Differs("a number that is too large")
        return column if column.type == field.type else column.cast(field.type)


def _plain_objects(values: pa.BinaryArray) -> npt.NDArray[np.uint8] | None:
    """Returns the values without anything between them; None if they have other characters than
    plain JSON objects.
    """
    ends, data = _ends(values), values.buffers()[2]
    sizes = np.diff(ends)
    if data is None or not sizes.all() or sizes.max() > _LONGEST:
        return None
    content = np.frombuffer(data, np.uint8)
    if not ((content[ends[:-1]] == _OPEN).all() and (content[ends[1:] - 1] == _CLOSE).all()):
        return None
    content = content[ends[0] : ends[-1]]
    # Control characters are also tabs and ends of lines between values.
    is_plain = content.min() >= ord(" ") and (content.max() < _ASCII or _is_utf_8(values))
    return content if is_plain else None


def _has_codes(content: npt.NDArray[np.uint8]) -> bool:
    """Returns whether code points may be escaped."""
    text = content.tobytes()
    # A search for one byte is much faster than one for two.
    return b"\\" in text and b"\\u" in text


def _exceeds_limits(values: pa.BinaryArray) -> bool:
    """Returns whether Spark's parser may refuse a number or the nesting of a value."""
    long = values.filter(pc.greater(pc.binary_length(values), _LONG))
    return any(
        _LONG_NUMBER.search(text) or text.count(b"{") + text.count(b"[") >= _LONG
        for text in long.to_pylist()
    )


def _ends(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)


def _is_utf_8(values: pa.BinaryArray) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_time(kind: pa.DataType) -> bool:
    return kind == _ZONED or bool(pa.types.is_date32(kind))


def _is_alike(kind: pa.DataType) -> bool:
    """Returns whether Spark reads every value of the type that Arrow reads, and equally."""
    if pa.types.is_struct(kind):
        names = [part.name for part in kind]
        return len(set(names)) == len(names) > 0 and all(
            _is_alike(part.type) and not _has_floats(part.type) for part in kind
        )
    if pa.types.is_list(kind):
        return _is_alike(kind.value_type) and not _has_floats(kind.value_type)
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_int32(kind)
        or pa.types.is_int64(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
    )


def _has_floats(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _are_finite(column: pa.Array) -> bool:
    return bool(pc.all(pc.is_finite(column)).as_py() is not False)


def _setting(engine: SparkEngine, name: str) -> str:
    return str(engine.session.conf.get(name))
