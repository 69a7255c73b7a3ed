"""SequenceSource without Spark: numbers, made here in batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.connectors import SequenceSource
from firesteel.errors import FiresteelError
from firesteel.operator import SourceOperator
from firesteel.plan.specs import WatermarkSpec
from taskexecutor.executor.connectors.pace import Pace
from taskexecutor.executor.connectors.splits import Splits

BATCH_ROWS = 65_536


class SequenceReader(SourceOperator):
    """One batch per poll. The next split is asked for when the current one is begun.

    With a rate, each subtask has an equal part of it.
    """

    def __init__(
        self,
        source: SequenceSource,
        watermarks: WatermarkSpec | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if watermarks is not None:
            raise FiresteelError(
                f"watermarks on {watermarks.column!r}: a SequenceSource has numbers, not timestamps; "
                "make a timestamp column with transform() and use a source with one"
            )
        self._schema = pa.schema([(source.column, pa.int64())])
        self._next = self._end = 0
        self._splits = Splits()
        self._rows_per_s = source.rate_per_s
        self._clock = clock
        self._pace: Pace | None = None

    def open(self) -> None:
        if self._rows_per_s is not None:
            self._pace = Pace(self._rows_per_s / self.context.task.parallelism, self._clock())

    def handle_coordinator_event(self, event: Any) -> None:
        self._splits.handle(event, self.context)

    def poll(self, max_wait_s: float) -> bool:
        splits = self._splits
        if self._next >= self._end and splits.waiting:
            split = splits.waiting.popleft()
            self._next, self._end = split["start"], split["end"]
        if not splits.waiting:
            splits.ask(self.context)
        if self._next >= self._end:
            self.waiting = not (splits.exhausted and not splits.waiting)
            self.poll_interval_s = None  # only the coordinator can bring more
            return self.waiting
        stop = min(self._next + BATCH_ROWS, self._end)
        if self._pace is not None:
            now = self._clock()
            stop = min(stop, self._next + self._pace.due(now))
            if stop <= self._next:
                self.waiting, self.poll_interval_s = True, self._pace.wait_s(now)
                return True
            self._pace.emitted(stop - self._next, now)
        self.waiting = False
        numbers = pa.array(np.arange(self._next, stop, dtype=np.int64))
        self.context.counter("numRecordsIn").inc(len(numbers))
        self._next = stop
        self.output.emit(pa.RecordBatch.from_arrays([numbers], schema=self._schema))
        return True
