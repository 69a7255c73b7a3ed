"""Changes of tables, as Debezium and Canal publish them: rows with `row_kind`.

An update is a delete of the earlier row, with all of its values, followed by an insert.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.connectors.kafka.formats import Canal, Confluent, Debezium, Json
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.columnar.jvm.engine import SparkEngine, engine_of
from taskexecutor.executor.columnar.schemas import declared, spark_name, to_arrow, to_spark
from taskexecutor.executor.connectors.kafka import unreadable
from taskexecutor.executor.connectors.kafka.decoders.avro import AvroValues, avro_type
from taskexecutor.executor.connectors.kafka.decoders.text import TextValues, text_schema
from taskexecutor.executor.connectors.kafka.decoders.values import Rows, Values
from taskexecutor.executor.connectors.kafka.record_plan import Function, RecordPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BEFORE, _AFTER, _OP = "before", "after", "op"
# By operation: whether it has a row before, and one after.
_OPERATIONS = {"c": (False, True), "r": (False, True), "u": (True, True), "d": (True, False)}
_TRUNCATE, _MESSAGE = "t", "m"
_PAYLOAD = "payload"  # of an envelope with its schema

_ROWS_OF_TEXTS = "ARRAY<MAP<STRING, STRING>>"
_CANAL = (
    f"data {_ROWS_OF_TEXTS}, old {_ROWS_OF_TEXTS}, type STRING, isDdl BOOLEAN, database STRING,"
    " `table` STRING"
)
# Canal's types of changes of the table's definition.
_DEFINITIONS = ("CREATE", "ALTER", "ERASE", "RENAME", "QUERY", "CINDEX", "DINDEX")


class _Changes(NamedTuple):
    """The changes of some values: a row before and a row after each, or null."""

    operations: pa.StringArray
    before: pa.StructArray
    after: pa.StructArray


class DebeziumValues(Values):
    def __init__(self, format: Debezium) -> None:
        self._format = format
        self._envelopes: Values | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def open(self, context: RuntimeContext) -> None:
        inner = self._format.format
        self._schema = debezium_schema(self._format, engine_of(context.spark))
        if isinstance(inner, Confluent):
            self._envelopes = AvroValues(inner)
        else:
            self._envelopes = TextValues(_enveloped(inner))
        self._envelopes.open(context)

    def rows(self, values: pa.BinaryArray) -> Rows:
        assert self._envelopes is not None
        found = self._envelopes.rows(values)
        places = np.arange(found.rows.num_rows) if found.places is None else found.places
        changes = self._changes(found.rows)
        has_before, has_after = changes.before.is_valid(), changes.after.is_valid()
        errors = dict(found.errors)
        operations = changes.operations.to_pylist()
        deleted = np.zeros(len(operations), np.bool_)
        inserted = np.zeros(len(operations), np.bool_)
        for operation in set(operations):
            if operation == _MESSAGE:  # of a program, and not of a table
                continue
            of_operation = _numpy(
                changes.operations.is_null()
                if operation is None
                else pc.equal(changes.operations, operation)
            )
            needs_before, needs_after = _OPERATIONS.get(operation or "", (False, False))
            bad = (needs_before & ~_numpy(has_before)) | (needs_after & ~_numpy(has_after))
            if not needs_before and not needs_after:
                bad = np.ones(len(operations), np.bool_)
            for row in np.flatnonzero(of_operation & bad).tolist():
                reason = _reason(operation, bool(has_before[row]) or not needs_before)
                value = unreadable.shown(values[int(places[row])].as_py())
                errors[int(places[row])] = f"{reason}: {value}"
            deleted |= of_operation & ~bad & needs_before
            inserted |= of_operation & ~bad & needs_after
        return _changed_rows(self._schema, changes, deleted, inserted, places, errors)

    def _changes(self, envelopes: pa.RecordBatch) -> _Changes:
        def part(name: str) -> pa.Array:
            plain = envelopes.column(envelopes.schema.get_field_index(name))
            if _PAYLOAD not in envelopes.schema.names:
                return plain
            payload = envelopes.column(envelopes.schema.get_field_index(_PAYLOAD))
            return pc.if_else(payload.is_valid(), pc.struct_field(payload, name), plain)

        return _Changes(part(_OP), part(_BEFORE), part(_AFTER))

    def close(self) -> None:
        if self._envelopes is not None:
            self._envelopes.close()


class CanalValues(Values):
    """The values of Canal's rows are texts, whatever the columns' types: Spark casts them."""

    def __init__(self, format: Canal) -> None:
        self._format = format
        self._envelopes = TextValues(Json(_CANAL))
        self._casts: RecordPlan | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def open(self, context: RuntimeContext) -> None:
        rows = canal_rows(self._format)
        self._schema = with_kind(rows)
        self._texts = pa.schema([pa.field(name, pa.string()) for name in rows.names])
        self._casts = RecordPlan(context, self._texts, _cast_to(rows))
        self._envelopes.open(context)

    def rows(self, values: pa.BinaryArray) -> Rows:
        assert self._casts is not None
        found = self._envelopes.rows(values)
        given = range(found.rows.num_rows) if found.places is None else found.places.tolist()
        errors = dict(found.errors)
        texts: list[dict[str, str | None]] = []
        kinds: list[str] = []
        places: list[int] = []
        for place, envelope in zip(given, found.rows.to_pylist(), strict=True):
            try:
                for kind, row in _canal_changes(envelope, self._format.table):
                    texts.append(row)
                    kinds.append(kind)
                    places.append(place)
            except ValueError as error:
                errors[place] = f"{error}: {unreadable.shown(values[place].as_py())}"
        batch = pa.RecordBatch.from_arrays(
            [pa.array([row.get(n) for row in texts], pa.string()) for n in self._texts.names],
            schema=self._texts,
        )
        cast = (
            self._casts.run([batch])
            if texts
            else pa.RecordBatch.from_arrays(
                [pa.nulls(0, kind) for kind in self._casts.schema.types], schema=self._casts.schema
            )
        )
        rows = pa.RecordBatch.from_arrays(
            [*cast.columns, pa.array(kinds, pa.string())], schema=self._schema
        )
        for name in self._texts.names:
            text, value = batch.column(name), cast.column(name)
            failed = _numpy(pc.and_(text.is_valid(), value.is_null()))
            for index in np.flatnonzero(failed).tolist():
                errors.setdefault(
                    places[index],
                    f"column {name!r}: {unreadable.shown(text[index].as_py().encode())} is not "
                    f"{spark_name(value.type)}: {unreadable.shown(values[places[index]].as_py())}",
                )
        of_rows = np.array(places, np.int64)
        if errors:
            keep = np.flatnonzero(~np.isin(of_rows, list(errors)))
            rows, of_rows = rows.take(pa.array(keep)), of_rows[keep]
        return Rows(rows, of_rows, errors)

    def close(self) -> None:
        self._envelopes.close()
        if self._casts is not None:
            self._casts.close()


def _canal_changes(
    envelope: dict[str, Any], table: str | None
) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Yields the kinds and rows of a record. Raises ValueError if it cannot be understood."""
    if table is not None and f"{envelope['database']}.{envelope['table']}" != table:
        return
    kind = envelope["type"]
    if kind == "TRUNCATE":
        raise ValueError("the table was truncated, which rows with row_kind cannot express")
    if envelope["isDdl"] or kind in _DEFINITIONS:
        return
    if kind not in ("INSERT", "UPDATE", "DELETE"):
        raise ValueError(f"type is {kind!r}; known: INSERT, UPDATE, DELETE and definitions")
    data = [dict(row or ()) for row in envelope["data"] or ()]
    if not data:
        raise ValueError(f"an {kind} without data")
    old = [dict(row or ()) for row in envelope["old"] or ()]
    if kind == "UPDATE" and len(old) != len(data):
        raise ValueError(f"an UPDATE of {len(data)} rows with {len(old)} old ones")
    for number, row in enumerate(data):
        if kind == "UPDATE":
            yield DELETE, {**row, **old[number]}
        yield (DELETE if kind == "DELETE" else INSERT), row


def _changed_rows(
    schema: pa.Schema,
    changes: _Changes,
    deleted: np.ndarray,
    inserted: np.ndarray,
    places: np.ndarray,
    errors: dict[int, str],
) -> Rows:
    """Returns the deleted rows and the inserted ones, in the order of their values."""
    count = len(changes.operations)
    both = pa.concat_arrays([changes.before, changes.after])
    pairs = np.stack([deleted, inserted], axis=1).reshape(-1)
    sources = np.stack([np.arange(count), np.arange(count) + count], axis=1).reshape(-1)
    taken = both.take(pa.array(sources[pairs]))
    kinds = np.tile([DELETE, INSERT], count)[pairs]
    columns = [*taken.flatten(), pa.array(kinds, pa.string())]
    fitting = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(columns, schema.types, strict=True)
    ]
    rows = pa.RecordBatch.from_arrays(fitting, schema=schema)
    return Rows(rows, np.repeat(places, 2)[pairs], errors)


def _reason(operation: str | None, has_before: bool) -> str:
    if operation is None:
        return "the record has no op, so Debezium did not write it"
    if operation == _TRUNCATE:
        return "the table was truncated (op t), which rows with row_kind cannot express"
    if operation not in _OPERATIONS:
        return f"op is {operation!r}; known: {', '.join(_OPERATIONS)}"
    if not has_before:
        return (
            f"op {operation} has no row before the change; in PostgreSQL, set the table's REPLICA"
            " IDENTITY to FULL"
        )
    return f"op {operation} has no row after the change"


def with_kind(schema: pa.Schema) -> pa.Schema:
    """Adds `row_kind`. Raises FiresteelError if the table has a column of that name."""
    if ROW_KIND in schema.names:
        raise FiresteelError(
            f"the table has a column {ROW_KIND!r}, which is reserved for the kind of change"
        )
    return schema.append(pa.field(ROW_KIND, pa.string()))


def _enveloped(rows: Json) -> Json:
    """Returns the format of envelopes, both with and without their schema."""
    row = pa.struct(list(text_schema(rows)))
    parts = [pa.field(_OP, pa.string()), pa.field(_BEFORE, row), pa.field(_AFTER, row)]
    envelope = pa.schema([*parts, pa.field(_PAYLOAD, pa.struct(parts))])
    return Json(envelope, **rows.options)


def debezium_schema(format: Debezium, engine: SparkEngine) -> pa.Schema:
    inner = format.format
    if isinstance(inner, Json):
        return with_kind(text_schema(inner))
    kind = avro_type(engine, inner.format)  # type: ignore[arg-type]
    schema = to_arrow(kind)
    for name in (_BEFORE, _AFTER, _OP):
        if name not in schema.names:
            raise FiresteelError(
                f"Debezium: the Avro schema has no field {name!r}; it must be that of the"
                " envelope, with before, after and op"
            )
    return with_kind(pa.schema(list(schema.field(_AFTER).type)))


def canal_rows(format: Canal) -> pa.Schema:
    """Returns the table's columns. Raises FiresteelError for types that no text has."""
    schema = declared(format.schema, None)
    if schema is None or not schema.names:
        raise FiresteelError('Canal needs the table\'s columns, for example Canal("id BIGINT")')
    for field in schema:
        if pa.types.is_nested(field.type):
            raise FiresteelError(
                f"Canal: column {field.name!r} is {field.type}; MySQL has no such type. Read it as"
                " STRING, and parse it downstream"
            )
    return schema


def _cast_to(rows: pa.Schema) -> Function:
    kinds = to_spark(rows)

    def cast(frame: DataFrame) -> DataFrame:
        names = frame.columns
        return frame.select(
            *(
                frame[f"`{name.replace('`', '``')}`"].try_cast(kind.dataType).alias(name)
                for name, kind in zip(names, kinds, strict=True)
            )
        )

    return cast


def _numpy(array: pa.Array) -> np.ndarray:
    found: np.ndarray = array.fill_null(False).to_numpy(zero_copy_only=False)
    return found
