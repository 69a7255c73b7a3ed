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
from taskexecutor.executor.timing.bundle_time import MOST_ROWS, BundleLimit, row_limit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_PIECE_S = 1.0  # several times the time of making a plan
_FIRST_PIECE_ROWS = 1_000_000
_LEAST_PIECE_ROWS = 10_000
_FIRST_SLOW_ROWS = 100  # if functions of the program may be slow
_MOST_PIECES = 3  # in one part of a cached plan


class SequenceRuntime(SplitSource[SequenceSource]):
    def operator(self, group: Sequence[OpenedOperator]) -> SourceOperator:
        if len(group) > 1:
            specs = [opened.spec for opened in group[1:]]
            return SequenceStage(self.source, specs, group[-1].output_schema)
        return SplitReading(
            lambda context: SequenceReader(self.source, context), self.source.output_schema()
        )


class SequenceReader(SourceReader):
    """Emits one batch per poll, of fewer rows where the next operators are slow, because
    checkpoints wait for them. With a rate, each subtask has an equal part of it.
    """

    def __init__(
        self,
        source: SequenceSource,
        context: RuntimeContext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schema = source.output_schema()
        self._next = self._end = 0
        self._context = context
        self._limit = row_limit(chained=context.chained)
        self._emitted = 0  # rows of the last batch
        self._before_s = 0.0  # busy time before the last batch
        self._clock = clock
        self._pace: Pace | None = None
        if source.rate_per_s is not None:
            self._pace = Pace(source.rate_per_s / context.task.parallelism, clock())

    def begin(self, split: Split) -> None:
        self._next, self._end = split["start"], split["end"]

    def poll(self) -> pa.RecordBatch | None:
        if self._next >= self._end:
            raise EndOfSplit
        stop = min(self._next + self._batch_rows(), self._end)
        if self._pace is not None:
            now = self._clock()
            stop = min(stop, self._next + self._pace.due(now))
            if stop <= self._next:
                self.poll_interval_s = self._pace.wait_s(now)
                return None
            self._pace.emitted(stop - self._next, now)
        numbers = pa.array(np.arange(self._next, stop, dtype=np.int64))
        self._emitted = stop - self._next
        self._next = stop
        return pa.RecordBatch.from_arrays([numbers], schema=self._schema)

    def _batch_rows(self) -> int:
        if self._limit is None:
            return MOST_ROWS
        now_s = self._context.busy_s
        self._limit.took(now_s - self._before_s, self._emitted)
        self._emitted, self._before_s = 0, now_s
        return int(self._limit.size)

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
        self._limit: BundleLimit | None = None  # in rows; None: nothing has been read

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
                self._kept = self._ranges.covers(
                    first, self._end_at, most_rows=self._most_part_rows
                )
            self._kept = self._kept and self._is_fast()
        if self._limit is None:
            self._limit = self._new_limit()
        begun_s = self.context.busy_s
        if self._kept:
            self._run(CachedRange(self._ranges, first))
            self._next = self._ranges.next
        else:
            self._next = min(self._end_at, first + int(self._limit.size))
            end, engine = self._next, self._engine

            def planned() -> DataFrame:
                numbers = engine.session.range(first, end, 1, engine.cores)
                return self._planned(numbers.withColumnRenamed("id", self._source.column))

            self._run(NewPlan(self.context.plan_meter, planned, end - first))
        self._limit.took(self.context.busy_s - begun_s, self._next - first)
        return self._next - first, self._next < self._end_at

    def _is_fast(self) -> bool:
        """Whether the parts of the cached plan are short enough for checkpoints, which wait for
        their ends.
        """
        assert self._ranges is not None
        most_rows = self._most_part_rows
        if most_rows is None:
            return not self._may_be_slow()
        return self._ranges.part_rows <= most_rows

    @property
    def _most_part_rows(self) -> float | None:
        """None: no function of the program may be slow, or nothing has been read."""
        if self._limit is None or not self._may_be_slow():
            return None
        return _MOST_PIECES * self._limit.size

    def _may_be_slow(self) -> bool:
        """Whether functions of the program may process the rows."""
        assert self._ranges is not None
        return self.context.chained or self._ranges.calls_python

    def _new_limit(self) -> BundleLimit:
        first, least = _FIRST_PIECE_ROWS, _LEAST_PIECE_ROWS
        if self._may_be_slow():
            first, least = _FIRST_SLOW_ROWS, 1
        return BundleLimit(first=first, least=least, most=2**62, target_s=_PIECE_S)

    def _at(self) -> Any:
        return {"next": self._next}

    def _row_schema(self) -> StructType:
        return to_spark(self._source.output_schema())

    def _end(self) -> None:
        self._kept = False
