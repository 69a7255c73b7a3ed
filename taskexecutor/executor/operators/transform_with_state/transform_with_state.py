"""The operator that runs a StatefulProcessor: one call of `handleInputRows` per key and batch, one
output batch per input batch.

A processor lives as long as its task: `init` is called when the task opens, `close` when it closes.
Timers fire between batches: event-time timers when the watermark reaches them, before it is
forwarded; all remaining ones when event time ends with bounded input. Late rows are processed like
any others, unless the spec names the column of their times.

With an initial state there are two inputs, and the second is read to its end before the first
(`reads_first`). No checkpoint is taken until then. A task that is restored from a later checkpoint
reads the end of the second input immediately.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from firesteel.column_names import column_index
from firesteel.common.error_report import summary_of
from firesteel.common.time_zones import in_zone
from firesteel.elements import MIN_TIMESTAMP_US, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from firesteel.operators import TransformWithStateSpec
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.key_times import instants
from taskexecutor.executor.columnar.jvm.session import session_zone
from taskexecutor.executor.columnar.schemas import declared
from taskexecutor.executor.operators.python_rows.current_key import CurrentKey, ShownKeys
from taskexecutor.executor.operators.python_rows.frames import FrameCollector, to_frame
from taskexecutor.executor.operators.python_rows.row_collector import (
    RowCollector,
    RowRefused,
    shown_key,
)
from taskexecutor.executor.operators.python_rows.rows import row_maker, to_python
from taskexecutor.executor.operators.query_watermark import FIRST_WATERMARK_US
from taskexecutor.executor.operators.transform_with_state.expiring import Sweeps
from taskexecutor.executor.operators.transform_with_state.grouping import Key, KeyedBatch, by_key
from taskexecutor.executor.operators.transform_with_state.handle import ProcessorHandle
from taskexecutor.executor.operators.transform_with_state.processor_timers import (
    EVENT_TIME,
    NONE,
    ProcessorTimers,
)
from taskexecutor.executor.state import KeyedState
from taskexecutor.executor.timing.clock import wall_clock_ms

_ROWS, _INITIAL_STATE = 0, 1  # input indices


class TransformWithState(StreamOperator):
    """`now_ms` is the wall clock."""

    computes = choose.PYTHON
    keeps_event_time = True
    keeps_timers = True  # in keyed state

    def __init__(
        self,
        spec: TransformWithStateSpec,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._spec = spec
        self._now_ms = now_ms
        self._processor: StatefulProcessor = spec.processor
        self._open = False
        if spec.initial_key_columns is not None:
            self.inputs = 2
            self.reads_first = _INITIAL_STATE
        self._initial_state_read = spec.initial_key_columns is None

    # -- life cycle

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._name = context.operator_name
        schema = context.output_schema or declared(self._spec.output_schema, None)
        assert schema is not None, "transform_with_state has an output schema"
        self._time_zone = session_zone(context)
        self._late = context.counter("numLateRecordsDropped")
        self._shown = ShownKeys(
            context.input_schemas[0] if context.input_schemas else None,
            self._spec.key_columns,
            self._time_zone,
            pandas=self._spec.pandas,
        )
        self._collector: RowCollector | FrameCollector
        if self._spec.pandas:
            self._collector = FrameCollector(schema, output.emit, self._name, self._time_zone)
        else:
            self._collector = RowCollector(schema, output.emit, self._name)

    def initialize_state(self, state: OperatorState) -> None:
        keyed: KeyedState = state.keyed  # type: ignore[assignment]
        self._current = CurrentKey()
        self._timers = ProcessorTimers(
            self._spec.time_mode, self._current, keyed, self.context.timers
        )
        self._handle = ProcessorHandle(
            self._spec.time_mode,
            self._current,
            keyed,
            self._timers,
            restored=state.restored_states,  # type: ignore[attr-defined]
            now_ms=self._now_ms,
        )
        self._restored = state.restored

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._timers.before_snapshot()

    def open(self) -> None:
        initialise(self._processor, self._handle, self._name)
        self._open = True
        self._handle_rows = _handle_rows(self._processor)
        self._sweeps = Sweeps(self.context.timers, self._handle.expiring)
        if self._restored:
            self._timers.restore()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._current.key = None
            close(self._processor, self._name)

    # -- data

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if self._spec.late_column and input_index == _ROWS:
            batch = self._in_time(batch)
        if not batch.num_rows:
            return
        with self.context.time("python"):
            times = self._times()
            if input_index == _INITIAL_STATE:
                self._initial_state(by_key(batch, self._spec.initial_key_columns or ()), times)
                return
            if not self._initial_state_read:
                raise RuntimeError(f"{self._name}: rows came before the initial state had ended")
            self._collector.expect(batch.num_rows, batch.nbytes)
            keyed = by_key(batch, self._spec.key_columns)
            for key, rows in self._frames(keyed) if self._spec.pandas else self._rows(keyed):
                self._call("handleInputRows", self._handle_rows, key, rows, times)
            self._fire_overdue()
            self._current.key = None
            self._collector.flush()

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows that are not late."""
        watermark_us = max(self.context.timers.current_watermark_us, FIRST_WATERMARK_US)
        times = batch.column(column_index(batch.schema, self._spec.late_column))
        if pa.types.is_struct(times.type):  # a window
            times = pc.struct_field(times, "end")
        late = instants(times) <= watermark_us
        if not late.any():
            return batch
        self._late.inc(int(late.sum()))
        return batch.filter(pa.array(~late))

    def end_input(self, input_index: int) -> None:
        if input_index == _INITIAL_STATE:
            self._initial_state_read = True

    def flush(self) -> None:
        self._collector.flush()

    def _rows(self, keyed: KeyedBatch) -> Iterator[tuple[Key, Iterator[Any]]]:
        """Yields each key with an iterator that makes its Rows."""
        batch = in_zone(keyed.batch, self._time_zone)
        columns = [to_python(column) for column in batch.columns]
        make = row_maker(batch.schema.names)
        if len(keyed.keys) == 1:
            yield keyed.keys[0], map(make, zip(*columns, strict=True))
            return
        start = 0
        for key, end in zip(keyed.keys, keyed.ends, strict=True):
            yield key, map(make, zip(*[column[start:end] for column in columns], strict=True))
            start = end

    def _frames(self, keyed: KeyedBatch) -> Iterator[tuple[Key, Iterator[Any]]]:
        """Yields each key with an iterator over its DataFrame."""
        frame = to_frame(keyed.batch, self._time_zone)
        start = 0
        for key, end in zip(keyed.keys, keyed.ends, strict=True):
            yield key, iter((frame.iloc[start:end].reset_index(drop=True),))
            start = end

    def _initial_state(self, keyed: KeyedBatch, times: TimerValues) -> None:
        for key, states in self._frames(keyed) if self._spec.pandas else self._rows(keyed):
            self._current.key = key
            try:
                for state in states:
                    self._processor.handleInitialState(self._shown(key), state, times)
            except Exception as error:
                raise self._failure("handleInitialState", key, error) from error
        self._current.key = None

    # -- time

    def process_watermark(self, watermark: Watermark) -> None:
        with self.context.time("python"):
            self._fire_overdue()
        self._current.key = None
        self._collector.flush()
        self.output.emit_watermark(watermark)

    def on_event_time(self, timestamp_us: int, key: Any, namespace: Any) -> None:
        with self.context.time("python"):
            self._fire(key, timestamp_us // 1000, advancing=True)

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        with self.context.time("python"):
            self._current.now_ms = max(self._current.now_ms, timestamp_ms)
            if not self._sweeps.fired(namespace, max(self._current.now_ms, self._now_ms())):
                self._fire(key, timestamp_ms)
            self._current.key = None

    def _fire_overdue(self) -> None:
        while (timer := self._timers.next_overdue()) is not None:
            self._fire(*timer)

    def _fire(self, key: Key, expiry_ms: int, *, advancing: bool = False) -> None:
        if not self._timers.is_pending(key, expiry_ms):
            return
        times, info = self._times(), ExpiredTimerInfo(expiry_ms)

        def handle_expired_timer(key: Key) -> Iterator[Any]:
            return self._processor.handleExpiredTimer(
                key=key, timerValues=times, expiredTimerInfo=info
            )

        self._timers.begin_firing(expiry_ms, advancing=advancing)
        self._call("handleExpiredTimer", handle_expired_timer, key)
        self._timers.end_firing(key, expiry_ms)

    def _times(self) -> TimerValues:
        """Returns the timer values. As in PySpark, processing time is constant within a batch."""
        current = self._current
        current.now_ms = max(current.now_ms, self._now_ms())
        if self._spec.time_mode == NONE:
            return TimerValues(-1, -1)
        if self._spec.time_mode != EVENT_TIME:
            return TimerValues(current.now_ms, -1)
        watermark_us = self.context.timers.current_watermark_us
        return TimerValues(
            current.now_ms, 0 if watermark_us == MIN_TIMESTAMP_US else watermark_us // 1000
        )

    # -- calls of user code

    def _call(
        self, what: str, function: Callable[..., Iterator[Any]], key: Key, *arguments: Any
    ) -> None:
        """Calls a method and emits its results. Errors of the processor name the key; those of
        downstream operators are not changed.
        """
        collector = self._collector
        self._current.key = key
        shown = self._shown(key)
        collector.begin(what, shown)
        try:
            results = function(shown, *arguments)
            if not hasattr(results, "__iter__"):
                raise FiresteelError(
                    f"it returned {type(results).__name__}; it must return an iterator"
                )
            results = iter(results)
            full = collector.fill(results)
        except Exception as error:
            raise self._failure(what, key, error) from error
        while full:
            collector.flush()
            try:
                full = collector.fill(results)
            except Exception as error:
                raise self._failure(what, key, error) from error

    def _failure(self, what: str, key: Key, error: Exception) -> FiresteelError:
        if isinstance(error, RowRefused):
            return error
        return FiresteelError(
            f"{self._name}: {what} failed for key {shown_key(self._shown(key))}:"
            f" {summary_of(error)}"
        )


def initialise(processor: StatefulProcessor, handle: ProcessorHandle, name: str) -> None:
    """Calls `init`. Its error names the operator."""
    try:
        processor.init(handle)
    except Exception as error:
        raise FiresteelError(
            f"{name}: {type(processor).__name__}.init failed: {summary_of(error)}"
        ) from error
    handle.initialised()


def close(processor: StatefulProcessor, name: str) -> None:
    try:
        processor.close()
    except Exception as error:
        raise FiresteelError(
            f"{name}: {type(processor).__name__}.close failed: {summary_of(error)}"
        ) from error


def _handle_rows(processor: StatefulProcessor) -> Callable[..., Iterator[Any]]:
    """Returns `handleInputRows`. It may lack the parameter for timer values, as in the examples of
    PySpark's documentation.
    """
    function: Callable[..., Iterator[Any]] = processor.handleInputRows
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return lambda key, rows, times: function(key, rows)
    except ValueError:  # it has no signature
        pass
    return function
