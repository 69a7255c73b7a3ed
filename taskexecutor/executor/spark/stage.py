"""The operators that run on Spark: a maximal run of them in a chain is one operator here and one Catalyst plan per bundle.

`SparkSourceStage` reads its splits inside the plan, so Python sees only what the plan lets through. `SparkTransformStage` gathers
what its input brings into bundles: as much as came while Spark was busy, up to a limit; `flush` and watermarks empty it,
so nothing waits for more to come and no watermark overtakes a row.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel import options
from firesteel.config import Configuration
from firesteel.connectors import FileSource, SequenceSource
from firesteel.elements import StreamStatus, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext, SourceOperator, StreamOperator
from firesteel.plan.specs import PartialWindowAggregateSpec, SourceSpec, Spec
from taskexecutor.executor.connectors.splits import Splits
from taskexecutor.executor.spark import plans
from taskexecutor.executor.spark.bundles import BundleWay, collect
from taskexecutor.executor.spark.engine import SparkEngine, engine_of
from taskexecutor.executor.spark.files import CheckedRows, read_files
from taskexecutor.executor.spark.ranges import RangePlans
from taskexecutor.executor.spark.schemas import shown, to_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class _SparkStage(StreamOperator):
    """What both kinds share: the rest of the group as a plan, and running it under the task's name."""

    _engine: SparkEngine

    def __init__(self, specs: Sequence[Spec], output_schema: pa.Schema | None) -> None:
        self._specs = tuple(specs)
        self._output_schema = output_schema  # None: taken from the first bundle's plan
        self._dtypes: list[tuple[str, str]] = []  # of the last bundle's plan

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._engine = engine_of(context.spark)
        self._description = f"{context.task.job_name}: {context.task.task_name_with_subtask}"

    @contextmanager
    def _on_spark(self) -> Iterator[None]:
        group = f"firesteel-{self.context.task.attempt_id}"
        with self.context.time("spark"), self._engine.job_group(group, self._description, lambda: self.context.cancelled):
            yield

    def _run(self, frame: DataFrame) -> DataFrame:
        """Applies the group to `frame`, runs the plan and emits its rows; returns what was run."""
        frame = plans.apply(frame, self._specs, cores=self._engine.cores)
        self._check_schema(frame)
        assert self._output_schema is not None
        self._emit(collect(frame, self._output_schema))
        return frame

    def _emit(self, result: Generator[pa.RecordBatch, None, None]) -> None:
        with closing(result) as batches:
            for batch in batches:
                self._check_times(batch)
                self.output.emit(batch)

    def _show_plan(self, frame: DataFrame) -> None:
        if self.context.task.subtask == 0:  # one of them is enough
            self.context.show_plan(lambda: plans.shown_plan(frame))

    def _check_schema(self, frame: DataFrame) -> None:
        """A transform may build its plan from the data it sees; its columns must stay what they were found to be."""
        dtypes = frame.dtypes
        if dtypes == self._dtypes:
            return
        found = to_arrow(frame.schema)
        if self._output_schema is None:
            self._output_schema = found
        # As Spark's types: whether parts of nested types may be null is no difference.
        elif to_spark(found).simpleString() != to_spark(self._output_schema).simpleString():
            raise FiresteelError(
                f"{self.context.operator_name}: the transform's columns changed between bundles: "
                f"expected {shown(self._output_schema)}; got {shown(found)}"
            )
        self._dtypes = dtypes

    def _check_times(self, batch: pa.RecordBatch) -> None:
        last = self._specs[-1] if self._specs else None
        if not isinstance(last, PartialWindowAggregateSpec) or not last.in_event_time:
            return
        starts = batch.column(batch.schema.get_field_index(plans.WINDOW_START))
        if starts.null_count:
            name = last.time_column
            raise FiresteelError(
                f"event time column {name!r} is null in some rows; drop them or give them a time before the window"
            )


class SparkSourceStage(_SparkStage, SourceOperator):
    """A file or sequence source and the Spark operators after it. Each split is one bundle, read as a stream."""

    inputs = 0
    poll_interval_s = None  # only the coordinator can bring more

    def __init__(
        self, source: SourceSpec, source_schema: pa.Schema | None, specs: Sequence[Spec], output_schema: pa.Schema | None
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
            if self.waiting and isinstance(self._source.source, FileSource) and self._source.source.watch_s is not None:
                self.output.emit_status(StreamStatus(True))  # until there is a new file: others need not wait for it
            return not self._splits.exhausted
        split = self._splits.waiting.popleft()
        self.output.emit_status(StreamStatus(False))  # now, not with its first row: rows of other files must not overtake it
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
            observation = None
            if self._source.watermarks is not None:
                observation, frame = plans.observe_time(frame, self._source.watermarks)
            done = self._run(frame)
            self._show_plan(done)
            latest_us = None if observation is None else plans.observed_time_us(observation)
            if self._checked is not None:
                self._checked.account(self.context, self.output)
        if observation is not None:
            self.context.counter("numRecordsIn").inc(plans.observed_rows(observation))
        elif "end" in split:
            self.context.counter("numRecordsIn").inc(split["end"] - split["start"])
        else:
            self.context.counter("numRecordsIn").inc(plans.scanned_rows(done, split["path"]))
        if latest_us is not None:
            self._advance(latest_us)

    def _read_by_kept_plan(self, split: dict[str, Any]) -> bool:
        source = self._source.source
        if not isinstance(source, SequenceSource) or self._source.watermarks is not None:
            return False
        with self._on_spark():
            if self._ranges is None:
                self._ranges = RangePlans(self._engine.session, source, self._specs, self._engine.cores)
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
                return plans.read_range(session, source, split["start"], split["end"], self._engine.cores)
            case _:
                raise FiresteelError(f"{type(source).__name__} cannot be read by Spark")

    def _advance(self, latest_us: int) -> None:
        assert self._source.watermarks is not None
        watermark_us = latest_us - self._source.watermarks.max_out_of_orderness_us - 1
        if self._watermark_us is None or watermark_us > self._watermark_us:
            self._watermark_us = watermark_us
            self.output.emit_watermark(Watermark(watermark_us))


class SparkTransformStage(_SparkStage):
    """Spark operators behind a task's input or a Python operator."""

    def __init__(self, specs: Sequence[Spec], output_schema: pa.Schema | None) -> None:
        super().__init__(specs, output_schema)
        self._bundle: list[pa.RecordBatch] = []
        self._bundle_bytes = 0
        self._way: BundleWay | None = None

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._limit_bytes = Configuration(context.config).get(options.BUNDLE_BYTES)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        self._bundle.append(batch)
        self._bundle_bytes += batch.nbytes
        if self._bundle_bytes >= self._limit_bytes:
            self.flush()

    def process_watermark(self, watermark: Watermark) -> None:
        self.flush()
        self.output.emit_watermark(watermark)

    def flush(self) -> None:
        if not self._bundle:
            return
        bundle, self._bundle, self._bundle_bytes = self._bundle, [], 0
        if self._way is None:
            self._way = BundleWay(self._engine.session, self._engine.bundles, self.context.input_schemas[0] or bundle[0].schema)
        self.context.count_bundle(sum(batch.num_rows for batch in bundle))
        with self._on_spark(), self._way.dataframe(bundle) as frame:
            self._show_plan(self._run(frame))

    def end_input(self, input_index: int) -> None:
        self.flush()

    def finish(self) -> None:
        self.flush()

    def close(self) -> None:
        self._bundle = []
