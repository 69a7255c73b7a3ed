"""Joins two bounded streams on Spark, in a batch.

The result equals that of a stream join at its end. For a changelog stream (`row_kind`), the rows
that exist at its end are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from firesteel.column_names import column_index
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from firesteel.operators import AsOfSpec, IntervalSpec, JoinSpec
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.columnar.schemas import conformed, fits_parquet, to_arrow, to_spark
from taskexecutor.executor.columnar.stages.whole_rows import WholeRows
from taskexecutor.executor.operators.columns import without_kind
from taskexecutor.executor.operators.joins.joined_columns import JoinedColumns
from taskexecutor.executor.operators.joins.time_bounds import time_bounds
from taskexecutor.executor.timing.clock import wall_clock_ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SIDES = ("left", "right")
_TIME, _CHANGE = "time", "change"  # additional columns; the names of data columns are numbers


def joins_whole(spec: JoinSpec, schema: pa.Schema | None) -> bool:
    """Returns whether Spark computes a join with this result schema. Spark supports fewer types
    than Arrow, and could only find a latest row by time among all pairs.
    """
    if not spec.whole or isinstance(spec.within, AsOfSpec) or schema is None:
        return False
    return fits_parquet(schema) and not _is_marked(schema)


def _is_marked(parts: Sequence[pa.Field] | pa.Schema | pa.DataType) -> bool:
    """Returns whether metadata anywhere in it marks another logical type, as for variants."""
    return any(
        part.metadata or (pa.types.is_nested(part.type) and _is_marked(_fields(part.type)))
        for part in parts
    )


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]


class WholeJoin(WholeRows):
    """Joins all rows of both streams when they have ended."""

    not_checkpointed = "the rows that a join in a batch waits with until its inputs end"

    def __init__(self, spec: JoinSpec, output_schema: pa.Schema | None) -> None:
        super().__init__(2, output_schema)
        self._spec = spec
        self._keys = spec.left_keys, spec.right_keys
        self._bounds = time_bounds(spec, wall_clock_ms)
        self._deleted = [False, False]  # whether a side has deletions

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._given = self._input_schemas()
        self._columns = JoinedColumns(self._spec, *self._given)

    def _spooled_schema(self, number: int, given: pa.Schema) -> pa.Schema:
        """Returns numbered columns, because columns of two streams may have the same name, or names
        that differ in case.
        """
        kinds = to_arrow(to_spark(without_kind(given))).types
        fields = [pa.field(_name(number, place), kind) for place, kind in enumerate(kinds)]
        if self._spec.within is not None:
            fields.append(pa.field(_name(number, _TIME), pa.int64()))
        if ROW_KIND in given.names:
            fields.append(pa.field(_name(number, _CHANGE), pa.int64()))
        return pa.schema(fields)

    def _spooled(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = without_kind(batch.schema)
        columns = [batch.column(name) for name in kept.names]
        if self._spec.within is not None:
            columns.append(pa.array(self._bounds.times(number, batch, self.context.operator_name)))
        if len(kept) < batch.num_columns:
            columns.append(self._changes(number, batch.column(ROW_KIND)))
        return conformed(columns, self._schemas[number])

    def _changes(self, number: int, kinds: pa.Array) -> pa.Array:
        """Returns 1 for each insertion and -1 for each deletion."""
        deleted = pc.equal(kinds, DELETE)
        known = pc.or_(deleted, pc.equal(kinds, INSERT))
        if not pc.all(known, skip_nulls=False).as_py():
            raise FiresteelError(
                f"{self.context.operator_name}: a row of the {_SIDES[number]} stream has a"
                f" {ROW_KIND!r} that is neither {INSERT!r} nor {DELETE!r}"
            )
        self._deleted[number] |= bool(pc.any(deleted).as_py())
        return pc.if_else(deleted, pa.scalar(-1, pa.int64()), pa.scalar(1, pa.int64()))

    def _result(self, frames: Sequence[DataFrame]) -> DataFrame:
        from pyspark.sql import functions as sql

        left, right = (
            self._there(number, frame) if self._deleted[number] else frame
            for number, frame in enumerate(frames)
        )
        joined = left.join(right, self._condition(), self._spec.how)
        columns: list[Column] = []
        for places in self._columns.places:
            found = [
                sql.col(_name(number, place))
                for number, place in enumerate(places)
                if place is not None
            ]
            columns.append(found[0] if len(found) == 1 else sql.coalesce(*found))
        if (window := self._columns.window) is not None:
            start = sql.coalesce(*(sql.col(_name(side, _TIME)) for side in range(2)))
            columns += [sql.timestamp_micros(each) for each in (start, start + window.size_us)]
        if self._columns.retracts:
            columns.append(sql.lit(INSERT))
        names = self._columns.schema.names
        return joined.select(
            *(column.alias(name) for column, name in zip(columns, names, strict=True))
        )

    def _condition(self) -> Column:
        from pyspark.sql import functions as sql

        found = [
            sql.col(_name(0, column_index(without_kind(self._given[0]), mine)))
            == sql.col(_name(1, column_index(without_kind(self._given[1]), theirs)))
            for mine, theirs in zip(*self._keys, strict=True)
        ]
        within = self._spec.within
        if within is not None:
            left, right = (sql.col(_name(number, _TIME)) for number in range(2))
            found.append(
                right.between(left + within.lower_us, left + within.upper_us)
                if isinstance(within, IntervalSpec)
                else left == right
            )
        return reduce(and_, found)

    def _there(self, number: int, frame: DataFrame) -> DataFrame:
        """Returns the rows with more insertions than deletions, repeated by the difference."""
        from pyspark.sql import functions as sql

        change = _name(number, _CHANGE)
        rows = [name for name in frame.columns if name != change]
        unknown = sql.concat(
            sql.lit(
                f"{self.context.operator_name}: cannot delete a row of the {_SIDES[number]} stream"
                " that does not exist: "
            ),
            sql.struct(*rows).cast("string"),
            sql.lit("; an upstream operator must have changed rows or their order"),
        )
        counted = frame.groupBy(*rows).agg(sql.sum(change).alias(change))
        checked = sql.when(sql.col(change) < 0, sql.raise_error(unknown).cast("bigint"))
        times = checked.otherwise(sql.col(change)).cast("int")
        return counted.select(*rows, sql.explode(sql.array_repeat(sql.lit(1), times)).alias(change))


def _name(number: int, column: int | str) -> str:
    return f"{_SIDES[number]}_{column}"
