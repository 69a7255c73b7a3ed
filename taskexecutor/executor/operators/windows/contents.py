"""The contents of windows: partial results, or the rows themselves.

`panes` and `sessions` decide which window a row belongs to and when windows fire, independent of
the contents.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa

from firesteel.operator import Output, RuntimeContext
from firesteel.operators import (
    DynamicSessionSpec,
    SessionSpec,
    WindowApplySpec,
    WindowTopNSpec,
)
from firesteel.operators.assigners import SESSION_GAP
from firesteel.row_kind import INSERT
from taskexecutor.executor.columnar.grouping.columns import described
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.columns import event_times


class Bounds(NamedTuple):
    """Bounds of each row, in microseconds since the epoch."""

    starts: Ints
    ends: Ints


class Combined(NamedTuple):
    """Rows in the order of their windows."""

    rows: pa.Table
    windows: Ints  # the window number of each row


class Contents(Protocol):
    key_columns: tuple[str, ...]
    combines: bool  # whether `combined` merges the rows of a key and window into one
    with_all_keys: bool  # whether `emit` takes the rows of all keys of a window together
    retracts: bool  # whether `emit` is also called with results that are no longer valid

    @property
    def one_window_at_a_time(self) -> bool:
        """Whether `emit` takes the rows of a single window."""

    def setup(self, context: RuntimeContext, output: Output) -> None: ...

    def close(self) -> None:
        """Releases the resources of `emit`."""

    def meaning(self) -> dict[str, str]:
        """The meaning of the stored rows: see `firesteel.operator.OperatorState.keyed_rows`."""

    def columns(self) -> dict[str, str]:
        """Descriptions of columns whose names have no meaning: see
        `firesteel.operator.OperatorState.keyed_rows`.
        """

    def bounds(self, batch: pa.RecordBatch) -> Bounds:
        """Returns the pane or session of each arrived row. Contents that keep rows return the row's
        time and the end of a session with this row only.
        """

    def gaps(self, batch: pa.RecordBatch) -> Ints | int:
        """Returns how long a session stays open after each row, in microseconds."""

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the columns of a batch to keep until its window fires."""

    def too_late(self, batch: pa.RecordBatch) -> None:
        """Handles rows that arrived after all their windows were over."""

    def combined(self, table: pa.Table, windows: Ints, *, of_one_key: bool = False) -> Combined:
        """Orders the rows by window, and merges them if `combines`. `windows` are the window
        numbers of the rows. `of_one_key`: all rows of a window have the same key.
        """

    def emit(self, table: pa.Table, starts: Ints, ends: Ints, kind: str = INSERT) -> None:
        """Emits the results of combined rows. `starts` and `ends` are those of each row's window.

        Contents that retract results mark them with `kind`: DELETE for emitted results that are no
        longer valid.
        """


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
