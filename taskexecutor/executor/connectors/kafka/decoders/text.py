"""JSON and CSV: Spark reads them, and Arrow reads JSON where the result equals Spark's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.connectors.file_source import CORRUPT_RECORD
from firesteel.connectors.kafka.formats import Csv, Json
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from taskexecutor.executor.columnar.jvm.engine import SparkEngine, engine_of
from taskexecutor.executor.columnar.schemas import declared, shown, spark_name, to_spark
from taskexecutor.executor.connectors.kafka import unreadable
from taskexecutor.executor.connectors.kafka.decoders.json_columns import JsonColumns
from taskexecutor.executor.connectors.kafka.decoders.values import Rows, Values, chosen
from taskexecutor.executor.connectors.kafka.record_plan import Function, RecordPlan
from taskexecutor.executor.connectors.kafka.records import VALUE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VALUES = pa.schema([pa.field(VALUE, pa.binary())])
_ARRAY = rb"^[ \t\r\n]*\["
_LEAST_PART = 1_024  # rows that Arrow tries separately if it has refused a batch
_LONGEST_PAUSE = 64  # batches


class TextValues(Values):
    """One row per value, or an error."""

    def __init__(self, format: Json | Csv, *, by_arrow: bool = True) -> None:
        self._format = format
        self._by_arrow = by_arrow
        self._plan: RecordPlan | None = None
        self._arrow: JsonColumns | None = None
        self._misses = 0
        self._pause = 0

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def open(self, context: RuntimeContext) -> None:
        engine = engine_of(context.spark)
        self._schema = text_schema(self._format)
        self._plan = RecordPlan(context, _VALUES, from_text(self._format, self._schema))
        if isinstance(self._format, Json) and not self._format.options and self._by_arrow:
            self._arrow = JsonColumns.of(self._schema, engine)

    def rows(self, values: pa.BinaryArray) -> Rows:
        if self._arrow is None or not len(values):
            return self._by_spark(values)
        if self._pause:
            self._pause -= 1
            return self._by_spark(values)
        found = self._arrow.rows(values)
        if found is not None:
            self._misses = 0
            return Rows(found)
        return self._in_parts(self._arrow, values)

    def _in_parts(self, arrow: JsonColumns, values: pa.BinaryArray) -> Rows:
        """Arrow reads the parts that it can; Spark reads each run of the others."""
        parts: list[Rows] = []
        starts: list[int] = []
        refused = None  # where a run of refused parts starts
        missed = 0
        for start in range(0, len(values), _LEAST_PART):
            part = values.slice(start, _LEAST_PART)
            found = arrow.rows(part) if len(values) > _LEAST_PART else None
            if found is None:
                missed += len(part)
                refused = start if refused is None else refused
                continue
            if refused is not None:
                parts.append(self._by_spark(values.slice(refused, start - refused)))
                starts.append(refused)
                refused = None
            parts.append(Rows(found))
            starts.append(start)
        if refused is not None:
            parts.append(self._by_spark(values.slice(refused)))
            starts.append(refused)
        if 2 * missed > len(values):
            self._misses += 1
            self._pause = min(1 << self._misses, _LONGEST_PAUSE) - 1
        else:
            self._misses = 0
        return _joined(parts, starts)

    def _by_spark(self, values: pa.BinaryArray) -> Rows:
        assert self._plan is not None
        if not len(values):
            return Rows(_empty(self._schema))
        result = self._plan.run([pa.RecordBatch.from_arrays([values], schema=_VALUES)]).column(0)
        *columns, corrupt = result.flatten()
        failed = pc.or_(corrupt.is_valid(), result.is_null())
        if isinstance(self._format, Json):
            failed = pc.or_(failed, pc.match_substring_regex(values, _ARRAY))
        elif len(self._schema) > 1:  # Spark reads nulls
            failed = pc.or_(failed, pc.equal(pc.binary_length(values), 0))
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        places = np.flatnonzero(failed.to_numpy(zero_copy_only=False)).tolist()
        return chosen(
            rows, {place: self._error(values[place].as_py(), rows, place) for place in places}
        )

    def _error(self, value: bytes, rows: pa.RecordBatch, place: int) -> str:
        if isinstance(self._format, Json):
            reason = _json_reason(value, rows, place)
        else:
            reason = f"not a line of CSV with the columns {shown(self._schema, 10)}"
        return f"{reason}: {unreadable.shown(value)}"

    def close(self) -> None:
        if self._plan is not None:
            self._plan.close()
        if self._arrow is not None:
            self._arrow.close()


def text_schema(format: Json | Csv) -> pa.Schema:
    """Returns the columns that a source reads. Raises FiresteelError."""
    schema = declared(format.schema, None)
    if schema is None or not schema.names:
        name = format.display_name
        raise FiresteelError(
            f'a source needs the columns of {name}; write, for example, {name}("id BIGINT")'
        )
    if CORRUPT_RECORD in schema.names:
        raise FiresteelError(
            f"the column {CORRUPT_RECORD!r} is reserved; use on_unreadable to get the texts of "
            "unreadable records"
        )
    return schema


def from_text(format: Json | Csv, schema: pa.Schema) -> Function:
    """Returns a function that reads the column `value` into a struct, whose last part is not null
    for unreadable texts.
    """
    columns = to_spark(schema.append(pa.field(CORRUPT_RECORD, pa.string())))
    options = {**format.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_RECORD}
    is_json = isinstance(format, Json)
    ddl = ", ".join(
        f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}" for field in columns
    )

    def rows(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sql

        text = sql.col(VALUE).cast("string")
        if is_json:
            return frame.select(sql.from_json(text, columns, options).alias("row"))
        return frame.select(sql.from_csv(text, ddl, options).alias("row"))

    return rows


def _joined(parts: list[Rows], starts: list[int]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    rows = pa.concat_batches([part.rows for part in parts])
    errors = {
        start + place: text
        for start, part in zip(starts, parts, strict=True)
        for place, text in part.errors.items()
    }
    if not errors:
        return Rows(rows)
    places = np.concatenate(
        [
            start + (np.arange(part.rows.num_rows) if part.places is None else part.places)
            for start, part in zip(starts, parts, strict=True)
        ]
    )
    return Rows(rows, places, errors)


def _json_reason(value: bytes, rows: pa.RecordBatch, place: int) -> str:
    """Explains why Spark does not read a value. Its message only repeats the value."""
    if not value.strip():
        return "the record is empty"
    try:
        found: Any = json.loads(value.decode())
    except UnicodeDecodeError:
        return "not UTF-8"
    except ValueError as error:
        return f"not JSON ({error})"
    except RecursionError:
        return "nested too deeply"
    if not isinstance(found, Mapping):
        return f"a JSON {_json_kind(found)} instead of an object"
    for field, column in zip(rows.schema, rows.columns, strict=True):
        given = found.get(field.name)
        if given is not None and not column[place].is_valid:
            text = unreadable.shown(json.dumps(given).encode())
            return f"column {field.name!r}: {text} is not {spark_name(field.type)}"
    return f"it does not fit the columns {shown(rows.schema, 10)}"


def _json_kind(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def text_rows(engine: SparkEngine, format: Json | Csv) -> pa.Schema:
    """Returns the columns of rows, once Spark has accepted them and the options."""
    from taskexecutor.executor.connectors.kafka.record_plan import planned_schema

    schema = text_schema(format)
    planned_schema(engine, _VALUES, from_text(format, schema))
    return schema
