"""Converts TIMESTAMPs between Arrow and the program's Python. Tasks exchange them in UTC, and
functions get them in the session's zone, as PySpark's workers do. Only the types change, never the
instants.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable

import pyarrow as pa

from firesteel.errors import FiresteelError

SESSION_TIME_ZONE = "spark.sql.session.timeZone"


def in_zone(batch: pa.RecordBatch, zone: str) -> pa.RecordBatch:
    """Returns `batch` with its TIMESTAMPs, including nested ones, in `zone`. Copies nothing. Raises
    FiresteelError if there are any and Python does not have the zone.
    """
    if zone == "UTC":
        return batch
    schema = _zoned(batch.schema, zone)
    if schema is None:
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@functools.lru_cache(maxsize=1024)
def has_moments(kind: pa.DataType) -> bool:
    """Whether values of this type are or contain TIMESTAMPs."""
    return bool(_with_moments(kind, lambda _: pa.null()) != kind)


@functools.cache
def python_zone(zone: str) -> datetime.tzinfo:
    """Returns the zone, as Arrow's Python values have it. Raises FiresteelError if Python lacks
    it.
    """
    try:
        info = pa.scalar(0, pa.timestamp("us", zone)).as_py().tzinfo
    except Exception as error:
        raise FiresteelError(
            f"{SESSION_TIME_ZONE} is {zone!r}, and Python has no such time zone; use a region such"
            " as Asia/Tokyo, or an offset such as +09:00"
        ) from error
    assert isinstance(info, datetime.tzinfo)
    return info


@functools.lru_cache(maxsize=1024)
def _zoned(schema: pa.Schema, zone: str) -> pa.Schema | None:
    """Returns the schema in the zone; None if it has no TIMESTAMPs."""
    kinds = [_with_moments(field.type, lambda k: pa.timestamp(k.unit, zone)) for field in schema]
    if kinds == schema.types:
        return None
    python_zone(zone)
    fields = [field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)]
    return pa.schema(fields, schema.metadata)


def _with_moments(kind: pa.DataType, of: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Returns `kind` with another type for each TIMESTAMP in it."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else of(kind)
    if not pa.types.is_nested(kind):
        return kind

    def part(field: pa.Field) -> pa.Field:
        return field.with_type(_with_moments(field.type, of))

    if pa.types.is_struct(kind):
        return pa.struct([part(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(part(kind.key_field), part(kind.item_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(part(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(part(kind.value_field), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(part(kind.value_field))
    return kind
