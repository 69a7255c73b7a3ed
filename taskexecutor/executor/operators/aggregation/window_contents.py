"""What windows hold: partial results, which merge as they come, or the rows themselves, for Spark
when a window fires.

`window_panes` and `window_sessions` decide which window a row belongs to and when windows fire;
they do not look into contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from firesteel.plan.aggregates.finals import evaluate
from firesteel.plan.specs import AggregateExpression
from taskexecutor.executor.operators.aggregation.grouping import Ints
from taskexecutor.executor.operators.aggregation.keyed_partials import DensePartials
from taskexecutor.executor.operators.aggregation.partials import (
    ROWS,
    merge_partials,
    merges_of,
    single,
)

START, END = "window_start", "window_end"
TIME = pa.timestamp("us", "UTC")
_NUMBER = "_window"
LARGE_ROWS = 16_384  # of a window, from where on it is combined by itself


class Contents(Protocol):
    """`starts` and `ends` are microseconds since the epoch, one of each per row."""

    key_columns: tuple[str, ...]
    combines: bool  # rows of one key and window become one
    one_window_at_a_time: bool  # in `emit`

    def setup(self, context: RuntimeContext, output: Output) -> None: ...

    def bounds(self, batch: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Of what has arrived: the pane or session that each row is of (rows: the row's own time,
        and the end of its session).
        """

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is kept of a batch until its window fires."""

    def too_late(self, batch: pa.RecordBatch) -> None:
        """These rows came when all their windows were over."""

    def combined(self, table: pa.Table, windows: Ints) -> tuple[pa.Table, Ints]:
        """`windows` numbers the window of each row. Rows come back in the order of windows."""

    def emit(self, table: pa.Table, starts: Ints, ends: Ints) -> None:
        """The results of combined rows."""


class PartialContents:
    """Partial rows, as `plans.partial_window_aggregate` makes them."""

    combines = True
    one_window_at_a_time = False

    def __init__(
        self, key_columns: tuple[str, ...], aggregates: tuple[AggregateExpression, ...]
    ) -> None:
        self.key_columns = key_columns
        self._aggregates = aggregates
        self._merges = merges_of(aggregates)

    def setup(self, context: RuntimeContext, output: Output) -> None:
        self._context = context
        self._output = output
        self._late = context.counter("numLateRecordsDropped")

    def bounds(self, batch: pa.RecordBatch) -> tuple[Ints, Ints]:
        return as_int64(batch.column(START)), as_int64(batch.column(END))

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select([*self.key_columns, *self._merges])

    def too_late(self, batch: pa.RecordBatch) -> None:
        self._late.inc(pc.sum(batch.column(ROWS)).as_py())

    def combined(self, table: pa.Table, windows: Ints) -> tuple[pa.Table, Ints]:
        runs = _runs(windows)
        large = len(runs) * LARGE_ROWS < len(windows) and all(
            windows[a] < windows[b] for (a, _), (b, _) in pairwise(runs)
        )
        if (
            len(runs) == 1 or large
        ):  # window by window; for many small ones, one pass over all of them is cheaper
            parts = [self._merged(table.slice(start, stop - start)) for start, stop in runs]
            numbers = [
                np.full(p.num_rows, windows[start] if stop else 0)
                for p, (start, stop) in zip(parts, runs, strict=True)
            ]
            return pa.Table.from_batches(parts), np.concatenate(numbers)
        numbered = table.append_column(_NUMBER, pa.array(windows))
        merged = merge_partials(numbered, [*self.key_columns, _NUMBER], self._merges)
        found = merged.column(_NUMBER).to_numpy()
        order = np.argsort(found, kind="stable")
        kept = pa.Table.from_batches(
            [merged.select([*self.key_columns, *self._merges]).take(pa.array(order))]
        )
        return kept, found[order]

    def _merged(self, table: pa.Table) -> pa.RecordBatch:
        """Of one window."""
        dense = (
            DensePartials(self.key_columns, self._merges).add(table.to_batches())
            if table.num_rows
            else None
        )
        return dense if dense is not None else merge_partials(table, self.key_columns, self._merges)

    def emit(self, table: pa.Table, starts: Ints, ends: Ints) -> None:
        if not table.num_rows:
            return
        times = {START: pa.array(starts).view(TIME), END: pa.array(ends).view(TIME)}
        self._output.emit(finished(self._context, self._aggregates, self.key_columns, table, times))


def finished(
    context: RuntimeContext,
    aggregates: Sequence[AggregateExpression],
    key_columns: Sequence[str],
    merged: pa.Table | pa.RecordBatch,
    further: dict[str, pa.Array],
) -> pa.RecordBatch:
    """Merged partials to results: the key columns, `further` columns, one column per aggregate."""
    partials = {name: single(merged.column(name)) for item in aggregates for name in item.merge}
    columns = {name: single(merged.column(name)) for name in key_columns} | further
    schema = context.output_schema
    for item in aggregates:
        # Without analysis (tests): a partial as it is, anything computed as a double.
        guess = partials[item.final].type if item.final in partials else pa.float64()
        kind = schema.field(item.name).type if schema is not None else guess
        columns[item.name] = evaluate(item, partials, merged.num_rows, kind)
    if schema is not None:
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _runs(windows: Ints) -> list[tuple[int, int]]:
    """Where runs of the same number begin and end."""
    if not len(windows):
        return [(0, 0)]
    heads = np.flatnonzero(np.concatenate(([True], windows[1:] != windows[:-1])))
    return list(zip(heads.tolist(), [*heads[1:].tolist(), len(windows)], strict=True))


def as_int64(times: pa.Array) -> Ints:
    """Timestamps as microseconds since the epoch."""
    values: Ints = (
        times.cast(pa.timestamp("us", times.type.tz))
        .view(pa.int64())
        .to_numpy(zero_copy_only=False)
    )
    return values


def event_times(batch: pa.RecordBatch, column: str, what: str) -> Ints:
    """Raises FiresteelError where one is null."""
    times = batch.column(column)
    if times.null_count:
        raise FiresteelError(
            f"{what}: event time column {column!r} is null in some rows; drop them or give them a time before the window"
        )
    return as_int64(times)


def all_of(batches: Sequence[pa.RecordBatch], like: Any = None) -> pa.Table:
    return pa.Table.from_batches(list(batches), like)
