"""Aggregates over the rows around each row of its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic

from firesteel.column_names import same
from firesteel.errors import InvalidProgram
from firesteel.operators import PartialWindowAggregateSpec, RowsBetweenSpec
from firesteel.operators.aggregates import AggregateExpression
from firesteel.row_kind import ROW_KIND
from firesteel.windowed_stream import KeyedRows, Stream, order_of, parsed_without_windows

if TYPE_CHECKING:
    from pyspark.sql import Column


class RowsBetween(Generic[Stream]):
    """The result of `KeyedStream.rows_between`."""

    def __init__(
        self,
        keyed: KeyedRows[Stream],
        start: Any,
        end: Any,
        *,
        by: str | Sequence[str],
        ascending: bool | Sequence[bool],
    ) -> None:
        """Raises InvalidProgram for invalid arguments."""
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in (start, end)):
            raise InvalidProgram(
                f"rows_between({start!r}, {end!r}): specify numbers of rows, as in"
                ' rows_between(-9, 0, by="time") for the nine rows before each and itself'
            )
        if start > 0 or end < 0:
            raise InvalidProgram(
                f"rows_between({start}, {end}): the row itself must be included; specify a start of"
                " at most 0 and an end of at least 0"
            )
        self._keyed = keyed
        self._start, self._end = start, end
        self._by, self._ascending = order_of("rows_between", by, ascending)

    def aggregate(
        self, *expressions: str | Column, name: str | None = None, uid: str = ""
    ) -> Stream:
        """Returns the records with an additional column per expression, over the records around
        each, and `row_kind`: a stream of changes, because a record that is inserted between others
        changes their results. The records may be changes themselves.

        The expressions are those of `KeyedStream.aggregate` that support retraction, except first
        and last, which are by event time. All records are kept until the stream ends. Raises
        InvalidProgram for invalid expressions.
        """
        keys = self._keyed.key_columns
        aggregates = parsed_without_windows(self._keyed, expressions)
        _check_order(aggregates, self._by[0], self._ascending[0])
        if any(same(item.name, ROW_KIND) for item in aggregates):
            raise InvalidProgram(f"{ROW_KIND!r} is a column of the result; choose another name")
        partial = PartialWindowAggregateSpec(
            key_columns=keys, window=None, time_column="", aggregates=aggregates, whole_rows=True
        )
        final = RowsBetweenSpec(
            key_columns=keys,
            by=self._by,
            ascending=self._ascending,
            start=self._start,
            end=self._end,
            aggregates=aggregates,
        )
        title = name or f"RowsBetween({self._start}, {self._end} by {', '.join(self._by)})"
        return self._keyed._add_in_two_halves(title, partial, final, uid=uid)


def _check_order(aggregates: Sequence[AggregateExpression], by: str, ascending: bool) -> None:
    """Raises InvalidProgram for first() and last(): the values at the first and last event time
    may not be those of the first and last rows.
    """
    from firesteel.plan.aggregates.calls import calls_of  # imports the SQL parser

    for item in aggregates:
        for call in calls_of(item.sql):
            least = call.name.startswith("first")
            if least or call.name.startswith("last"):
                other = f"{'min' if least == ascending else 'max'}_by(value, {by})"
                raise InvalidProgram(
                    f"rows_between(...).aggregate({item.sql!r}): {call.name}() is by event time,"
                    f" not in the order of the rows; use {other}"
                )
