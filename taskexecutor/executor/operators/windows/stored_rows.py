"""Base of contents that keep the rows themselves."""

from __future__ import annotations

import pyarrow as pa

from firesteel.operator import Output, RuntimeContext
from firesteel.operators import (
    DynamicSessionSpec,
    SessionSpec,
    WindowApplySpec,
    WindowTopNSpec,
)
from firesteel.operators.assigners import SESSION_GAP
from taskexecutor.executor.columnar.grouping.columns import described
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.columns import event_times
from taskexecutor.executor.operators.windows.contents import Bounds


class StoredRows:
    """Rows as they arrived."""

    _spec: WindowApplySpec | WindowTopNSpec

    def setup(self, context: RuntimeContext, output: Output) -> None:
        self._context = context
        self._output = output
        self._late = context.counter("numLateRecordsDropped")

    def close(self) -> None:
        """Does nothing."""

    def meaning(self) -> dict[str, str]:
        return {
            "time column": self._spec.time_column,
            "input": described(self._context.input_schemas[0]),
        }

    def columns(self) -> dict[str, str]:
        return {}

    def bounds(self, batch: pa.RecordBatch) -> Bounds:
        times = event_times(batch, self._spec.time_column, self._context.operator_name)
        times = times + self._spec.time_shift_us
        return Bounds(times, times + self.gaps(batch))

    def gaps(self, batch: pa.RecordBatch) -> Ints | int:
        window = self._spec.window
        if isinstance(window, DynamicSessionSpec):
            gaps: Ints = as_numpy(batch.column(SESSION_GAP))
            return gaps
        return window.gap_us if isinstance(window, SessionSpec) else 1

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if isinstance(self._spec.window, DynamicSessionSpec):
            return batch.drop_columns([SESSION_GAP])
        return batch

    def too_late(self, batch: pa.RecordBatch) -> None:
        if self._spec.late_tag:
            self._output.emit_side(self._spec.late_tag, batch)
        else:
            self._late.inc(batch.num_rows)
