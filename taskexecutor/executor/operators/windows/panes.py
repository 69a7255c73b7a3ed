"""Tumbling and sliding windows: assigns rows to windows, fires windows, and detects late rows.

Time is divided into adjacent panes, so that every window consists of whole panes (one, for tumbling
windows). Rows are stored once, in their pane, regardless of the number of overlapping windows; a
window that fires combines its panes. All windows that one watermark passes fire together, in the
order of time. A batch costs a few calls in Python, regardless of its number of rows. If state may
exceed memory, windows fire some at a time, and rows are combined in parts, each with all rows of
some of the keys.

The operator holds the panes itself, because the keyed state backend would hold single rows. Panes
and event time are its complete state: the open and the fired windows are derived from them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.elements import MIN_TIMESTAMP_US, Watermark
from firesteel.operator import (
    ColumnMemory,
    OperatorState,
    Output,
    RuntimeContext,
    StreamOperator,
)
from firesteel.operators import SlidingSpec, TumblingSpec
from firesteel.row_kind import DELETE, INSERT
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.columns import as_array, as_table
from taskexecutor.executor.columnar.grouping.division import divided, parts_of
from taskexecutor.executor.columnar.grouping.grouping import Ints, members
from taskexecutor.executor.columnar.grouping.ranked_rows import ranges
from taskexecutor.executor.columnar.grouping.row_log import RowLog
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.windows.contents import Contents
from taskexecutor.executor.timing.clock import wall_clock_us

# Rows of a pane that wait to be combined, in addition to the number of combined rows.
COMPACT_ROWS = 65_536
# Approximate number of rows combined before a snapshot: some tens of milliseconds.
SNAPSHOT_ROWS = 524_288
# Minimum number of pieces of a pane: concatenating batches costs as much as combining their rows.
_PIECES = 64
_PANE_START = "_pane_start"
# Minimum number of panes that fire together, counted once per window, and maximum average number of
# their rows, for which the rows of several windows are expanded together.
MANY_PANES, FEW_ROWS = 4_096, 256
_EXPANDED_ROWS = 2_097_152


@dataclass(slots=True)
class _Pane:
    log: RowLog
    rows: int = 0  # in the log
    combined_rows: int = 0  # of these, combined rows, one per key

    def add(self, part: pa.RecordBatch, size_bytes: int | None = None) -> None:
        self.log.add(part, size_bytes)
        self.rows += part.num_rows


class PaneWindows(StreamOperator):
    computes = choose.GROUPING
    keeps_event_time = True

    def __init__(
        self,
        window: TumblingSpec | SlidingSpec,
        contents: Contents,
        *,
        allowed_lateness_us: int = 0,
        clock_us: Callable[[], int] = wall_clock_us,
        passed_us: Callable[[], int] | None = None,
    ) -> None:
        """`passed_us` returns the last microsecond of event time that has passed, if that is not up
        to the watermark.
        """
        self._window = window
        self._contents = contents
        self._lateness_us = allowed_lateness_us
        self._clock_us = clock_us
        self._passed_us = passed_us
        self._panes: dict[int, _Pane] = {}  # by start
        self._fired: dict[int, bool] = {}  # of open windows, by end
        self._firing: list[int] = []  # heap: ends of windows that have not fired
        # Heap: the end of a pane's last window, and the pane's start.
        self._leaving: list[tuple[int, int]] = []
        self._closing: list[int] = []  # heap: ends of open windows
        # Late rows within the allowed lateness, by the end of a window that has fired.
        self._updated: dict[int, list[pa.RecordBatch]] = {}
        # The previous rows of these windows, if their earlier results are to be retracted.
        self._before: dict[int, pa.Table] = {}

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._contents.setup(context, output)

    def initialize_state(self, state: OperatorState) -> None:
        meaning = {"window": repr(self._window), **self._contents.meaning()}
        self.use(state.columns)
        self._state = state.keyed_rows(
            "panes", self._contents.key_columns, meaning, self._contents.columns()
        )

    def use(self, memory: ColumnMemory) -> None:
        """Sets the memory of the rows."""
        self.memory = memory

    def restored(self) -> pa.Table | None:
        """Returns the rows of the snapshot, for `load`."""
        return self._state.restored()

    def open(self) -> None:
        rows = self.restored()
        if rows is not None:
            self.load(rows)

    def load(self, rows: pa.Table) -> None:
        """Adds rows whose last column is the start of their pane."""
        last = rows.num_columns - 1
        for batch in rows.to_batches():
            starts_us = as_numpy(batch.column(last))
            for start_us, part in _by_pane(batch.remove_column(last), starts_us):
                self._restore(start_us, part)

    def _restore(self, start_us: int, part: pa.RecordBatch) -> None:
        pane = self._panes.get(start_us)
        if pane is None:
            pane = self._panes[start_us] = _Pane(self._new_log())
            heapq.heappush(self._leaving, (int(last_end_us(self._window, start_us)), start_us))
            # In processing time, a window that is over has not fired yet; otherwise its pane would
            # be removed.
            now_us = MIN_TIMESTAMP_US if self._window.processing_time else self._now_us
            for end_us in self._ends(start_us):
                if end_us - 1 + self._lateness_us > now_us and end_us not in self._fired:
                    self._open(end_us, now_us)
        pane.add(part)

    def _new_log(self) -> RowLog:
        return RowLog(COMPACT_ROWS if self.memory.piece_bytes is None else _PIECES, self.memory)

    def snapshot_state(self, checkpoint_id: int) -> None:
        self.keep(lambda rows: rows)

    def keep(self, stored: Callable[[pa.Table], pa.Table]) -> None:
        """Writes a snapshot: what `stored` makes of the current rows."""
        self._compact_some()
        panes = [(start_us, pane.log.pieces) for start_us, pane in self._panes.items()]

        def rows() -> pa.Table | None:
            table = self._with_starts(panes)
            return None if table is None else stored(table)

        self._state.keep(rows)

    def _with_starts(
        self, panes: Sequence[tuple[int, Sequence[pa.RecordBatch]]]
    ) -> pa.Table | None:
        """Returns the rows of all panes, with the start of each row's pane as the last column."""
        batches = [
            part.append_column(
                _PANE_START, pa.array(self.memory.full(part.num_rows, start_us, np.int64))
            )
            for start_us, parts in panes
            for part in parts
        ]
        return as_table(batches) if batches else None

    @property
    def _now_us(self) -> int:
        """Returns the last microsecond that has passed."""
        if self._window.processing_time:
            return self._clock_us() - 1
        if self._passed_us is not None:
            return self._passed_us()
        return self.context.timers.current_watermark_us

    # -- arrival

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        if self._window.processing_time:
            now_us = _floor(self._clock_us(), self._window.offset_us, self._window.pane_us)
            self._add(now_us, self._contents.kept(batch), None)
            return
        starts_us = _floor(
            self._contents.bounds(batch)[0], self._window.offset_us, self._window.pane_us
        )
        if self._window.slide_us > self._window.size_us:  # some rows are between windows
            inside = last_end_us(self._window, starts_us) > starts_us
            batch, starts_us = batch.filter(pa.array(inside)), starts_us[inside]
        now_us = self._now_us
        if now_us > MIN_TIMESTAMP_US:
            late = last_end_us(self._window, starts_us) - 1 + self._lateness_us <= now_us
            if late.any():
                self._contents.too_late(batch.filter(pa.array(late)))
                batch, starts_us = batch.filter(pa.array(~late)), starts_us[~late]
        if not batch.num_rows:
            return
        kept = self._contents.kept(batch)
        row_bytes = 0 if self.memory.piece_bytes is None else kept.nbytes / kept.num_rows
        for start_us, part in _by_pane(kept, starts_us):
            self._add(start_us, part, int(row_bytes * part.num_rows))
        if self._updated:
            self._emit_updates()

    def _add(self, start_us: int, part: pa.RecordBatch, size_bytes: int | None) -> None:
        pane = self._panes.get(start_us)
        if pane is None:
            if int(last_end_us(self._window, start_us)) <= start_us:
                return  # between windows that do not touch
            pane = self._panes[start_us] = _Pane(self._new_log())
            heapq.heappush(self._leaving, (int(last_end_us(self._window, start_us)), start_us))
        now_us = self._now_us
        for end_us in self._ends(start_us):
            if end_us - 1 + self._lateness_us <= now_us and not self._window.processing_time:
                continue  # too late for this window, but not for a later one
            if end_us not in self._fired:
                self._open(end_us, now_us)
            elif self._retracts_first(end_us):
                self._before[end_us], _ = self._combined([end_us])
            if self._fired[end_us]:
                self._updated.setdefault(end_us, []).append(part)
        pane.add(part, size_bytes)
        if pane.rows - pane.combined_rows > COMPACT_ROWS + pane.combined_rows:
            self._compact(pane)

    def _retracts_first(self, end_us: int) -> bool:
        """Returns whether this is the batch's first late row that changes emitted results of the
        window.
        """
        return self._contents.retracts and self._fired[end_us] and end_us not in self._updated

    def _open(self, end_us: int, now_us: int) -> None:
        heapq.heappush(self._closing, end_us)
        # A window that is already over receives allowed late rows: its results are emitted
        # immediately.
        self._fired[end_us] = end_us - 1 <= now_us
        if not self._fired[end_us]:
            heapq.heappush(self._firing, end_us)
            if self._window.processing_time:
                self.context.timers.register_processing_time(-(-end_us // 1_000))

    # -- time

    def process_watermark(self, watermark: Watermark) -> None:
        if not self._window.processing_time:
            self.advance(watermark.timestamp_us)
        self.output.emit_watermark(watermark)

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        self.advance(timestamp_ms * 1_000 - 1)

    def finish(self) -> None:
        """Fires the remaining windows when the input ends."""
        if self._firing:
            self.advance(max(self._closing))

    def close(self) -> None:
        self._panes.clear()
        self._contents.close()

    def advance(self, now_us: int) -> None:
        """Fires the windows of which this is the last microsecond, or an earlier one."""
        due = []
        while self._firing and self._firing[0] - 1 <= now_us:
            due.append(heapq.heappop(self._firing))
        if due:
            for end_us in due:
                self._fired[end_us] = True
            self._emit(due)
        while self._closing and self._closing[0] - 1 + self._lateness_us <= now_us:
            del self._fired[heapq.heappop(self._closing)]
        while self._leaving and self._leaving[0][0] - 1 + self._lateness_us <= now_us:
            del self._panes[heapq.heappop(self._leaving)[1]]

    # -- firing

    def _emit(self, ends_us: Sequence[int]) -> None:
        for some_us in self._together(ends_us):
            for rows, windows in self._combined_windows(some_us):
                ends = np.array(some_us)[windows]
                self._contents.emit(rows, ends - self._window.size_us, ends)

    def _combined_windows(self, ends_us: Sequence[int]) -> Iterator[tuple[pa.Table, Ints]]:
        """Yields the combined rows of windows, and the window index of each row."""
        of_window = self._window.size_us // self._window.pane_us
        expands = self._contents.combines and self.memory.piece_bytes is None
        rows_of_pane = math.inf
        if expands and of_window * len(ends_us) >= MANY_PANES:
            rows_of_pane = max(
                1, sum(pane.rows for pane in self._panes.values()) / len(self._panes)
            )
        if rows_of_pane > FEW_ROWS:
            yield from self._combined_in_parts(self._panes_of(ends_us))
            return
        most = max(1, int(_EXPANDED_ROWS / (of_window * rows_of_pane)))
        for first in range(0, len(ends_us), most):
            rows, windows = self._expanded(np.array(ends_us[first : first + most]))
            if rows.num_rows:
                combined = self._contents.combined(rows, windows)
                yield combined.rows, combined.windows + first

    def _expanded(self, ends_us: Ints) -> tuple[pa.Table, Ints]:
        """Returns the rows of consecutive windows, once for each window, in the order of windows.
        Many panes with few rows cost as much as their rows.
        """
        first_us, last_us = int(ends_us[0]) - self._window.size_us, int(ends_us[-1])
        panes = [each for each in self._panes.items() if first_us <= each[0] < last_us]
        for _, pane in panes:
            if len(pane.log.pieces) > 1:
                self._compact(pane)
        batches = [(start_us, batch) for start_us, pane in panes for batch in pane.log.pieces]
        starts = np.repeat(
            np.array([start_us for start_us, _ in batches], np.int64),
            np.array([batch.num_rows for _, batch in batches], np.int64),
        )
        low = np.searchsorted(ends_us, starts, "right")
        counts = np.searchsorted(ends_us, starts + self._window.size_us, "right") - low
        places = np.repeat(np.arange(len(starts)), counts)
        windows = ranges(low, counts)
        order = np.argsort(windows, kind="stable")
        table = as_table([batch for _, batch in batches]) if batches else pa.table({})
        return table.take(pa.array(places[order])) if batches else table, windows[order]

    def _together(self, ends_us: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yields the windows that are combined together, in the order of time."""
        if self._contents.one_window_at_a_time:
            yield from ([end_us] for end_us in ends_us)
            return
        most = self.memory.piece_bytes
        if most is None:
            yield ends_us
            return
        some_us, size_bytes = list[int](), 0
        for end_us in ends_us:
            of_window = _size_bytes(self._panes_of([end_us]))
            if some_us and size_bytes + of_window > most:
                yield some_us
                some_us, size_bytes = [], 0
            some_us.append(end_us)
            size_bytes += of_window
        yield some_us

    def _emit_updates(self) -> None:
        """Emits the complete results of the late rows' keys again."""
        updated, self._updated = self._updated, {}
        before, self._before = self._before, {}
        for end_us in sorted(updated):
            touched = as_table(updated[end_us])
            if end_us in before:
                self._emit_of(touched, before[end_us], end_us, DELETE)
            self._emit_of(touched, self._combined([end_us])[0], end_us, INSERT)

    def _emit_of(self, touched: pa.Table, rows: pa.Table, end_us: int, kind: str) -> None:
        """Emits the results of a window's rows whose keys are in `touched`."""
        keys = [column_index(rows.schema, key) for key in self._contents.key_columns]
        if keys:
            mine = members(
                [as_array(rows.column(key)) for key in keys],
                [as_array(touched.column(key)) for key in keys],
            )
            rows = rows.filter(pa.array(mine))
        ends = np.full(rows.num_rows, end_us)
        self._contents.emit(rows, ends - self._window.size_us, ends, kind)

    def _combined(self, ends_us: Sequence[int]) -> tuple[pa.Table, Ints]:
        """Returns the rows of these windows, and the window index of each row."""
        return self._combined_at_once(_slices(self._panes_of(ends_us)))

    def _panes_of(self, ends_us: Sequence[int]) -> list[tuple[int, _Pane]]:
        """Returns the panes of these windows, each with the window's index."""
        panes: list[tuple[int, _Pane]] = []
        # By overlapping windows, or by late rows, for whose keys a window fires again.
        combined_again = self._window.pane_us < self._window.size_us or self._lateness_us > 0
        for number, end_us in enumerate(ends_us):
            for start_us in range(end_us - self._window.size_us, end_us, self._window.pane_us):
                pane = self._panes.get(start_us)
                if pane is None:
                    continue
                if combined_again and pane.rows > pane.combined_rows:
                    self._compact(pane)  # once, instead of each time
                panes.append((number, pane))
        return panes

    def _parts(self, panes: Sequence[tuple[int, _Pane]]) -> int:
        """Returns the number of parts in which to combine the rows."""
        whole = self._contents.with_all_keys or not self._contents.key_columns
        if whole or self.memory.piece_bytes is None:
            return 1
        return parts_of(_size_bytes(panes), self.memory)

    def _combined_in_parts(
        self, panes: Sequence[tuple[int, _Pane]]
    ) -> Iterator[tuple[pa.Table, Ints]]:
        """Yields the combined rows of panes, and for each row the number given with its pane. All
        rows of a key are in the same part.
        """
        parts, slices = self._parts(panes), _slices(panes)
        if parts == 1:
            yield self._combined_at_once(slices)
            return
        keys, memory = self._contents.key_columns, self.memory
        by_batch = {id(batch): divided(batch, keys, parts, memory) for _, batch in slices}
        for part in range(parts):
            mine = [(number, by_batch[id(batch)].of(part)) for number, batch in slices]
            if any(rows.num_rows for _, rows in mine):
                yield self._combined_at_once(mine)

    def _combined_at_once(
        self, slices: Sequence[tuple[int, pa.RecordBatch]]
    ) -> tuple[pa.Table, Ints]:
        windows = [np.full(batch.num_rows, number) for number, batch in slices]
        rows = as_table([batch for _, batch in slices])
        return self._contents.combined(rows, np.concatenate(windows))

    def _compact(self, pane: _Pane) -> None:
        if not self._contents.combines:
            return
        combined = _Pane(self._new_log())
        for rows, _ in self._combined_in_parts([(0, pane)]):
            for batch in rows.combine_chunks().to_batches():
                combined.add(batch)
        pane.log, pane.rows, pane.combined_rows = combined.log, combined.rows, combined.rows

    def _compact_some(self) -> None:
        """Reduces the size of a snapshot, by work that would be due soon."""
        rows = 0
        for pane in self._panes.values():
            if pane.rows > 2 * pane.combined_rows and rows < SNAPSHOT_ROWS:
                rows += pane.rows
                self._compact(pane)

    # -- assignment to windows

    def _ends(self, start_us: int) -> Iterator[int]:
        """Yields the ends of all windows that contain a pane."""
        end_us = int(last_end_us(self._window, start_us))
        while end_us > start_us:
            yield end_us
            end_us -= self._window.slide_us


def last_end_us(window: TumblingSpec | SlidingSpec, start_us: Any) -> Any:
    """Returns the end of the last window of a pane, or of each of many panes. If it is not after
    the pane's start, the pane belongs to no window.
    """
    return start_us - (start_us - window.offset_us) % window.slide_us + window.size_us


def _slices(panes: Sequence[tuple[int, _Pane]]) -> list[tuple[int, pa.RecordBatch]]:
    return [(number, batch) for number, pane in panes for batch in pane.log.pieces]


def _size_bytes(panes: Sequence[tuple[int, _Pane]]) -> int:
    return sum(pane.log.size_bytes for _, pane in panes)


def _floor(time_us: Any, offset_us: int, step_us: int) -> Any:
    return time_us - (time_us - offset_us) % step_us


def _by_pane(batch: pa.RecordBatch, starts_us: Ints) -> list[tuple[int, pa.RecordBatch]]:
    """Splits the batch by pane, in the order of time."""
    if (starts_us == starts_us[0]).all():
        return [(int(starts_us[0]), batch)]
    if not (starts_us[1:] >= starts_us[:-1]).all():
        order = np.argsort(starts_us, kind="stable")
        batch, starts_us = batch.take(pa.array(order)), starts_us[order]
    heads = np.flatnonzero(np.concatenate(([True], starts_us[1:] != starts_us[:-1])))
    tails = np.append(heads[1:], len(starts_us))
    return [
        (int(starts_us[a]), batch.slice(a, b - a))
        for a, b in zip(heads.tolist(), tails.tolist(), strict=True)
    ]
