"""The columns that operators add to rows, and event times."""

from __future__ import annotations

import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.operators.assigners import WINDOW_END, WINDOW_START
from firesteel.row_kind import ROW_KIND
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.timing.watermarks import MissingTime

WINDOW_ID = "window_id"  # of windows without times: the window's number within its key, from 0
RANK = "rank"
TIME = pa.timestamp("us", "UTC")
WINDOW_FIELDS = (pa.field(WINDOW_START, TIME), pa.field(WINDOW_END, TIME))


def as_int64(times: pa.Array) -> Ints:
    """Returns the times in microseconds since the epoch."""
    values: Ints = as_numpy(times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64()))
    return values


def event_times(batch: pa.RecordBatch, column: str, what: str) -> Ints:
    """Returns event times in microseconds since the epoch. Raises MissingTime if a row has
    none.
    """
    times = batch.column(column_index(batch.schema, column))
    if times.null_count:
        raise MissingTime(column, operator=what)
    return as_int64(times)


def as_timestamps(times_us: Ints) -> pa.Array:
    return pa.array(times_us).view(TIME)


def without_kind(schema: pa.Schema) -> pa.Schema:
    """Returns the schema without `row_kind`."""
    place = schema.get_field_index(ROW_KIND)
    return schema if place < 0 else schema.remove(place)


def with_kind(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(ROW_KIND, pa.string()))
