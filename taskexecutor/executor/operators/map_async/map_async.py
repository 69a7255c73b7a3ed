"""`map_async`: rows wait for the results of coroutines and are part of checkpoints in the meantime.

The operator accepts a whole batch, so that a checkpoint need not wait for its calls, and no further
input while `capacity` rows wait for their calls to start. A snapshot contains the rows whose
results are not emitted; they are called again after a restore. It contains no watermarks, since
later watermarks subsume them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.common.time_zones import in_zone
from firesteel.elements import MAX_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from firesteel.operators import MapAsyncSpec
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.jvm.session import session_zone
from taskexecutor.executor.operators.map.rows import kind_of, results_of, shown
from taskexecutor.executor.operators.map_async.calls import CallFailed, Calls
from taskexecutor.executor.operators.map_async.queues import Call, Marker
from taskexecutor.executor.operators.python_rows.rows import rows_of

# Rows of a batch in one item of the list state, which is distributed over subtasks item by item.
ITEM_ROWS = 64
_WAIT_S = 1.0  # a mail ends the wait earlier


class _Pending:
    """A batch, and which results of its rows have been emitted."""

    __slots__ = ("batch", "emitted", "left")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.emitted = bytearray(batch.num_rows)
        self.left = batch.num_rows

    def waiting(self) -> pa.RecordBatch:
        if self.left == self.batch.num_rows:
            return self.batch
        mask = np.frombuffer(bytes(self.emitted), np.bool_)
        return self.batch.filter(pa.array(~mask))


class MapAsync(StreamOperator):
    computes = choose.PYTHON

    def __init__(self, spec: MapAsyncSpec) -> None:
        self._spec = spec
        self._calls: Calls | None = None
        self._batches: deque[_Pending] = deque()  # with rows whose results are not emitted
        self._pending = 0  # these rows, and markers between them
        self._accepted = 0  # rows
        self._emitting = False
        self._stopped = False

    # -- life cycle

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._name = context.operator_name
        self._zone = session_zone(context)
        self._results = results_of(self._spec.schema, context, output)

    def initialize_state(self, state: OperatorState) -> None:
        self._saved: list[Any] = state.list_state("rows")

    def open(self) -> None:
        context = self.context
        calls = Calls(
            self._spec,
            name=f"calls {self._name} ({context.task.subtask + 1})",
            notify=lambda: context.request_mail(self._emit_released),
            cancelled=lambda: context.cancelled,
            timeouts=context.counter("numAsyncTimeouts"),
            retries=context.counter("numAsyncRetries"),
        )
        self._calls = calls
        try:
            calls.open(context)
        except Exception as error:
            raise FiresteelError(
                f"{self._name}: the function's open() failed: {summary_of(error)}"
            ) from error
        for item in self._saved:
            for batch in pa.ipc.open_stream(item):
                self._accept(batch)

    def stop(self) -> None:
        self._stopped = True
        if self._calls is not None:
            self._calls.stop()

    def close(self) -> None:
        calls, self._calls = self._calls, None
        if calls is None:
            return
        try:
            calls.close()
        except Exception as error:
            raise FiresteelError(
                f"{self._name}: the function's close() failed: {summary_of(error)}"
            ) from error

    # -- input

    @property
    def full(self) -> bool:
        calls = self._calls
        return calls is not None and self._accepted - calls.started >= self._spec.capacity

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        with self.context.time("python"):
            self._accept(batch)

    def process_watermark(self, watermark: Watermark) -> None:
        self._mark(watermark)
        if watermark.timestamp_us >= MAX_TIMESTAMP_US:
            self._await_results()  # timers that it fires must see them

    def process_status(self, status: StreamStatus) -> None:
        self._mark(status)

    def end_input(self, input_index: int) -> None:
        self._await_results()

    def _accept(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        assert self._calls is not None
        self._results.expect(batch.num_rows, batch.nbytes)
        pending = _Pending(batch)
        self._batches.append(pending)
        self._pending += batch.num_rows
        self._accepted += batch.num_rows
        self._calls.feed(pending, rows_of(in_zone(batch, self._zone)))

    def _mark(self, element: Watermark | StreamStatus) -> None:
        if not self._pending:
            self._emit_element(element)
            return
        assert self._calls is not None
        self._pending += 1
        self._calls.mark(Marker(element))

    def _await_results(self) -> None:
        while self._pending:
            self._emit_released()
            if self._pending:
                self.context.yield_to_mail(_WAIT_S)

    # -- output

    def flush(self) -> None:
        self._emit_released()

    def _emit_released(self) -> None:
        """Emits released results. Runs as a mail, which a downstream operator may also run while it
        processes the emitted rows.
        """
        calls = self._calls
        if calls is None or self._emitting or self._stopped:
            return
        self._emitting = True
        try:
            calls.taking()
            while calls.released:
                with self.context.time("python"):
                    rows = self._released_rows(calls)
                    while self._results.fill(rows):
                        self._results.flush()
                    self._results.flush()
                first = calls.released[0] if calls.released else None
                if isinstance(first, Marker):
                    calls.released.popleft()
                    self._pending -= 1
                    self._emit_element(first.element)
            calls.taken()
            failure = calls.failure
            if isinstance(failure, CallFailed):
                raise self._failed(failure) from failure.error
            if failure is not None:
                raise failure
        finally:
            self._emitting = False

    def _released_rows(self, calls: Calls) -> Iterator[Any]:
        """Yields the rows of released calls, up to the next marker."""
        released, batches = calls.released, self._batches
        while released and isinstance(call := released[0], Call):
            released.popleft()
            pending: _Pending = call.rows
            pending.emitted[call.index] = 1
            pending.left -= 1
            self._pending -= 1
            while batches and not batches[0].left:
                batches.popleft()
            result = call.result
            if isinstance(result, (tuple, dict)):
                yield result
            elif isinstance(result, (str, bytes)) or not hasattr(result, "__iter__"):
                raise FiresteelError(
                    f"{self._name}: the function returned {kind_of(result)} for {shown(call.row)};"
                    " it must return a Row, a tuple, a dictionary or a list of them"
                    + (" (an empty list drops the row)" if result is None else "")
                )
            else:
                yield from result

    def _emit_element(self, element: Watermark | StreamStatus) -> None:
        if isinstance(element, Watermark):
            self.output.emit_watermark(element)
        else:
            self.output.emit_status(element)

    def _failed(self, failure: CallFailed) -> FiresteelError:
        row = shown(failure.row)
        if failure.timed_out:
            return FiresteelError(
                f"{self._name}: the call for {row} took longer than its timeout of"
                f" {self._spec.timeout_s:g} s"
            )
        return FiresteelError(
            f"{self._name}: the function failed for {row}: {summary_of(failure.error)}"
        )

    # -- checkpoints

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._saved[:] = [
            _encoded(rows.slice(start, ITEM_ROWS))
            for pending in self._batches
            if pending.left
            for rows in (pending.waiting(),)
            for start in range(0, rows.num_rows, ITEM_ROWS)
        ]


def _encoded(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
