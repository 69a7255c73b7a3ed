"""Assigns watermarks to a stream: by bounded out-of-orderness of a column, by a function of the
program, or by Spark's rules. Also detects idleness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.column_names import column_index
from firesteel.elements import MAX_WATERMARK, StreamStatus, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, StreamOperator
from firesteel.operators import AssignWatermarksSpec, EventTimeWatermarkSpec, SessionParts
from firesteel.operators.watermarks import MULTIPLE_WATERMARK_POLICY
from taskexecutor.executor.analysis.checks import check_time_column
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.columnar.grouping.key_times import instants
from taskexecutor.executor.operators.query_watermark import FIRST_WATERMARK_US
from taskexecutor.executor.operators.registry import OperatorKind, alone
from taskexecutor.executor.timing.clock import wall_clock_ms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class AssignWatermarks(StreamOperator):
    """Emits a watermark after each batch that advances event time; if `held`, only when the
    upstream operator emits a watermark.

    Upstream watermarks are not forwarded, except the last one. `now_ms` is the wall clock. Time in
    which the task is paused, because it is ahead of its watermark alignment group, does not count
    as idle.
    """

    def __init__(
        self,
        spec: AssignWatermarksSpec,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._spec = spec
        self._now_ms = now_ms
        self._reached_us: int | None = None  # until a watermark carries it
        self._last_ms = 0.0  # arrival of the last batch, minus earlier pauses
        self._waiting = False  # a timer checks whether another batch has arrived
        self._idle_ms = None if spec.idle_us is None else max(1, spec.idle_us // 1000)

    def open(self) -> None:
        self._await_idleness()

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        self.output.emit(batch)
        reached_us = self._reached_by(batch)
        if reached_us is not None and (self._reached_us is None or reached_us > self._reached_us):
            self._reached_us = reached_us
        if not self._spec.held:
            self._advance()
        self._await_idleness()

    def process_watermark(self, watermark: Watermark) -> None:
        if watermark == MAX_WATERMARK:
            self.output.emit_watermark(watermark)
        elif self._spec.held and self._reached_us is not None:
            self._advance()
            self._await_idleness()

    def _advance(self) -> None:
        reached_us, self._reached_us = self._reached_us, None
        if reached_us is not None:  # the output drops watermarks below the last one
            self.output.emit_watermark(Watermark(reached_us - 1))

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        assert self._idle_ms is not None
        self._waiting = False
        waited_ms = timestamp_ms - self.context.stopped_ms - self._last_ms
        if waited_ms >= self._idle_ms:
            self.output.emit_status(StreamStatus(True))  # until the next batch
        else:
            self._wait_until(timestamp_ms + math.ceil(self._idle_ms - waited_ms))

    def _await_idleness(self) -> None:
        if self._idle_ms is not None:
            now_ms = self._now_ms()
            self._last_ms = now_ms - self.context.stopped_ms
            if not self._waiting:
                self._wait_until(now_ms + self._idle_ms)

    def _wait_until(self, due_ms: int) -> None:
        self._waiting = True
        self.context.timers.register_processing_time(due_ms)

    def _reached_by(self, batch: pa.RecordBatch) -> int | None:
        """Returns the time before which no rows will follow; None if it is unknown."""
        spec = self._spec
        if spec.function is None:
            latest_us = _latest_us(batch, spec.column)
            return None if latest_us is None else latest_us - spec.max_out_of_orderness_us
        with self.context.time("python"):
            reached = spec.function(batch)
        return self._us(reached)

    def _us(self, reached: Any) -> int | None:
        if isinstance(reached, pa.Scalar):  # for example the result of pyarrow.compute.min
            reached = reached.as_py()
        if reached is None:
            return None
        if not isinstance(reached, datetime):
            raise FiresteelError(
                f"{self.context.operator_name}: the function returned "
                f"{type(reached).__name__} {reached!r}; "
                "it must return a timestamp (a datetime) or None"
            )
        aware = reached if reached.tzinfo is not None else reached.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND


class EventTimeWatermark(StreamOperator):
    """Emits the watermark of the rows so far each time that the input becomes idle, which all
    subtasks do once the sources have caught up. Consumers wait for active subtasks, and take the
    latest watermark when all are idle, so that it is that of all rows.

    Until this subtask is idle, the watermark of its consumers is therefore the first one, unless
    they have restored another. With `parts`, it then knows which rows are late there.
    """

    def __init__(self, spec: EventTimeWatermarkSpec) -> None:
        self._spec = spec
        self._latest_us: int | None = None  # event time
        self._upstream_us: int | None = None  # watermark
        self._is_first = True  # the watermark of the consumers is the first one

    def initialize_state(self, state: OperatorState) -> None:
        self._state: list[int] = state.list_state("latest event time")
        self._latest_us = max(self._state, default=None)
        self._is_first = not state.restored

    def open(self) -> None:
        policy = self.context.config.get(MULTIPLE_WATERMARK_POLICY, "min")
        self._choose: Callable[[Iterable[int]], int] = max if policy == "max" else min

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._state[:] = [] if self._latest_us is None else [self._latest_us]

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        column = self._spec.column
        rows = batch if self._spec.parts is None else self._with_parts(batch, self._spec.parts)
        self.output.emit(rows.drop_columns([column]) if self._spec.drops_column else rows)
        if not column:
            return
        latest_us = _latest_us(batch, column)
        if latest_us is not None and (self._latest_us is None or latest_us > self._latest_us):
            self._latest_us = latest_us
            if self._spec.eagerly:
                self._advance()

    def process_watermark(self, watermark: Watermark) -> None:
        if watermark == MAX_WATERMARK:  # the sources have been read to their ends
            self._advance()
        elif self._spec.combined:
            self._upstream_us = watermark.timestamp_us
            self._advance()

    def process_status(self, status: StreamStatus) -> None:
        if status.idle:
            self._advance()
        self.output.emit_status(status)

    def _with_parts(self, batch: pa.RecordBatch, parts: SessionParts) -> pa.RecordBatch:
        """Adds the last microsecond of the interval of the gap's length or, for a row that may be
        late, its time. Drops rows without a time, which are in no session.
        """
        place = column_index(batch.schema, self._spec.column)
        if batch.column(place).null_count:
            batch = batch.filter(batch.column(place).is_valid())
        times = instants(batch.column(place))
        if self._is_first:
            in_time = times + parts.gap_us > FIRST_WATERMARK_US
            last = times - times % parts.gap_us + (parts.gap_us - 1)
            times = np.where(in_time, last, times)
        return batch.append_column(parts.column, pa.array(times))

    def _advance(self) -> None:
        self._is_first = False
        if not self._spec.column:
            self.output.emit_watermark(MAX_WATERMARK)
            return
        known = [] if self._latest_us is None else [self._watermark_us(self._latest_us)]
        if self._spec.combined:
            known += [] if self._upstream_us is None else [self._upstream_us]
            if len(known) < 2 and self._choose is min:
                return
        if known:  # the output drops watermarks that do not advance
            self.output.emit_watermark(Watermark(self._choose(known)))

    def _watermark_us(self, latest_us: int) -> int:
        return latest_us // 1_000 * 1_000 - self._spec.delay_us // 1_000 * 1_000


def _latest_us(batch: pa.RecordBatch, column: str) -> int | None:
    """Returns the latest event time; None if all are null."""
    times = batch.column(column_index(batch.schema, column))
    latest = pc.max(times.cast(pa.timestamp("us", times.type.tz))).cast(pa.int64()).as_py()
    return None if latest is None else int(latest)


def _analyze_event_time(step: AnalysisStep, spec: EventTimeWatermarkSpec) -> AnalyzedOutput:
    if spec.column and step.input_schema is not None:
        check_time_column(step, f"watermark of {spec.column!r}", spec.column, step.input_schema)
    schema = step.input_schema
    if spec.drops_column and schema is not None:
        schema = schema.remove(column_index(schema, spec.column))
    if spec.parts is not None and schema is not None:
        schema = schema.append(pa.field(spec.parts.column, pa.int64()))
    return AnalyzedOutput(schema=schema, final=step.inputs[0].final)


def _analyze(step: AnalysisStep, spec: AssignWatermarksSpec) -> AnalyzedOutput:
    if spec.column and step.input_schema is not None:
        check_time_column(
            step, f"watermarks of {step.operator_name!r}", spec.column, step.input_schema
        )
    return AnalyzedOutput(schema=step.input_schema)


KINDS = (
    OperatorKind(AssignWatermarksSpec, _analyze, alone(AssignWatermarks)),
    OperatorKind(EventTimeWatermarkSpec, _analyze_event_time, alone(EventTimeWatermark)),
)
