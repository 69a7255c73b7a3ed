"""The partial half of an aggregation with the grouping in Arrow: Spark only computes the rows'
contributions.

Spark's hash table of numbers is part of its generated loop and is the fastest option. Sets, strings
and structs are objects of a slower table, one by one, with a set for each condition of a
`count(DISTINCT x) FILTER (WHERE ...)`. So are sums of decimals that exceed a `long`: two
BigDecimals for each row. For these, the plan ends with the keys, the pane and each row's
contributions to the partial results; rows leave as columns, and `grouping.row_partials` groups
them.

A bundle of few rows is not grouped at all: each row is a partial result. Spark's hash table takes
longer to create than a thousand rows to merge later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from firesteel.operators import (
    DynamicSessionSpec,
    PartialWindowAggregateSpec,
    RowPartial,
    SessionSpec,
)
from firesteel.operators.aggregates import LATEST
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.grouping.row_partials import RowPartials, Values
from taskexecutor.executor.columnar.schemas import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_SETS = frozenset({"set", "distinct"})
_EXTREMES = frozenset({"min", "max"})
_LONG_DIGITS = 18  # of decimals that Spark stores in a long
_SUM_DIGITS = 10  # additional digits of a decimal sum over its values
_MOST_DIGITS = 38  # of any decimal; a sum that has as many may have lost some
_BIT_COUNT = 31  # of Spark's integer, without the sign
_EACH = RowPartial("1L", otherwise="0L")  # counts every row
_NAME = r"(?:\w+|`[^`]+`)"
_NUMBER = re.compile(rf"{_NAME}|double\({_NAME}\)")
_HAS_VALUE = re.compile(rf"\(({_NAME})\) IS NOT NULL")


class GivenRows(NamedTuple):
    """The contributions of each row, and how they are grouped."""

    frame: DataFrame
    grouping: RowPartials
    numbers: bool  # only numbers: Spark groups them as fast, unless they are unchanged columns


def row_partials(
    rows: DataFrame, spec: PartialWindowAggregateSpec, aggregated: DataFrame
) -> GivenRows | None:
    """Returns the contributions of each of `rows`, and how they are grouped into the columns of
    `aggregated`; None if Spark groups the rows as fast, or differently from Arrow.
    """
    kinds = {field.name: field.dataType for field in aggregated.schema.fields}
    schema = to_arrow(aggregated.schema)
    merges = spec.merges
    of_row = _contributions(spec, kinds)
    numbers = all(_is_number(schema.field(name).type) for name in merges)
    if (
        isinstance(spec.window, DynamicSessionSpec)
        or (numbers and not all(map(_may_be_column, of_row.values())))
        or not _merge_exactly(spec, of_row, kinds, schema)
    ):
        return None
    from pyspark.sql import functions as sql

    columns = _Columns(rows)
    for name in spec.key_columns:
        columns.add(composed.column(name))
    pane_us = offset_us = gap_us = 0
    if spec.window is not None and spec.in_event_time:
        columns.add(sql.expr(composed.event_time_us(spec.time_column, spec.time_shift_us)))
        if isinstance(spec.window, SessionSpec):
            pane_us = gap_us = spec.window.gap_us
        else:
            pane_us, offset_us = spec.window.pane_us, spec.window.offset_us
    if spec.part_column:
        columns.add(composed.column(spec.part_column))
    plain: list[tuple[str, int]] = []
    counted: list[tuple[str, str]] = []  # name, condition
    sets: dict[str, list[tuple[str, str]]] = {}  # by value: name, condition
    for name, how in merges.items():
        each = of_row[name]
        if how in _SETS:
            sets.setdefault(each.value, []).append((name, each.condition))
        elif _is_count(each):
            counted.append((name, each.condition))
        elif each != _EACH:
            plain.append((name, columns.given(each, _row_kind(how, kinds[name]))))
    present = [(name, columns.with_values(condition)) for name, condition in counted]
    counted = [each for each, (_, place) in zip(counted, present, strict=True) if place is None]
    if any(
        len({condition for _, condition in each}) > _BIT_COUNT for each in (*sets.values(), counted)
    ):
        return None
    values = [columns.values(value, wanted) for value, wanted in sets.items()]
    conditions = list(dict.fromkeys(condition for _, condition in counted))
    grouping = RowPartials(
        schema=schema,
        keys=len(spec.key_columns),
        pane_us=pane_us,
        offset_us=offset_us,
        gap_us=gap_us,
        in_parts=bool(spec.part_column),
        merges=merges,
        plain=tuple(plain),
        values=tuple(values),
        present=tuple((name, place) for name, place in present if place is not None),
        counts=tuple((name, conditions.index(condition)) for name, condition in counted),
        bits=columns.bits(conditions) if conditions else None,
    )
    return GivenRows(columns.frame(), grouping, numbers)


def may_merge_by_row(spec: PartialWindowAggregateSpec) -> bool:
    """Returns whether the aggregate only has sums and extremes, which `rows_as_partials` needs."""
    sessions = spec.in_event_time and isinstance(spec.window, SessionSpec)
    return not sessions and _EXTREMES.union({"sum"}).issuperset(spec.merges.values())


def rows_as_partials(
    rows: DataFrame, spec: PartialWindowAggregateSpec, aggregated: DataFrame
) -> DataFrame | None:
    """Returns a partial result for each of `rows`, with the columns of `aggregated`; None if they
    would not merge to exactly what Spark computes.
    """
    from pyspark.sql import functions as sql

    kinds = {field.name: field.dataType for field in aggregated.schema.fields}
    of_row = _contributions(spec, kinds)
    schema = to_arrow(aggregated.schema)
    if not (may_merge_by_row(spec) and _merge_exactly(spec, of_row, kinds, schema)):
        return None
    partials = {name: composed.contribution(of_row[name]).cast(kinds[name]) for name in spec.merges}
    partials[composed.ROWS] = sql.lit(1).cast(kinds[composed.ROWS])
    columns = {name: composed.column(name) for name in spec.key_columns}
    columns |= composed.pane_times(spec) | partials
    return rows.select(*(each.alias(name) for name, each in columns.items()))


def _contributions(
    spec: PartialWindowAggregateSpec, kinds: Mapping[str, DataType]
) -> dict[str, RowPartial]:
    """Returns the contribution of a row to each partial column."""
    latest = {LATEST: RowPartial(composed.quoted(spec.latest))} if spec.latest else {}
    return latest | {
        name: composed.exactly(each)
        if name in item.exact and _is_decimal(kinds.get(name))
        else each
        for item in spec.aggregates
        for name, each in item.of_row.items()
    }


def _merge_exactly(
    spec: PartialWindowAggregateSpec,
    of_row: Mapping[str, RowPartial],
    kinds: Mapping[str, DataType],
    schema: pa.Schema,
) -> bool:
    """Returns whether the contributions of rows merge to exactly what Spark computes from the rows.
    `kinds` and `schema` are those of the partial results.
    """
    return (
        len(kinds) == len(schema)  # distinct names
        and all(_is_key(kinds[name]) for name in spec.key_columns)
        and all(
            name in of_row and _merges(how, kinds[name], schema.field(name).type)
            for name, how in spec.merges.items()
        )
    )


class _Columns:
    """The columns of contributions, in order."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows
        self._columns: list[Column] = []
        self._given: dict[tuple[RowPartial, str], int] = {}  # indices of values of a type
        self._bits: dict[tuple[str, ...], int] = {}  # indices of condition columns

    def add(self, column: Column) -> int:
        """Adds a column and returns its index."""
        self._columns.append(column.alias(f"_{len(self._columns)}"))
        return len(self._columns) - 1

    def given(self, each: RowPartial, kind: DataType) -> int:
        """Returns the index of each row's contribution, as a value of this type."""
        key = each, kind.simpleString()
        if key not in self._given:
            self._given[key] = self.add(composed.contribution(each).cast(kind))
        return self._given[key]

    def with_values(self, condition: str) -> int | None:
        """If the condition is that a column is not null: returns the index of this column, if it is
        present anyway or numeric.
        """
        found = _HAS_VALUE.fullmatch(condition)
        if found is None:
            return None
        each = RowPartial(found[1])
        for (given, _), place in self._given.items():
            if given == each:
                return place
        schema = self._rows.select(composed.contribution(each)).schema
        if not _is_number(to_arrow(schema).field(0).type):
            return None
        return self.given(each, schema.fields[0].dataType)

    def bits(self, conditions: Sequence[str]) -> int:
        """Returns the index of a column of bits, one for each condition that a row meets; every row
        meets an empty condition.
        """
        from pyspark.sql import functions as sql

        met = tuple(each or "true" for each in conditions)
        if met not in self._bits:
            bits = (f"IF({each}, {1 << bit}, 0)" for bit, each in enumerate(met))
            self._bits[met] = self.add(sql.expr(" | ".join(bits)))
        return self._bits[met]

    def values(self, value: str, wanted: list[tuple[str, str]]) -> Values:
        """`wanted` are the names of the columns with lists of these values, and their
        conditions.
        """
        conditions = list(dict.fromkeys(condition for _, condition in wanted))
        counts = "" if "" in conditions else " OR ".join(f"({each})" for each in conditions)
        place = self.add(composed.contribution(RowPartial(value, counts)))
        lists = tuple((name, conditions.index(condition)) for name, condition in wanted)
        if len(conditions) == 1:
            return Values(place, lists, None)
        return Values(place, lists, self.bits(conditions))

    def frame(self) -> DataFrame:
        return self._rows.select(*self._columns)


def _row_kind(how: str, kind: DataType) -> DataType:
    """Returns the type of a row's contribution to a partial column."""
    from pyspark.sql.types import ArrayType, DecimalType

    if how == "sum" and isinstance(kind, DecimalType):
        return DecimalType(kind.precision - _SUM_DIGITS, kind.scale)
    if how != "list":
        return kind
    assert isinstance(kind, ArrayType)
    return kind.elementType


def _is_count(each: RowPartial) -> bool:
    """Returns whether it counts the rows that meet its condition."""
    return bool(each.condition) and replace(each, condition="") == _EACH


def _may_be_column(each: RowPartial) -> bool:
    return (
        each == _EACH
        or _is_count(each)
        or (not each.condition and _NUMBER.fullmatch(each.value) is not None)
    )


def _is_decimal(kind: DataType | None) -> bool:
    from pyspark.sql.types import DecimalType

    return isinstance(kind, DecimalType)


def _is_number(kind: pa.DataType) -> bool:
    """Returns whether Spark's generated loop stores the type as a number."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _LONG_DIGITS)
    return bool(pa.types.is_primitive(kind))


def _is_key(kind: DataType) -> bool:
    """Returns whether values that are equal to Spark are also equal to Arrow: not for numbers with
    two zeros, or strings of some collations.
    """
    return kind.simpleString() in (
        "tinyint", "smallint", "int", "bigint", "boolean", "date", "timestamp", "timestamp_ntz",
        "string",
    )  # fmt: skip


def _merges(how: str, kind: DataType, arrow: pa.DataType) -> bool:
    """Returns whether rows' values can be merged like partial results, exactly as Spark does."""
    from pyspark.sql.types import ArrayType, StructType

    if how in _SETS:
        return isinstance(kind, ArrayType) and _is_key(kind.elementType)
    if how == "list":
        return isinstance(kind, ArrayType)
    if how == "sum" and pa.types.is_decimal(arrow):
        return bool(_SUM_DIGITS < arrow.precision < _MOST_DIGITS)
    if how == "sum":
        return bool(pa.types.is_int64(arrow) or pa.types.is_float64(arrow))
    if how in _EXTREMES and isinstance(kind, StructType):
        return all(_is_key(field.dataType) for field in kind.fields)
    if how in _EXTREMES:
        return _is_key(kind) or bool(pa.types.is_floating(arrow))
    order, _, _ = how.partition(":")
    return order in ("first", "last")
