"""Converts Arrow columns to PySpark Rows, at a fraction of the cost of Row's constructor and
accessors.

The values are those that PySpark's workers pass to a StatefulProcessor: Arrow's Python values
(timestamps with their zone, structs as dictionaries, maps as lists of pairs).
"""

from __future__ import annotations

import datetime
import functools
import itertools
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from firesteel.common.time_zones import python_zone
from taskexecutor.executor.numbers import as_numpy


def row_maker(names: Sequence[str]) -> Callable[[Sequence[Any]], Row]:
    """Returns a function that makes a Row with these fields from its values."""
    return functools.partial(tuple.__new__, _row_type(tuple(names)))


@functools.lru_cache(maxsize=1024)
def _row_type(names: tuple[str, ...]) -> type[Row]:
    """Returns a subclass of Row whose fields are class attributes, so that creating or reading a
    row looks up no names.
    """
    positions: dict[Any, int] = {index: index for index in range(-len(names), len(names))}
    for index in reversed(range(len(names))):  # the first field with a name wins
        positions[names[index]] = index
    plain_get = tuple.__getitem__
    rows_get = Row.__getitem__

    def get(self: Row, item: Any) -> Any:
        try:
            return plain_get(self, positions[item])
        except (KeyError, TypeError):  # slices, and Row's own error messages
            return rows_get(self, item)

    members: dict[str, Any] = {
        "__fields__": list(names),
        "__getitem__": get,
        "__module__": Row.__module__,
    }
    positional = namedtuple("positional", [f"f{index}" for index in range(len(names))])  # type: ignore[misc]
    for name in names:
        # A field named count or index does not hide tuple's method, as in PySpark: use
        # row["count"].
        if not hasattr(Row, name) and not name.startswith("__"):
            members[name] = vars(positional)[f"f{positions[name]}"]
    return type("Row", (Row,), members)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yields the batch's rows."""
    make = row_maker(batch.schema.names)
    if not batch.num_columns:
        return itertools.repeat(make(()), batch.num_rows)
    return map(make, zip(*map(to_python, batch.columns), strict=True))


def milliseconds_of(times: pa.Array, shift_us: int = 0) -> list[int | None]:
    """Returns timestamps in milliseconds since the epoch, rounded down."""
    us = times.cast(pa.timestamp("us", getattr(times.type, "tz", None)), safe=False)
    values = as_numpy(us.cast(pa.int64()).fill_null(0))
    found: list[int | None] = ((values + shift_us) // 1000).tolist()
    if times.null_count:
        for index in np.flatnonzero(as_numpy(times.is_null())).tolist():
            found[index] = None
    return found


def to_python(column: pa.Array) -> list[Any]:
    """Returns `column.to_pylist()`, several times faster for flat types."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        if not column.null_count:
            return as_numpy(column).tolist()  # type: ignore[no-any-return]
        values = as_numpy(column.fill_null(0)).tolist()
        for index in np.flatnonzero(as_numpy(column.is_null())).tolist():
            values[index] = None
        return values  # type: ignore[no-any-return]
    if (
        pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
    ):
        return as_numpy(column).tolist()  # type: ignore[no-any-return]
    if pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return _times(column)
    return column.to_pylist()  # type: ignore[no-any-return]


def _times(column: pa.Array) -> list[Any]:
    kind = column.type
    zone = getattr(kind, "tz", None)
    values = as_numpy(column).tolist()
    # a year outside the range of Python's dates
    if any(isinstance(value, int) for value in values):
        return column.to_pylist()  # type: ignore[no-any-return]
    if zone is None:
        return values  # type: ignore[no-any-return]
    # the class that Arrow uses for UTC
    utc = pa.scalar(0, pa.timestamp("us", "UTC")).as_py().tzinfo
    since = (as_numpy(column) - np.datetime64(0, "us")).tolist()  # faster than replacing the zone
    moment = datetime.datetime(1970, 1, 1, tzinfo=utc).__add__
    moments = [None if each is None else moment(each) for each in since]
    if zone == "UTC":
        return moments
    local = python_zone(zone)
    return [None if each is None else each.astimezone(local) for each in moments]
