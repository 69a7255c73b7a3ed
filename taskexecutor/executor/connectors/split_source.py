"""Sources that are read split by split in Python: those of a program, and sequences outside
Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.common.operator_messages import HeldSplit
from firesteel.connectors.source import EndOfSplit, SourceReader, Split
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext, SourceOperator
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import conform, declared, shown
from taskexecutor.executor.connectors.runtime import AnySource, SourceAnalysis, SourceRuntime
from taskexecutor.executor.connectors.splits import Begun, Splits, merged
from taskexecutor.executor.operator_factory import OpenedOperator


class SplitSource(SourceRuntime[AnySource]):
    def analyze(self, engine: SparkEngine) -> SourceAnalysis:
        found = self.source.output_schema()
        try:
            schema = declared(found, None)
        except FiresteelError:
            raise
        except Exception as error:
            raise FiresteelError(
                f"the schema {found!r} does not parse: {summary_of(error)}"
            ) from error
        if schema is None:
            raise FiresteelError(f"{self.source.display_name}: output_schema() returned None")
        return SourceAnalysis(schema=schema)

    def operator(self, group: Sequence[OpenedOperator]) -> SourceOperator:
        schema = group[0].output_schema
        if schema is None:
            schema = declared(self.source.output_schema(), None)
        assert schema is not None
        return SplitReading(self.source.create_reader, schema)


class SplitReading(SourceOperator):
    """Reads splits with a SourceReader. Requests the next split when the current one starts."""

    def __init__(
        self, create_reader: Callable[[RuntimeContext], SourceReader], schema: pa.Schema
    ) -> None:
        self._create_reader = create_reader
        self._schema = schema
        self._splits = Splits()
        self._reader: SourceReader | None = None
        self._split: Split | None = None  # has started and not ended

    def open(self) -> None:
        self._records_in = self.context.counter("numRecordsIn")
        self._reader = self._create_reader(self.context)
        with self.context.time("python"):
            self._reader.open()

    @property
    def caught_up(self) -> bool:
        return self.waiting and (self._split is not None or self._splits.caught_up)

    @property
    def splits_received(self) -> int:
        return self._splits.received

    @property
    def splits_held(self) -> Sequence[HeldSplit]:
        return self._splits.held

    def handle_coordinator_event(self, event: Any) -> None:
        self._splits.handle(event, self.context)

    def poll(self, max_wait_s: float) -> bool:
        assert self._reader is not None
        while self._in_split():
            try:
                with self.context.time("python"):
                    batch = self._reader.poll()
            except EndOfSplit:
                self._split = None
                continue
            self.waiting = batch is None
            if batch is None:
                self.poll_interval_s = self._reader.poll_interval_s
            elif batch.num_rows:
                self._records_in.inc(batch.num_rows)
                self.output.emit(self._checked(batch))
            return True
        self.waiting = not (self._splits.exhausted and not self._splits.waiting)
        self.poll_interval_s = None  # only the coordinator can provide more
        return self.waiting

    def _in_split(self) -> bool:
        splits, reader = self._splits, self._reader
        assert reader is not None
        if self._split is None and splits.waiting:
            split, at, _ = splits.begin()
            with self.context.time("python"):
                reader.begin(split)
                if at is not None:
                    reader.restore(at)
            self._split = split
        if not splits.waiting:
            splits.ask(self.context)
        return self._split is not None

    def position(self) -> Any:
        assert self._reader is not None
        if self._split is None:
            return self._splits.position(None)
        return self._splits.position(Begun(self._split, self._reader.position()))

    def merged(self, positions: Sequence[Any]) -> Any:
        return merged(positions)

    def restore(self, position: Any) -> None:
        self._splits.restore(position, self.context)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return conform(batch, self._schema)
        except (pa.ArrowException, ValueError) as error:
            raise FiresteelError(
                f"{self.context.operator_name}: poll() returned columns {shown(batch.schema)}; "
                f"output_schema() declares {shown(self._schema)}"
            ) from error

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
