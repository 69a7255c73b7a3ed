"""Window contents of partial results, which are merged as they arrive."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.operator import Output, RuntimeContext
from firesteel.operators import WindowAggregateSpec
from firesteel.operators.assigners import WINDOW_END, WINDOW_START
from firesteel.row_kind import INSERT, ROW_KIND
from taskexecutor.executor.columnar.grouping.dense_partials import DensePartials
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.columnar.grouping.merging import (
    ROWS,
    aggregate_results,
    columns_of_partials,
    meaning_of_partials,
    merge_partials,
    merges_of,
)
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.columns import as_int64, as_timestamps
from taskexecutor.executor.operators.windows.contents import Bounds, Combined

LARGE_ROWS = 16_384  # windows of at least this average size are merged one by one
_NUMBER = "_window"


class PartialContents:
    """Partial rows, as `plans.partial_window_aggregate` produces them."""

    combines = True
    one_window_at_a_time = False
    with_all_keys = False

    def __init__(self, spec: WindowAggregateSpec) -> None:
        self.key_columns = spec.key_columns
        self.retracts = spec.retracts
        self._aggregates = spec.aggregates
        self._merges = merges_of(spec.aggregates)

    def setup(self, context: RuntimeContext, output: Output) -> None:
        self._context = context
        self._output = output
        self._late = context.counter("numLateRecordsDropped")

    def close(self) -> None:
        """Does nothing."""

    def meaning(self) -> dict[str, str]:
        return meaning_of_partials(self._aggregates, self._context.input_schemas[0])

    def columns(self) -> dict[str, str]:
        return columns_of_partials(self._aggregates, self._context.input_schemas[0])

    def bounds(self, batch: pa.RecordBatch) -> Bounds:
        return Bounds(as_int64(batch.column(WINDOW_START)), as_int64(batch.column(WINDOW_END)))

    def gaps(self, batch: pa.RecordBatch) -> Ints | int:
        bounds = self.bounds(batch)
        return bounds.ends - bounds.starts

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select([*self.key_columns, *self._merges])

    def too_late(self, batch: pa.RecordBatch) -> None:
        self._late.inc(pc.sum(batch.column(ROWS)).as_py())

    def combined(self, table: pa.Table, windows: Ints, *, of_one_key: bool = False) -> Combined:
        heads = _heads(windows)
        large = len(heads) * LARGE_ROWS < len(windows) and bool(
            (windows[heads[1:]] > windows[heads[:-1]]).all()
        )
        # One by one; for many small windows, one pass over all of them is cheaper.
        if len(heads) < 2 or large:
            bounds = [0, *heads[1:].tolist(), len(windows)]
            parts = [self._merged(table.slice(a, b - a)) for a, b in pairwise(bounds)]
            numbers = [
                np.full(part.num_rows, windows[start] if part.num_rows else 0)
                for part, start in zip(parts, bounds, strict=False)
            ]
            return Combined(pa.Table.from_batches(parts), np.concatenate(numbers))
        numbered = table.append_column(_NUMBER, pa.array(windows))
        if of_one_key:
            merges = dict.fromkeys(self.key_columns, "any") | self._merges
            merged = merge_partials(numbered, [_NUMBER], merges)
        else:
            merged = merge_partials(numbered, [*self.key_columns, _NUMBER], self._merges)
        found = as_numpy(merged.column(_NUMBER))
        rows = merged.select([*self.key_columns, *self._merges])
        if not (found[1:] >= found[:-1]).all():
            order = np.argsort(found, kind="stable")
            rows, found = rows.take(pa.array(order)), found[order]
        return Combined(pa.Table.from_batches([rows]), found)

    def _merged(self, table: pa.Table) -> pa.RecordBatch:
        """Returns the merged rows of one window."""
        table = table.combine_chunks()  # each chunk would cost as much as many rows
        dense = (
            DensePartials(self.key_columns, self._merges).add(table.to_batches())
            if table.num_rows
            else None
        )
        return dense if dense is not None else merge_partials(table, self.key_columns, self._merges)

    def emit(self, table: pa.Table, starts: Ints, ends: Ints, kind: str = INSERT) -> None:
        if not table.num_rows:
            return
        times = {WINDOW_START: as_timestamps(starts), WINDOW_END: as_timestamps(ends)}
        kinds = {ROW_KIND: pa.repeat(kind, table.num_rows)} if self.retracts else {}
        self._output.emit(
            aggregate_results(
                self._context, self._aggregates, self.key_columns, table, times, kinds
            )
        )


def _heads(windows: Ints) -> Ints:
    """Returns where runs of rows with the same window start."""
    heads: Ints = np.flatnonzero(np.concatenate(([True], windows[1:] != windows[:-1])))
    return heads
