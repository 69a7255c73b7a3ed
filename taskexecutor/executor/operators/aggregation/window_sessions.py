"""Session windows: a key's rows that are at most a gap apart.

What arrives are sessions of single bundles (or single rows); sessions that meet are joined, a
column of them at a time. They are kept as one table, and settled when something may fire or may
have come too late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.elements import MAX_TIMESTAMP_US, Watermark
from firesteel.operator import Output, RuntimeContext, StreamOperator
from firesteel.plan.specs import SessionSpec
from taskexecutor.executor.operators.aggregation.grouping import group, sessions
from taskexecutor.executor.operators.aggregation.partials import single
from taskexecutor.executor.operators.aggregation.window_contents import Contents, all_of
from taskexecutor.executor.operators.aggregation.window_panes import clock_us

SETTLE_ROWS = 262_144  # rows that wait unsettled, beyond as many as there are settled ones

_START, _END, _FRESH = "_session_start", "_session_end", "_fresh"


class SessionWindows(StreamOperator):
    """A session fires when its end has passed, and again when allowed late rows have joined it.

    A row is too late if its session, joined with those that are still open, was over when it came.
    """

    def __init__(
        self,
        window: SessionSpec,
        contents: Contents,
        *,
        allowed_lateness_us: int = 0,
        clock_us: Callable[[], int] = clock_us,
    ) -> None:
        self._window = window
        self._contents = contents
        self._lateness_us = allowed_lateness_us
        self._clock_us = clock_us
        # With the columns _session_start, _session_end and _fresh, which says that a row is in no
        # result yet.
        self._waiting: list[pa.RecordBatch] = []
        self._settled: pa.Table | None = None
        self._waiting_rows = 0
        self._next_end_us = (
            MAX_TIMESTAMP_US  # no session that has not fired, or has to be dropped, ends before
        )

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._contents.setup(context, output)

    # -- arrival

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        if self._window.processing_time:
            now_us = self._clock_us()
            starts, ends = (
                np.full(batch.num_rows, now_us),
                np.full(batch.num_rows, now_us + self._window.gap_us),
            )
            self.context.timers.register_processing_time(-(-int(ends[0]) // 1_000))
            over_us = now_us - 1
        else:
            starts, ends = self._contents.bounds(batch)
            over_us = self.context.timers.current_watermark_us
        self._wait(batch, starts, ends)
        first_end_us = int(ends.min())
        if first_end_us - 1 <= over_us:  # late at least by itself
            self._settle(over_us, arriving=True)
            return
        self._next_end_us = min(self._next_end_us, first_end_us)
        settled_rows = 0 if self._settled is None else self._settled.num_rows
        if self._waiting_rows > SETTLE_ROWS + settled_rows:
            self._settle(over_us, arriving=True)

    def _wait(self, batch: pa.RecordBatch, starts: Any, ends: Any) -> None:
        batch = self._contents.kept(batch)
        for name, column in (
            (_START, pa.array(starts)),
            (_END, pa.array(ends)),
            (_FRESH, pa.array(np.ones(len(starts), np.bool_))),
        ):
            batch = batch.append_column(name, column)
        self._waiting.append(batch)
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
        """What is left when the input ends fires."""
        self._settle(MAX_TIMESTAMP_US, arriving=False)

    def close(self) -> None:
        self._waiting, self._settled = [], None

    # -- sessions

    def _settle(self, over_us: int, *, arriving: bool) -> None:
        """Joins sessions that meet, fires those that are over and fresh, drops those that are over
        for good.
        """
        parts = [] if self._settled is None else [self._settled]
        if self._waiting:
            parts.append(all_of(self._waiting))
        self._waiting, self._waiting_rows = [], 0
        if not parts:
            return
        table = pa.concat_tables(parts).combine_chunks()
        codes = group([single(table.column(key)) for key in self._contents.key_columns]).codes
        numbers, starts, ends = sessions(codes, _numbers(table, _START), _numbers(table, _END))
        for_good_us = ends - 1 + self._lateness_us
        fresh = np.zeros(len(starts), np.bool_)
        fresh[numbers[_flags(table, _FRESH)]] = True
        if arriving:
            late = (
                for_good_us <= over_us
            )  # whatever is settled is still open, so these have only just come
            if late.any():
                rows = late[numbers]
                self._too_late(table.filter(pa.array(rows)))
                table, numbers = table.filter(pa.array(~rows)), numbers[~rows]
                fresh &= ~late
        rows_only = table.drop_columns([_START, _END, _FRESH])
        combined, numbers = self._contents.combined(rows_only, numbers)
        due = (ends - 1 <= over_us) & fresh
        if due.any():
            fired = due[numbers]
            of_row = numbers[fired]
            self._contents.emit(combined.filter(pa.array(fired)), starts[of_row], ends[of_row])
        fresh &= ~due
        kept = (for_good_us > over_us)[numbers]
        of_row = numbers[kept]
        self._settled = combined.filter(pa.array(kept))
        for name, values in ((_START, starts), (_END, ends), (_FRESH, fresh)):
            self._settled = self._settled.append_column(name, pa.array(values[of_row]))
        still = np.unique(of_row)
        # A fired session waits to be dropped, any other one to fire.
        self._next_end_us = min(
            int(np.where(fresh[still], ends[still], ends[still] + self._lateness_us).min())
            if len(still)
            else MAX_TIMESTAMP_US,
            MAX_TIMESTAMP_US,
        )

    def _too_late(self, rows: pa.Table) -> None:
        for batch in rows.drop_columns([_START, _END, _FRESH]).combine_chunks().to_batches():
            self._contents.too_late(batch)


def _numbers(table: pa.Table, name: str) -> Any:
    return single(table.column(name)).to_numpy()


def _flags(table: pa.Table, name: str) -> Any:
    return single(table.column(name)).to_numpy(zero_copy_only=False)
