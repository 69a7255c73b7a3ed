"""Column checks shared by several analyzers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from firesteel.column_names import column_index, same
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.grouping.ordering import sorted_rows
from taskexecutor.executor.columnar.schemas import missing_column, spark_name
from taskexecutor.executor.exchange.errors import UnsupportedKey
from taskexecutor.executor.exchange.partitioning import hash_columns

if TYPE_CHECKING:
    from taskexecutor.executor.analysis.step import AnalysisStep


_TIME_ZONE = "spark.sql.session.timeZone"
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})


def check_time_column(
    step: AnalysisStep, what: str, name: str, schema: pa.Schema, *, argument: str = ""
) -> None:
    """Checks that event time is a timestamp column. A timestamp without zone is in the session's
    zone for Spark and in UTC for Python operators, so the session must be in UTC.

    `argument`: the argument with which the program can name the column.
    """
    index = column_index(schema, name)
    if index < 0:
        named = f", the event time, which {argument} can name" if argument else ""
        raise missing_column(f"{what}: column {name!r}{named}", name, schema.names)
    kind = schema.field(index).type
    if pa.types.is_timestamp(kind):
        zone = "UTC" if kind.tz is not None else step.session.conf.get(_TIME_ZONE)
        if zone not in _UTC:
            raise FiresteelError(
                f"{what}: column {name!r} is timestamp_ntz, which is not an instant while "
                f"{_TIME_ZONE} is {zone}; read it as TIMESTAMP, or convert it:"
                f" df.withColumn('{name}', col('{name}').cast('timestamp'))"
            )
        return
    if pa.types.is_date(kind):
        advice = (
            "read it as TIMESTAMP, or convert it: "
            f"df.withColumn('{name}', col('{name}').cast('timestamp'))"
        )
    else:
        advice = (
            f'read it as TIMESTAMP, for example with schema="..., {name} TIMESTAMP" '
            "(and the option timestampFormat if it needs one)"
        )
    raise FiresteelError(
        f"{what}: column {name!r} is {spark_name(kind)}, but event time must be a timestamp; "
        + advice
    )


def check_keys(schema: pa.Schema | None, keys: Sequence[str]) -> None:
    """Checks that the columns of key_by() exist and have types that can be keys, whether or not
    rows are exchanged.
    """
    if schema is None:
        return
    for key in keys:
        index = column_index(schema, key)
        if index >= 0:
            try:
                hash_columns([pa.array([], schema.field(index).type)])
            except UnsupportedKey as error:
                raise FiresteelError(f'key_by("{key}"): {error}') from error
        else:
            missing = missing_column(f'key_by("{key}")', key, schema.names)
            if key.isidentifier():
                raise missing
            raise FiresteelError(
                f"{missing}; if it is an expression, give it a name:"
                f' key_by(F.expr("{key}").alias("..."))'
            )


class KeyedInput(NamedTuple):
    name: str  # in messages, such as "the first stream"
    schema: pa.Schema | None
    keys: Sequence[str]


def check_same_key_types(operator_name: str, one: KeyedInput, other: KeyedInput) -> None:
    """Checks that two keys have the same types: otherwise they would never be equal."""
    if one.schema is None or other.schema is None:
        return
    for key, other_key in zip(one.keys, other.keys, strict=True):
        index, other_index = column_index(one.schema, key), column_index(other.schema, other_key)
        if index < 0 or other_index < 0:
            continue
        kind, other_kind = one.schema.field(index).type, other.schema.field(other_index).type
        if kind != other_kind:
            raise FiresteelError(
                f"{operator_name}: the key {key!r} of {one.name} is {kind} and the key "
                f"{other_key!r} of {other.name} is {other_kind}; cast one of them"
            )


def check_order(what: str, schema: pa.Schema, by: Sequence[str], taken: Sequence[str]) -> None:
    """`taken`: the columns that are added to the rows."""
    for name in by:
        index = column_index(schema, name)
        if index < 0:
            raise missing_column(f"{what}: column {name!r}", name, schema.names)
        try:
            sorted_rows([(pa.array([], schema.field(index).type), True)])
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
            kind = spark_name(schema.field(index).type)
            raise FiresteelError(
                f"{what}: column {name!r} is {kind}, which cannot be ordered; order by a plain "
                "column, computed in an upstream transform"
            ) from None
    for name in schema.names:
        if any(same(name, one) for one in taken):
            raise FiresteelError(
                f"{what}: the stream has a column {name!r}, but the results add a column of this "
                f"name; rename it: with_column_renamed({name!r}, ...)"
            )


def check_window_columns(
    step: AnalysisStep, schema: pa.Schema, key_columns: Sequence[str], time_column: str
) -> None:
    check_keys(schema, key_columns)
    if time_column:
        check_time_column(step, "window", time_column, schema, argument="on=")
