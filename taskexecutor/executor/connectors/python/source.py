"""PythonSource: stream readers of PySpark's Python DataSource.

planner (one subtask)  --partitions-->  readers (any number)

The planner keeps the offset and requests new partitions from the DataSourceStreamReader; they are
sent as rows to the readers, which turn each into its rows. So the plan is part of the stream: when
a barrier has passed both, the offset is in the planner's state and nothing is left between them. A
SimpleDataSourceStreamReader plans and reads in one call, in one subtask.

Partitions of one plan may cover the same time, and a reader may have several of them queued.
Therefore, if the source has event time, the planner sends a mark after each plan: a watermark that
counts the plans. The operator after the reader that assigns event time (AssignWatermarks) advances
it only at marks.

`commit(end)` promises a reader that nothing before `end` will be read again, so it is called only
when a completed checkpoint contains that offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle
import pyarrow as pa

from firesteel.common.config import options
from firesteel.connectors import PythonSource
from firesteel.connectors.python_source import PartitionPlan
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext, SourceOperator, StreamOperator
from firesteel.plan.source_lines import dumps_without_lines
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.connectors.python.data_source import (
    PARTITION_SCHEMA,
    batches_of,
    check_source,
    create,
    latest_offset,
    offset_text,
    schema_of,
    stream_reader,
    user_code,
)
from taskexecutor.executor.connectors.runtime import SourceAnalysis, SourceRuntime
from taskexecutor.executor.connectors.splits import VERSION, check_version
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.runtime_mode import is_batch
from taskexecutor.executor.timing.bundle_time import TARGET_S

READING_SUBTASK = 0  # of planners and simple readers; other subtasks are unused


class PythonSourceRuntime(SourceRuntime[PythonSource]):
    def analyze(self, engine: SparkEngine) -> SourceAnalysis:
        return SourceAnalysis(schema=check_source(self.source))

    def operator(self, group: Sequence[OpenedOperator]) -> StreamOperator:
        return SimpleReader(self.source) if self.source.is_simple else PartitionReader(self.source)


class PartitionPlanRuntime(SourceRuntime[PartitionPlan]):
    def analyze(self, engine: SparkEngine) -> SourceAnalysis:
        return SourceAnalysis(schema=PARTITION_SCHEMA)

    def operator(self, group: Sequence[OpenedOperator]) -> StreamOperator:
        return PartitionPlanner(self.source)


class _OffsetSource(SourceOperator):
    """Keeps the offset up to which everything has been emitted."""

    def __init__(self, source: PythonSource) -> None:
        self._source = source
        self._reader: Any = None  # None: this subtask does not read
        self._offset: Any = None  # unset before the first poll, unless restored
        self._text: str | None = None  # the offset as JSON
        # By checkpoint: the offset to commit when it is complete.
        self._by_checkpoint: dict[int, Any] = {}
        self._ended = False
        self.poll_interval_s = source.poll_interval_s

    def open(self) -> None:
        if self.context.task.subtask != READING_SUBTASK:
            self._ended = True
            return
        with user_code(self.context):
            self._data_source = create(self._source)
            self._schema = schema_of(self._source, self._data_source)
            self._reader = stream_reader(self._source, self._data_source, self._schema)
        if is_batch(self.context) and not hasattr(self._reader, "isFinished"):
            raise FiresteelError(
                f"{self._source.name} never ends, but a job in batch mode must end: give"
                f" {type(self._reader).__name__} a method isFinished(end), or run it as a stream"
                f" ({options.RUNTIME_MODE.key})"
            )

    def _begin(self) -> None:
        with user_code(self.context):
            self._offset = self._reader.initialOffset()
        self._text = offset_text(self._offset, self._source.name)
        self._note_end()

    def poll(self, max_wait_s: float) -> bool:
        if self._reader is not None and self._text is None:
            self._begin()
        if self._ended:
            return False
        end = self._advance()
        text = offset_text(end, self._source.name)
        self.waiting = text == self._text
        if not self.waiting:
            self._offset, self._text = end, text
        self._note_end()
        return not self._ended

    def _advance(self) -> Any:
        """Emits new rows and returns the offset after them; the same offset if there is nothing
        new, or if more rows precede it.
        """
        raise NotImplementedError

    def _note_end(self) -> None:
        is_finished = getattr(self._reader, "isFinished", None)
        if is_finished is not None:
            with user_code(self.context):
                self._ended = bool(is_finished(self._offset))

    def position(self) -> Any:
        return {"version": VERSION, "offset": self._offset}

    def restore(self, position: Any) -> None:
        check_version(position, self.context)
        if self._reader is not None and position["offset"] is not None:
            self._offset = position["offset"]
            self._text = offset_text(self._offset, self._source.name)
            self._ended = False
            self._note_end()
            with user_code(self.context):  # possibly again: it may have failed before
                self._reader.commit(self._offset)

    def snapshot_state(self, checkpoint_id: int) -> None:
        if self._text is not None:
            self._by_checkpoint[checkpoint_id] = self._offset

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id not in self._by_checkpoint:
            return
        offset = self._by_checkpoint[checkpoint_id]
        self._by_checkpoint = {
            later: o for later, o in self._by_checkpoint.items() if later > checkpoint_id
        }
        with user_code(self.context):
            self._reader.commit(offset)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._by_checkpoint.pop(checkpoint_id, None)

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and hasattr(reader, "stop"):  # simple readers have none
            with user_code(self.context):
                reader.stop()


class PartitionPlanner(_OffsetSource):
    """Emits pickled partitions, one row each."""

    def __init__(self, plan: PartitionPlan) -> None:
        super().__init__(plan.source)
        self._marks = 0 if plan.marked else None

    def _advance(self) -> Any:
        with user_code(self.context):
            end = latest_offset(self._reader, self._offset)
            if offset_text(end, self._source.name) == self._text:
                return end
            partitions = [
                dumps_without_lines(partition)
                for partition in self._reader.partitions(self._offset, end)
            ]
        # one batch per partition, to distribute them evenly over the readers
        for partition in partitions:
            self.output.emit(
                pa.RecordBatch.from_arrays(
                    [pa.array([partition], pa.binary())], schema=PARTITION_SCHEMA
                )
            )
        if self._marks is not None:
            self._marks += 1
            self.output.emit_watermark(Watermark(self._marks))
        return end


class SimpleReader(_OffsetSource):
    """Emits the rows of a SimpleDataSourceStreamReader, which reads them from an offset on: in
    steps, with positions between them.
    """

    def __init__(self, source: PythonSource) -> None:
        super().__init__(source)
        self._read: _Read | None = None  # has started and not ended

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._records_in = context.counter("numRecordsIn")

    def poll(self, max_wait_s: float) -> bool:
        more = super().poll(max_wait_s)
        self.waiting = self.waiting and self._read is None
        return more

    def _note_end(self) -> None:
        if self._read is None:
            super()._note_end()

    def position(self) -> Any:
        position = super().position()
        if self._read is not None and self._read.rows:
            position["read"] = {"end": self._read.end, "rows": self._read.rows}
        return position

    def restore(self, position: Any) -> None:
        super().restore(position)
        found = position.get("read")
        if found is None or self._reader is None:
            return
        with user_code(self.context):
            rows = self._reader.readBetweenOffsets(self._offset, found["end"])
            batches = self._batches(rows)
            self._read = _Read(batches, found["end"], skipped=found["rows"])

    def _batches(self, rows: Any) -> Iterator[pa.RecordBatch]:
        arrow_schema = self.context.output_schema or to_arrow(self._schema)
        return batches_of(rows, self._schema, self._data_source, arrow_schema)

    def _advance(self) -> Any:
        if self._read is None:
            with user_code(self.context):
                rows, end = self._reader.read(self._offset)
                self._read = _Read(self._batches(rows), end)
        read = self._read
        begun_s = self.context.busy_s
        while True:
            with user_code(self.context):
                batch = next(read.batches, None)
            if batch is None:
                return self._end_of(read)
            batch = read.behind(batch)
            self._records_in.inc(batch.num_rows)
            self.output.emit(batch)
            if self.context.busy_s - begun_s >= TARGET_S:
                return self._offset

    def _end_of(self, read: _Read) -> Any:
        self._read = None
        if read.seen < read.skipped:
            raise FiresteelError(
                f"{self._source.name}: readBetweenOffsets({self._text}, ...) returned "
                f"{read.seen} rows, but {read.skipped} had been read when the restored state was "
                "taken. It must return the same rows again"
            )
        if read.seen and offset_text(read.end, self._source.name) == self._text:
            raise FiresteelError(
                f"{self._source.name}: read({self._text}) returned rows and the same offset; "
                "the end offset must be after the rows; otherwise they would be read repeatedly"
            )
        return read.end


class _Read:
    """The result of one call of a simple reader's read()."""

    def __init__(self, batches: Iterator[pa.RecordBatch], end: Any, skipped: int = 0) -> None:
        self.batches = batches
        self.end = end
        self.skipped = skipped  # number of rows that were emitted before the restore
        self.seen = 0

    @property
    def rows(self) -> int:
        """The number of rows that have been emitted, now or before."""
        return max(self.seen, self.skipped)

    def behind(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch without the rows that were emitted before."""
        skip = min(batch.num_rows, max(0, self.skipped - self.seen))
        self.seen += batch.num_rows
        return batch.slice(skip) if skip else batch


class PartitionReader(StreamOperator):
    """Turns partitions into their rows, and forwards the planner's marks. Each partition is read to
    its end in one step, so nothing of it is left at a barrier.
    """

    def __init__(self, source: PythonSource) -> None:
        self._source = source

    def open(self) -> None:
        with user_code(self.context):
            self._data_source = create(self._source)
            self._schema = schema_of(self._source, self._data_source)
            self._reader = stream_reader(self._source, self._data_source, self._schema)
        self._arrow_schema = self.context.output_schema or to_arrow(self._schema)
        self._records_in = self.context.counter("numRecordsIn")

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        for pickled in batch.column(0).to_pylist():
            with user_code(self.context):
                rows = self._reader.read(cloudpickle.loads(pickled))
                for read in batches_of(rows, self._schema, self._data_source, self._arrow_schema):
                    self._records_in.inc(read.num_rows)
                    self.output.emit(read)
