"""Operators over all rows of their inputs together, on Spark: `apply`, and joins in a batch.

The rows are spooled to files until the inputs have ended. They are then DataFrames of one partition
each, so Spark groups, sorts and joins them without a shuffle, and spills data that does not fit
into the heap. The results of plans that need a Spark job are also spooled to files.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.common.logs import get_logger
from firesteel.common.process import temporary
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext
from firesteel.operators import ApplySpec
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.cached_plans.reusable_plan import without_shuffles
from taskexecutor.executor.columnar.columns import rows
from taskexecutor.executor.columnar.columns.sink import ColumnSink
from taskexecutor.executor.columnar.columns.spool import Spool
from taskexecutor.executor.columnar.jvm.transfer import collect_in_files
from taskexecutor.executor.columnar.schemas import conform, to_arrow, to_spark
from taskexecutor.executor.columnar.stages.hash_joins import with_hash_joins
from taskexecutor.executor.columnar.stages.stage import SparkStage
from taskexecutor.executor.columnar.stages.transform_stage import After, SparkTransformStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = get_logger(__name__)

_BROADCAST = "BroadcastExchangeExec"  # runs as a separate job
# Parts of the names of nodes that need Spark's workers, or have several partitions.
_ELSEWHERE = ("Python", "InPandas", "InArrow", "Union")


class _Runnable(NamedTuple):
    sink: ColumnSink
    rdd: Any  # of the plan that writes its rows there


class WholeRows(SparkStage):
    """Spools the rows of its inputs, and emits the result of a plan over all of them."""

    emits_at_end = True

    def __init__(
        self,
        inputs: int,
        output_schema: pa.Schema | None,
        following: SparkTransformStage | None = None,
    ) -> None:
        """`following` emits its result instead: in the same plan, if possible."""
        super().__init__((), output_schema)
        self.inputs = inputs
        self._following = following
        self._spools: list[Spool] = []

    @abstractmethod
    def _spooled_schema(self, number: int, given: pa.Schema) -> pa.Schema:
        """Returns the schema of the spooled rows, in Spark's types. `given` is that of the input of
        this number.
        """

    def _spooled(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the part of a batch that is spooled."""
        return conform(batch, self._schemas[number])

    @abstractmethod
    def _result(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Returns the result over the spooled rows, with a DataFrame for each input."""

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        if self._following is not None:
            self._following.setup(context, output)
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
                    f"{self.context.operator_name}: the schema of its input is unknown; "
                    "declare it on the upstream operator"
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
        """Does nothing: later rows may have any time."""

    def finish(self) -> None:
        self.context.count_bundle(sum(spool.rows for spool in self._spools))
        meter = self.context.plan_meter
        with self._spark.job(), self._engine.in_larger_steps():
            with meter.planning:
                frame = self._result(
                    [
                        rows.frame(self._engine, to_spark(schema), spool.java(self._engine))
                        for schema, spool in zip(self._schemas, self._spools, strict=True)
                    ]
                )
                output_schema = self._checked(frame)
            meter.made()
            if self._emitted_by_following(frame):
                return
            self._spark.show(frame)
            computed = self._computed(After(frame, output_schema))
            if computed is None:
                meter.computed_by(choose.ONE_JOB)
                computed = collect_in_files(
                    frame, output_schema, meter, self._engine.code, self._folder
                )
            if self._following is None:
                self.emit(computed)
                return
            with closing(computed) as batches:
                for batch in batches:
                    self._following.process_batch(batch, 0)
        self._following.flush()

    def _emitted_by_following(self, frame: DataFrame) -> bool:
        """Returns whether `frame` and the following operator could be computed as one plan."""
        following = self._following
        if following is None:
            return False
        with self.context.plan_meter.planning:
            after = following.after(frame)
            computed = None if after is None else self._computed(after)
        if after is None or computed is None:
            return False
        self._spark.show(after.frame)
        following.emit(computed)
        return True

    def _computed(self, wanted: After) -> Generator[pa.RecordBatch, None, None] | None:
        """Returns the plan's results if, without its shuffles, it is one task that the calling
        thread can run; None if it needs a Spark job.
        """
        engine, frame = self._engine, wanted.frame
        if not ColumnSink.suits(engine, frame.schema):
            return None
        with self.context.plan_meter.planning:
            hashing = with_hash_joins(engine, frame, engine.local_tasks.free_bytes)
            physical = _executed(frame) if hashing is None else hashing
            runnable = self._runnable(wanted, physical) if _is_local(physical) else None
        if runnable is None:
            return None
        if hashing is None:
            return self._results(runnable, wanted.schema)
        return self._results_by_hashing(runnable, wanted)

    def _runnable(self, wanted: After, physical: Any) -> _Runnable | None:
        """Returns None if only a shuffle would bring its rows together."""
        sink = ColumnSink(self._engine, wanted.frame.schema, grouping=wanted.grouping)
        rdd = sink.fuse(without_shuffles(self._engine.session, physical)).execute()
        if rdd.getNumPartitions() != 1:
            sink.close()
            return None
        return _Runnable(sink, rdd)

    def _results_by_hashing(
        self, runnable: _Runnable, wanted: After
    ) -> Generator[pa.RecordBatch, None, None]:
        """Computes with hash joins. If that fails before the first row, because there was no room
        for hash tables after all, Spark's own plan starts over.
        """
        results = self._results(runnable, wanted.schema)
        try:
            first = next(results, None)
        except Exception as error:
            if self.context.cancelled:
                raise
            log.info("falling back to sort joins", cause=summary_of(error))
            with self.context.plan_meter.planning:
                again = self._runnable(wanted, _executed(wanted.frame))
            assert again is not None, "it has the partitions of the other plan"
            yield from self._results(again, wanted.schema)
            return
        if first is not None:
            yield first
            yield from results

    def _results(
        self, runnable: _Runnable, schema: pa.Schema
    ) -> Generator[pa.RecordBatch, None, None]:
        engine, (sink, rdd) = self._engine, runnable
        self.context.plan_meter.computed_by(choose.ONE_TASK)
        try:
            with engine.local_tasks.task(
                self._spark.job_group, engine.session_properties()
            ) as task:
                with task:
                    found = rdd.iterator(rdd.partitions()[0], task.context)
                for batch in sink.batches(found, task):
                    yield conform(batch, schema)
        finally:
            sink.close()

    def close(self) -> None:
        if self._following is not None:
            self._following.close()
        for spool in self._spools:
            spool.close()
        if self._spools:
            temporary.remove(self._folder)


class ApplyToAll(WholeRows):
    """A function of the program over whole inputs."""

    not_checkpointed = "the rows that apply() waits with until its inputs end"

    def __init__(
        self,
        spec: ApplySpec,
        output_schema: pa.Schema | None,
        following: SparkTransformStage | None = None,
    ) -> None:
        super().__init__(len(spec.key_columns), output_schema, following)
        self._spec = spec

    def _spooled_schema(self, number: int, given: pa.Schema) -> pa.Schema:
        return to_arrow(to_spark(given))

    def _result(self, frames: Sequence[DataFrame]) -> DataFrame:
        return composed.applied(self._spec, frames)


def _executed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().executedPlan()


def _is_local(physical: Any) -> bool:
    """Returns whether all data that a plan reads is in spools, and nothing in it runs elsewhere.
    Broadcast rows may come from anywhere: Spark reads them before, in a separate job.
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
