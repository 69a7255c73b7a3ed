"""Operators over all rows of their inputs at once, on Spark: `apply`, and joins in a batch.

The rows wait in files until the inputs have ended. They are then DataFrames of one partition each,
so Spark groups, sorts and joins them without a shuffle, spilling what does not fit into the heap.
The results of plans that cannot do without a job of Spark's wait in files, too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.common.process import temporary
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from firesteel.plan.specs import ApplySpec
from taskexecutor.executor.spark.columns import rows
from taskexecutor.executor.spark.columns.sink import ColumnSink
from taskexecutor.executor.spark.columns.spool import Spool
from taskexecutor.executor.spark.plans import composed
from taskexecutor.executor.spark.plans.kept import without_shuffles
from taskexecutor.executor.spark.result_files import collect_in_files
from taskexecutor.executor.spark.schemas import conform, to_arrow, to_spark
from taskexecutor.executor.spark.stage import SparkStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BROADCAST = "BroadcastExchangeExec"  # a job of its own
# In the names of nodes that need Spark's workers, or have several partitions.
_ELSEWHERE = ("Python", "InPandas", "InArrow", "Union")


class WholeRows(SparkStage):
    """Spools the rows of its inputs, and emits what a plan over all of them gives."""

    emits_at_end = True

    def __init__(self, inputs: int, output_schema: pa.Schema | None) -> None:
        super().__init__((), output_schema)
        self.inputs = inputs
        self._spools: list[Spool] = []

    @abstractmethod
    def _spooled_schema(self, number: int, given: pa.Schema) -> pa.Schema:
        """Of the rows that wait, in Spark's types. `given`: of the input of this number."""

    def _spooled(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What waits of a batch."""
        return conform(batch, self._schemas[number])

    @abstractmethod
    def _result(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Of the rows that have waited, in a frame for each input."""

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._schemas = [
            self._spooled_schema(number, schema)
            for number, schema in enumerate(self._input_schemas())
        ]

    def _input_schemas(self) -> list[pa.Schema]:
        found = []
        for number in range(self.inputs):
            schema = self.context.input_schemas[number]
            if schema is None:
                raise FiresteelError(
                    f"{self.context.operator_name}: the schema of its input is not known; "
                    "declare one on the operator before it"
                )
            found.append(schema)
        return found

    def open(self) -> None:
        for schema in self._schemas:
            if not ColumnSink.suits(self._engine, to_spark(schema)):
                raise FiresteelError(
                    f"{self.context.operator_name}: whole streams cannot have rows of the types"
                    f" {', '.join(sorted({str(kind) for kind in schema.types}))}"
                )
        folder = temporary.make("whole", self._engine.temp_dir)
        self._folder = folder
        self._spools = [
            Spool(folder, f"input-{number}", schema.names)
            for number, schema in enumerate(self._schemas)
        ]

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if batch.num_rows:
            with self.context.time("spark"):
                self._spools[input_index].add(self._spooled(input_index, batch))

    def process_watermark(self, watermark: Watermark) -> None:
        """Rows of any time are yet to come."""

    def finish(self) -> None:
        self.context.count_bundle(sum(spool.rows for spool in self._spools))
        meter = self.context.plan_meter
        with self._on_spark():
            with meter.planning:
                frames = [
                    rows.frame(self._engine, to_spark(schema), spool.java(self._engine))
                    for schema, spool in zip(self._schemas, self._spools, strict=True)
                ]
                frame = self._result(frames)
                self._check_schema(frame)
                physical = frame._jdf.queryExecution().executedPlan()
            meter.made()
            self._show_plan(frame)
            assert self._output_schema is not None
            computed = self._computed(frame, physical, self._output_schema)
            if computed is None:
                computed = collect_in_files(
                    frame, self._output_schema, meter, self._engine.code, self._folder
                )
            self._emit(computed)

    def _computed(
        self, frame: DataFrame, physical: Any, schema: pa.Schema
    ) -> Generator[pa.RecordBatch, None, None] | None:
        """The plan's results if, without its shuffles, it is one task, which the calling thread can
        be; else None: it takes a job of Spark's.
        """
        if not ColumnSink.suits(self._engine, frame.schema) or not _is_local(physical):
            return None
        sink = ColumnSink(self._engine, frame.schema)
        rdd = sink.fuse(without_shuffles(self._engine.session, physical)).execute()
        if rdd.getNumPartitions() != 1:  # only a shuffle would bring their rows together
            sink.close()
            return None
        return self._results(sink, rdd, schema)

    def _results(
        self, sink: ColumnSink, rdd: Any, schema: pa.Schema
    ) -> Generator[pa.RecordBatch, None, None]:
        engine = self._engine
        try:
            with engine.local_tasks.task(self._job_group, engine.session_properties()) as task:
                with task:
                    found = rdd.iterator(rdd.partitions()[0], task.context)
                for batch in sink.batches(found, task):
                    yield conform(batch, schema)
        finally:
            sink.close()

    def close(self) -> None:
        for spool in self._spools:
            spool.close()
        if self._spools:
            temporary.remove(self._folder)


class ApplyToAll(WholeRows):
    """A function of the program over whole inputs."""

    not_checkpointed = "the rows that apply() waits with until its inputs end"

    def __init__(self, spec: ApplySpec, output_schema: pa.Schema | None) -> None:
        super().__init__(len(spec.key_columns), output_schema)
        self._spec = spec

    def _spooled_schema(self, number: int, given: pa.Schema) -> pa.Schema:
        return to_arrow(to_spark(given))

    def _result(self, frames: Sequence[DataFrame]) -> DataFrame:
        return composed.applied(self._spec, frames)


def _is_local(physical: Any) -> bool:
    """Whether all that a plan reads is in spools, and nothing in it runs elsewhere. Rows that are
    broadcast may be any: Spark reads them before, in a job of its own.
    """
    nodes: list[Any] = [physical]
    for node in nodes:
        name = node.getClass().getSimpleName()
        children = [node.children().apply(at) for at in range(node.children().size())]
        is_spool = name == "BatchScanExec" and rows.is_scan(node)
        if node.subqueries().size() or any(part in name for part in _ELSEWHERE):
            return False
        if not (children or is_spool):
            return False
        if name != _BROADCAST:
            nodes += children
    return True
