"""SequenceSource: numbers made in Python in batches, or generated in Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from firesteel.connectors import EndOfSplit, SequenceSource, SourceReader, Split
from firesteel.operator import RuntimeContext, SourceOperator
from firesteel.operators import Spec
from taskexecutor.executor.columnar.runners.runner import NewPlan
from taskexecutor.executor.columnar.schemas import to_spark
from taskexecutor.executor.connectors.sequences.pace import Pace
from taskexecutor.executor.connectors.sequences.ranges import CachedRange, RangePlans
from taskexecutor.executor.connectors.spark_source import SparkSourceStage
from taskexecutor.executor.connectors.split_source import SplitReading, SplitSource
from taskexecutor.executor.operator_factory import OpenedOperator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BATCH_ROWS = 65_536
_PIECE_S = 1.0  # several times the time of making a plan
_FIRST_PIECE_ROWS = 1_000_000
_LEAST_PIECE_ROWS = 10_000


class SequenceRuntime(SplitSource[SequenceSource]):
    def operator(self, group: Sequence[OpenedOperator]) -> SourceOperator:
        if len(group) > 1:
            specs = [opened.spec for opened in group[1:]]
            return SequenceStage(self.source, specs, group[-1].output_schema)
        return SplitReading(
            lambda context: SequenceReader(self.source, context), self.source.output_schema()
        )


class SequenceReader(SourceReader):
    """Emits one batch per poll. With a rate, each subtask has an equal part of it."""

    def __init__(
        self,
        source: SequenceSource,
        context: RuntimeContext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schema = source.output_schema()
        self._next = self._end = 0
        self._clock = clock
        self._pace: Pace | None = None
        if source.rate_per_s is not None:
            self._pace = Pace(source.rate_per_s / context.task.parallelism, clock())

    def begin(self, split: Split) -> None:
        self._next, self._end = split["start"], split["end"]

    def poll(self) -> pa.RecordBatch | None:
        if self._next >= self._end:
            raise EndOfSplit
        stop = min(self._next + BATCH_ROWS, self._end)
        if self._pace is not None:
            now = self._clock()
            stop = min(stop, self._next + self._pace.due(now))
            if stop <= self._next:
                self.poll_interval_s = self._pace.wait_s(now)
                return None
            self._pace.emitted(stop - self._next, now)
        numbers = pa.array(np.arange(self._next, stop, dtype=np.int64))
        self._next = stop
        return pa.RecordBatch.from_arrays([numbers], schema=self._schema)

    def position(self) -> int:
        return self._next

    def restore(self, position: int) -> None:
        self._next = position


class SequenceStage(SparkSourceStage):
    """A sequence and the Spark operators after it, run by a cached plan where possible."""

    def __init__(
        self, source: SequenceSource, specs: Sequence[Spec], output_schema: pa.Schema | None
    ) -> None:
        super().__init__(specs, output_schema)
        self._source = source
        self._ranges: RangePlans | None = None
        self._next = self._end_at = 0  # of the split
        self._untouched = False  # nothing of the split has been read
        self._kept = False  # a cached plan reads the split
        self._piece_rows = _FIRST_PIECE_ROWS  # rows of a piece with a new plan

    def _begin(self, split: Split, at: Any) -> None:
        start, self._end_at = split["start"], split["end"]
        self._next = start if at is None else at["next"]
        self._untouched = self._next == start

    def _read(self) -> tuple[int, bool]:
        first = self._next
        if self._ranges is None:
            self._ranges = RangePlans(
                self._engine.session,
                self._source,
                self._specs,
                self._engine.cores,
                self.context.plan_meter,
                gives_way=self.context.checkpoints,
            )
        if self._untouched:  # the first part of a short split may have no numbers
            self._untouched = False
            with self._spark.job():
                self._kept = self._ranges.covers(first, self._end_at)
        if self._kept:
            self._run(CachedRange(self._ranges, first))
            self._next = self._ranges.next
        else:
            self._next = min(self._end_at, first + self._piece_rows)
            end, engine = self._next, self._engine

            def planned() -> DataFrame:
                numbers = engine.session.range(first, end, 1, engine.cores)
                return self._planned(numbers.withColumnRenamed("id", self._source.column))

            before_s = self.context.busy_s
            self._run(NewPlan(self.context.plan_meter, planned, end - first))
            rate = (self._next - first) / max(1e-3, self.context.busy_s - before_s)
            self._piece_rows = max(_LEAST_PIECE_ROWS, int(rate * _PIECE_S))
        return self._next - first, self._next < self._end_at

    def _at(self) -> Any:
        return {"next": self._next}

    def _row_schema(self) -> StructType:
        return to_spark(self._source.output_schema())

    def _end(self) -> None:
        self._kept = False
