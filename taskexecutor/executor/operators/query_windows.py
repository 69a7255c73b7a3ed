"""The keyed half of an aggregation in sliding windows, for a query that emits each window once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from firesteel.common.units import MIB
from firesteel.operator import OperatorState, Output, RuntimeContext
from firesteel.operators import (
    RunningAggregateSpec,
    SlidingSpec,
    WindowAggregateSpec,
)
from firesteel.operators.assigners import WINDOW_END, WINDOW_START
from firesteel.row_kind import INSERT
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.columnar.grouping.merging import ROWS, aggregate_results
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.columns import as_int64, as_timestamps
from taskexecutor.executor.operators.query_watermark import QueryOperator
from taskexecutor.executor.operators.windows.panes import PaneWindows, last_end_us
from taskexecutor.executor.operators.windows.partial_contents import PartialContents

PART_ROWS = 65_536  # rows of a batch's results
MOST_BYTES = 64 * MIB  # of the rows of a part, if state is paged
_EMITTED_UNTIL = "_emitted_until"


class QueryWindows(QueryOperator):
    """Holds the partials of all panes until the watermark reaches the ends of their windows. Each
    window is then emitted once. Its rows with an earlier end are late.

    The state has, for each row, the watermark of the subtask that wrote it: that subtask has
    emitted the windows up to it. A subtask that continues at a later watermark emits the windows
    between the two first.
    """

    computes = choose.GROUPING

    def __init__(self, spec: RunningAggregateSpec) -> None:
        super().__init__(at_barriers=spec.at_barriers)
        assert isinstance(spec.window, SlidingSpec)
        self._spec, self._window = spec, spec.window
        self._windows = self._windows_after(lambda: self._watermark_us)
        self._behind: list[PaneWindows] = []  # with restored rows whose windows are due
        self._due: list[pa.RecordBatch] = []  # results that are held back until a barrier

    def _windows_after(self, watermark_us: Callable[[], int]) -> PaneWindows:
        """Returns windows without rows, of which those up to the watermark have been emitted."""
        contents = _Contents(self._spec, self._window, self._emit)
        return PaneWindows(self._window, contents, passed_us=lambda: watermark_us() - 1)

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._windows.setup(context, output)

    def initialize_state(self, state: OperatorState) -> None:
        super().initialize_state(state)
        self._windows.initialize_state(state)

    def open(self) -> None:
        restored = self._windows.restored()
        if restored is None:
            return
        last = restored.num_columns - 1
        rows = restored.remove_column(last)
        emitted_us = as_numpy(restored.column(last).combine_chunks())
        for until_us in np.unique(emitted_us).tolist():
            mine = rows.filter(pa.array(emitted_us == until_us))
            self._windows.load(mine)
            if until_us < self._watermark_us:
                self._behind.append(self._emitted_before(mine, until_us))

    def _emitted_before(self, rows: pa.Table, until_us: int) -> PaneWindows:
        """Returns windows with these rows, of which those up to `until_us` have been emitted."""
        windows = self._windows_after(lambda: until_us)
        windows.setup(self.context, self.output)
        windows.use(self._windows.memory)
        windows.load(rows)
        return windows

    def snapshot_state(self, checkpoint_id: int) -> None:
        super().snapshot_state(checkpoint_id)
        until_us = self._watermark_us
        self._windows.keep(
            lambda rows: rows.append_column(
                _EMITTED_UNTIL, pa.array(np.full(rows.num_rows, until_us))
            )
        )

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if batch.num_rows:
            self._count_late(batch)
            self._windows.process_batch(batch, input_index)

    def _count_late(self, batch: pa.RecordBatch) -> None:
        """Counts rows once for each of their windows that is over, as Spark does."""
        starts, window = as_int64(batch.column(WINDOW_START)), self._window
        if int(starts.min()) >= self._watermark_us:
            return
        last_ends = last_end_us(window, starts)
        windows = -((starts - last_ends) // window.slide_us)
        first_ends = last_ends - (windows - 1) * window.slide_us
        over = (self._watermark_us - first_ends) // window.slide_us + 1
        late = np.clip(over, 0, windows) * as_numpy(batch.column(ROWS))
        if late.any():
            self._late.inc(int(late.sum()))

    def expire(self) -> None:
        behind, self._behind = self._behind, []
        for windows in (*behind, self._windows):
            windows.advance(self._watermark_us - 1)

    def _emit(self, rows: pa.Table, ends_us: Ints) -> None:
        most = PART_ROWS
        if self._windows.memory.piece_bytes is not None:  # rows may be large, such as lists
            most = min(most, max(1, MOST_BYTES * rows.num_rows // max(1, rows.nbytes)))
        for start in range(0, rows.num_rows, most):
            ends = as_timestamps(ends_us[start : start + most])
            part = rows.slice(start, most).append_column(WINDOW_END, ends)
            keys, aggregates = self._spec.key_columns, self._spec.aggregates
            results = aggregate_results(self.context, aggregates, keys, part, {}, {})
            if self._spec.at_barriers:
                self._due.append(results)
            else:
                self.output.emit(results)

    def emit_held(self) -> None:
        due, self._due = self._due, []
        for results in due:
            self.output.emit(results)

    def finish(self) -> None:
        self.expire()
        self.emit_held()

    def close(self) -> None:
        self._due.clear()
        for windows in (*self._behind, self._windows):
            windows.close()


class _Contents(PartialContents):
    """Contents whose results `emit` takes: the merged rows, and the end of each row's window."""

    def __init__(
        self,
        spec: RunningAggregateSpec,
        window: SlidingSpec,
        emit: Callable[[pa.Table, Ints], None],
    ) -> None:
        keys = tuple(name for name in spec.key_columns if name != spec.expires)
        aggregates = spec.aggregates
        super().__init__(
            WindowAggregateSpec(key_columns=keys, window=window, aggregates=aggregates)
        )
        self._emit_rows = emit

    def too_late(self, batch: pa.RecordBatch) -> None:
        """Does nothing: QueryWindows counts late rows."""

    def emit(self, table: pa.Table, starts: Ints, ends: Ints, kind: str = INSERT) -> None:
        self._emit_rows(table, ends)
