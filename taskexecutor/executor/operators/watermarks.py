"""Assigns watermarks to a stream: by bounded out-of-orderness of a column, or by a function of the
program. Also detects idleness.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from firesteel.column_names import column_index
from firesteel.elements import MAX_WATERMARK, StreamStatus, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from firesteel.operators import AssignWatermarksSpec
from taskexecutor.executor.analysis.checks import check_time_column
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
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
            times = batch.column(column_index(batch.schema, spec.column))
            latest = pc.max(times.cast(pa.timestamp("us", times.type.tz))).cast(pa.int64()).as_py()
            return None if latest is None else int(latest) - spec.max_out_of_orderness_us
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


def _analyze(step: AnalysisStep, spec: AssignWatermarksSpec) -> AnalyzedOutput:
    if spec.column and step.input_schema is not None:
        check_time_column(
            step, f"watermarks of {step.operator_name!r}", spec.column, step.input_schema
        )
    return AnalyzedOutput(schema=step.input_schema)


KINDS = (OperatorKind(AssignWatermarksSpec, _analyze, alone(AssignWatermarks)),)
