"""Session windows: rows of a key whose distance is at most a gap.

Sessions of single bundles (or single rows) arrive; those that touch are merged, column-wise. They
wait in one table, which is settled when a session may fire or a row may be too late. If state may
exceed memory, the table is settled in parts, each with all rows of some of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.elements import MAX_TIMESTAMP_US, Watermark
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from firesteel.operators import DynamicSessionSpec, SessionSpec
from firesteel.row_kind import DELETE
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.columns import as_array, as_table
from taskexecutor.executor.columnar.grouping.division import divided, parts_of
from taskexecutor.executor.columnar.grouping.grouping import (
    Ints,
    Sessions,
    group,
    one_group,
    sessions,
)
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.windows.contents import Contents
from taskexecutor.executor.timing.clock import wall_clock_us

SETTLE_ROWS = 262_144  # rows that wait to be settled, in addition to the number of settled rows

_START, _END, _FRESH = "_session_start", "_session_end", "_fresh"


class SessionWindows(StreamOperator):
    """A session fires when its end has passed, and again when allowed late rows have joined it: the
    earlier results of the merged sessions are retracted then.

    A row is too late if its session, merged with the open sessions, was over when the row arrived.
    """

    computes = choose.GROUPING
    keeps_event_time = True

    def __init__(
        self,
        window: SessionSpec,
        contents: Contents,
        *,
        allowed_lateness_us: int = 0,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        self._window = window
        self._contents = contents
        self._lateness_us = allowed_lateness_us
        self._clock_us = clock_us
        # With the columns _session_start, _session_end and _fresh: the row is not part of a result
        # yet.
        self._waiting: list[pa.RecordBatch] = []
        self._settled: pa.Table | None = None
        self._waiting_rows = 0
        # Emitted results of open sessions, with _session_start and _session_end, to be retracted
        # when the sessions fire again.
        self._emitted: pa.Table | None = None
        # No session fires or is dropped before this time.
        self._next_end_us = MAX_TIMESTAMP_US

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._contents.setup(context, output)

    def initialize_state(self, state: OperatorState) -> None:
        keys = self._contents.key_columns
        meaning = {"window": repr(self._window), **self._contents.meaning()}
        columns = self._contents.columns()
        self._memory = state.columns
        self._rows = state.keyed_rows("sessions", keys, meaning, columns)
        self._results = state.keyed_rows("results", keys, meaning, columns)

    def open(self) -> None:
        """Restores the sessions. All were open at the snapshot, so they are settled, merged or
        not.
        """
        self._settled, self._emitted = self._rows.restored(), self._results.restored()
        if self._settled is None:
            return
        ends = _numbers(self._settled, _END)
        over = np.where(_flags(self._settled, _FRESH), ends, ends + self._lateness_us)
        self._next_end_us = min(int(over.min()), MAX_TIMESTAMP_US)
        if self._window.processing_time:
            for end_us in np.unique(ends).tolist():
                self.context.timers.register_processing_time(-(-end_us // 1_000))

    def snapshot_state(self, checkpoint_id: int) -> None:
        waiting, settled, emitted = tuple(self._waiting), self._settled, self._emitted
        self._rows.keep(lambda: _together(settled, waiting))
        self._results.keep(lambda: emitted)

    # -- arrival

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        if self._window.processing_time:
            now_us = self._clock_us()
            starts: Ints = np.full(batch.num_rows, now_us)
            dynamic = isinstance(self._window, DynamicSessionSpec)
            gaps = self._contents.gaps(batch) if dynamic else self._window.gap_us
            ends = starts + gaps
            for end_us in np.unique(ends).tolist():
                self.context.timers.register_processing_time(-(-end_us // 1_000))
            over_us = now_us - 1
        else:
            starts, ends = self._contents.bounds(batch)
            over_us = self.context.timers.current_watermark_us
        self._wait(batch, starts, ends)
        first_end_us = int(ends.min())
        if first_end_us - 1 <= over_us:  # too late, unless it joins an open session
            self._settle(over_us, arriving=True)
            return
        self._next_end_us = min(self._next_end_us, first_end_us)
        settled_rows = 0 if self._settled is None else self._settled.num_rows
        if self._waiting_rows > SETTLE_ROWS + settled_rows:
            self._settle(over_us, arriving=True)

    def _wait(self, batch: pa.RecordBatch, starts: Ints, ends: Ints) -> None:
        batch = self._contents.kept(batch)
        for name, column in (
            (_START, pa.array(starts)),
            (_END, pa.array(ends)),
            (_FRESH, pa.array(np.ones(len(starts), np.bool_))),
        ):
            batch = batch.append_column(name, column)
        self._waiting.append(self._memory.kept(batch))
        self._waiting_rows += batch.num_rows

    # -- time

    def process_watermark(self, watermark: Watermark) -> None:
        if not self._window.processing_time and self._next_end_us - 1 <= watermark.timestamp_us:
            self._settle(watermark.timestamp_us, arriving=False)
        self.output.emit_watermark(watermark)

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        over_us = timestamp_ms * 1_000 - 1
        if self._next_end_us - 1 <= over_us:
            self._settle(over_us, arriving=False)

    def finish(self) -> None:
        """Fires the remaining sessions when the input ends."""
        self._settle(MAX_TIMESTAMP_US, arriving=False)

    def close(self) -> None:
        self._waiting, self._settled, self._emitted = [], None, None
        self._contents.close()

    # -- sessions

    def _settle(self, over_us: int, *, arriving: bool) -> None:
        """Merges sessions that touch, fires those that are over and fresh, and drops those whose
        allowed lateness is over.
        """
        table = _together(self._settled, self._waiting)
        self._waiting, self._waiting_rows = [], 0
        if table is None:
            return
        found = [
            self._settle_some(rows, emitted, over_us, arriving=arriving)
            for rows, emitted in self._in_parts(table)
        ]
        self._settled = pa.concat_tables([each.rows for each in found])
        results = [each.emitted for each in found if each.emitted is not None]
        self._emitted = pa.concat_tables(results) if results else None
        self._next_end_us = min(each.next_end_us for each in found)

    def _in_parts(self, table: pa.Table) -> Iterator[tuple[pa.Table, pa.Table | None]]:
        """Yields the rows and the emitted results of some of the keys at a time."""
        keys, emitted, parts = self._contents.key_columns, self._emitted, 1
        if keys and not self._contents.with_all_keys:
            parts = parts_of(table.nbytes, self._memory)
        if parts == 1:
            yield table.combine_chunks(), emitted
            return
        rows, results = (
            [divided(batch, keys, parts, self._memory) for batch in each.to_batches()]
            if each is not None
            else []
            for each in (table, emitted)
        )
        for part in range(parts):
            yield (
                as_table([each.of(part) for each in rows]).combine_chunks(),
                as_table([each.of(part) for each in results]) if results else emitted,
            )

    def _settle_some(
        self, table: pa.Table, emitted: pa.Table | None, over_us: int, *, arriving: bool
    ) -> _Settled:
        rows = table.num_rows
        numbers, starts, ends = self._sessions(table, emitted)
        numbers, of_emitted = numbers[:rows], numbers[rows:]
        closed_us = ends - 1 + self._lateness_us
        fresh = np.zeros(len(starts), np.bool_)
        fresh[numbers[_flags(table, _FRESH)]] = True
        if arriving and not self._window.processing_time:
            # Settled sessions are still open, so these have only just arrived.
            late = closed_us <= over_us
            if late.any():
                of_late = late[numbers]
                self._too_late(table.filter(pa.array(of_late)))
                table, numbers = table.filter(pa.array(~of_late)), numbers[~of_late]
                fresh &= ~late
        rows_only = table.drop_columns([_START, _END, _FRESH])
        combined, numbers = self._contents.combined(rows_only, numbers, of_one_key=True)
        due = (ends - 1 <= over_us) & fresh
        is_open = closed_us > over_us
        if due.any():
            fired = due[numbers]
            of_row = numbers[fired]
            results = combined.filter(pa.array(fired))
            if emitted is not None:
                self._retract(emitted.filter(pa.array(due[of_emitted])))
            self._contents.emit(results, starts[of_row], ends[of_row])
        if self._contents.retracts:
            valid = []
            if emitted is not None:
                valid.append(emitted.filter(pa.array((is_open & ~due)[of_emitted])))
            if due.any():
                results = _with_bounds(results, starts[of_row], ends[of_row])
                valid.append(results.filter(pa.array(is_open[of_row])))
            if valid:
                emitted = self._kept(pa.concat_tables(valid))
        fresh &= ~due
        kept = is_open[numbers]
        of_row = numbers[kept]
        settled = _with_bounds(combined.filter(pa.array(kept)), starts[of_row], ends[of_row])
        settled = self._kept(settled.append_column(_FRESH, pa.array(fresh[of_row])))
        still = np.unique(of_row)
        # A session that has fired waits to be dropped, any other to fire.
        next_end_us = min(
            int(np.where(fresh[still], ends[still], ends[still] + self._lateness_us).min())
            if len(still)
            else MAX_TIMESTAMP_US,
            MAX_TIMESTAMP_US,
        )
        return _Settled(settled, emitted, next_end_us)

    def _kept(self, table: pa.Table) -> pa.Table:
        """Returns the rows, in files if memory is short."""
        if self._memory.piece_bytes is None:
            return table
        batches = map(self._memory.kept, table.combine_chunks().to_batches())
        return pa.Table.from_batches(batches, table.schema)

    def _sessions(self, table: pa.Table, emitted: pa.Table | None) -> Sessions:
        """Returns the sessions of the rows in `table`, followed by those in `emitted`, which are
        within their sessions and therefore merge none.
        """
        tables = [table] if emitted is None else [table, emitted]
        keys = [
            pa.concat_arrays(
                [as_array(one.column(column_index(one.schema, key))) for one in tables]
            )
            for key in self._contents.key_columns
        ]
        starts, ends = (
            np.concatenate([_numbers(one, name) for one in tables]) for name in (_START, _END)
        )
        groups = group(keys) if keys else one_group(len(starts))
        return sessions(groups.codes, starts, ends)

    def _retract(self, emitted: pa.Table) -> None:
        self._contents.emit(
            emitted.drop_columns([_START, _END]),
            _numbers(emitted, _START),
            _numbers(emitted, _END),
            DELETE,
        )

    def _too_late(self, rows: pa.Table) -> None:
        for batch in rows.drop_columns([_START, _END, _FRESH]).combine_chunks().to_batches():
            self._contents.too_late(batch)


class _Settled(NamedTuple):
    """Settled sessions of some keys."""

    rows: pa.Table
    emitted: pa.Table | None
    next_end_us: int


def _with_bounds(rows: pa.Table, starts: Ints, ends: Ints) -> pa.Table:
    """Returns the rows with the start and the end of their session."""
    return rows.append_column(_START, pa.array(starts)).append_column(_END, pa.array(ends))


def _together(settled: pa.Table | None, waiting: Sequence[pa.RecordBatch]) -> pa.Table | None:
    parts = [] if settled is None else [settled]
    if waiting:
        parts.append(as_table(waiting))
    return pa.concat_tables(parts) if parts else None


def _numbers(table: pa.Table, name: str) -> Ints:
    numbers: Ints = as_numpy(as_array(table.column(name)))
    return numbers


def _flags(table: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    flags: np.ndarray[Any, np.dtype[np.bool_]] = as_numpy(as_array(table.column(name)))
    return flags
