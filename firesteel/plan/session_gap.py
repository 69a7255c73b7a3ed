"""Computes the gap of each row, for `Session.with_dynamic_gap`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.errors import InvalidProgram
from firesteel.operators.windows import SESSION_GAP
from firesteel.plan.frame_methods import FrameMethod

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def session_gap_us(frame: DataFrame, gap: str) -> Column:
    """Returns the gap of each row in microseconds. Raises InvalidProgram if it is not an interval.
    The plan fails on a row whose gap is null or not longer than 0.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.types import CalendarIntervalType, DayTimeIntervalType, StringType

    kind = frame.select(sql.expr(gap)).schema.fields[0].dataType
    if not isinstance(kind, StringType | DayTimeIntervalType | CalendarIntervalType):
        raise InvalidProgram(
            f"Session.with_dynamic_gap({gap!r}): its type is {kind.simpleString()}; it must be an"
            " interval, such as make_dt_interval(0, 0, n), or its text, such as '5 minutes'"
        )
    interval = f"CAST(({gap}) AS INTERVAL)" if isinstance(kind, StringType) else f"({gap})"
    gap_us = f"unix_micros(timestamp_micros(0) + {interval})"
    error = sql.concat(
        sql.lit(f"the gap of a session must be longer than 0, and {gap} is "),
        sql.coalesce(sql.expr(f"CAST(({gap}) AS STRING)"), sql.lit("NULL")),
    )
    return sql.when(sql.expr(f"{gap_us} > 0"), sql.expr(gap_us)).otherwise(sql.raise_error(error))


def with_session_gap(gap: str) -> FrameMethod:
    """Adds the column SESSION_GAP."""
    return FrameMethod(
        spelling="with_session_gap",
        shown=gap,
        call=lambda df: df.withColumn(SESSION_GAP, session_gap_us(df, gap)),
        added=(SESSION_GAP,),
    )
