"""A file or sequence source and the Spark operators after it: splits are read inside the plan, out
of Python's sight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.connectors import FileSource, SequenceSource
from firesteel.elements import StreamStatus, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import SourceOperator
from firesteel.plan.specs import SourceSpec, Spec
from taskexecutor.executor.connectors.splits import Splits
from taskexecutor.executor.spark import plans
from taskexecutor.executor.spark.files import CheckedRows, read_files
from taskexecutor.executor.spark.ranges import RangePlans
from taskexecutor.executor.spark.schemas import to_spark
from taskexecutor.executor.spark.stage import SparkStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SparkSourceStage(SparkStage, SourceOperator):
    """A file or sequence source and the Spark operators after it. Each split is one bundle, read as
    a stream.
    """

    inputs = 0
    poll_interval_s = None  # only the coordinator can bring more

    def __init__(
        self,
        source: SourceSpec,
        source_schema: pa.Schema | None,
        specs: Sequence[Spec],
        output_schema: pa.Schema | None,
    ) -> None:
        super().__init__(specs, output_schema)
        self._source = source
        self._source_schema = None if source_schema is None else to_spark(source_schema)
        self._splits = Splits()
        self._checked: CheckedRows | None = None  # of the split that is read
        self._ranges: RangePlans | None = None
        self._watermark_us: int | None = None

    def handle_coordinator_event(self, event: Any) -> None:
        self._splits.handle(event, self.context)

    def poll(self, max_wait_s: float) -> bool:
        self.waiting = False
        self._request()
        if not self._splits.waiting:
            self.waiting = not self._splits.exhausted
            if (
                self.waiting
                and isinstance(self._source.source, FileSource)
                and self._source.source.watch_s is not None
            ):
                self.output.emit_status(
                    StreamStatus(True)
                )  # until there is a new file: others need not wait for it
            return not self._splits.exhausted
        split = self._splits.waiting.popleft()
        self.output.emit_status(
            StreamStatus(False)
        )  # now, not with its first row: rows of other files must not overtake it
        self._request()  # the next one is on its way while this one is read
        read = self.context.counter("numRecordsIn")
        before = read.value
        self._read(split)
        self.context.count_bundle(read.value - before)
        return True

    def _request(self) -> None:
        if not self._splits.waiting:
            self._splits.ask(self.context)

    def _read(self, split: dict[str, Any]) -> None:
        if self._read_by_kept_plan(split):
            return
        with self._on_spark():
            frame = self._frame(split)
            if self._source.watermarks is not None:
                frame = plans.observe_time(frame, self._source.watermarks)
            done = self._run(frame)
            self._show_plan(done)
            latest_us, rows = (
                plans.observed_times(done) if self._source.watermarks is not None else (None, 0)
            )
            if self._checked is not None:
                self._checked.account(done, self.context, self.output)
        if self._source.watermarks is None:
            rows = (
                split["end"] - split["start"]
                if "end" in split
                else plans.scanned_rows(done, split["path"])
            )
        self.context.counter("numRecordsIn").inc(rows)
        if latest_us is not None:
            self._advance(latest_us)

    def _read_by_kept_plan(self, split: dict[str, Any]) -> bool:
        source = self._source.source
        if not isinstance(source, SequenceSource) or self._source.watermarks is not None:
            return False
        with self._on_spark():
            if self._ranges is None:
                self._ranges = RangePlans(
                    self._engine.session, source, self._specs, self._engine.cores
                )
            if not self._ranges.covers(split["start"], split["end"]):
                return False
            assert self._ranges.frame is not None
            self._check_schema(self._ranges.frame)
            assert self._output_schema is not None
            self._emit(self._ranges.run(split["start"], self._output_schema))
            self._show_plan(self._ranges.frame)
        self.context.counter("numRecordsIn").inc(split["end"] - split["start"])
        return True

    def _frame(self, split: dict[str, Any]) -> DataFrame:
        session, source = self._engine.session, self._source.source
        match source:
            case FileSource():
                if source.malformed is not None and self._source_schema is not None:
                    self._checked = CheckedRows(session, source, split["path"], self._source_schema)
                    return self._checked.frame
                return read_files(session, source, split["path"], self._source_schema)
            case SequenceSource():
                return plans.read_range(
                    session, source, split["start"], split["end"], self._engine.cores
                )
            case _:
                raise FiresteelError(f"{type(source).__name__} cannot be read by Spark")

    def _advance(self, latest_us: int) -> None:
        assert self._source.watermarks is not None
        watermark_us = latest_us - self._source.watermarks.max_out_of_orderness_us - 1
        if self._watermark_us is None or watermark_us > self._watermark_us:
            self._watermark_us = watermark_us
            self.output.emit_watermark(Watermark(watermark_us))
