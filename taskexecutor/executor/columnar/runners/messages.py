"""Runs bundles through a cached plan as Arrow messages, row by row: for types that `columns` does
not support.

The plan's RDD is a chain over one list of Arrow batches. It is computed on the calling thread (more
precisely, its thread in the JVM) for a partition with a different list: the bundle.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.common.units import MIB
from firesteel.operator import PlanMeter
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans.reusable_plan import (
    LOCAL_RELATION_LIMIT,
    NotReusable,
    ReusablePlan,
    temporary_conf,
)
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import local_frame, writing
from taskexecutor.executor.columnar.schemas import conform, to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

LEAF = frozenset({"RDDScanExec"})
_PART_BYTES = 16 * MIB  # of a bundle in the JVM at a time, unless a single row is larger
_SLICE_ROWS = 1_000  # between checks for cancellation
_LENGTH_BYTES = 4  # of each batch's length prefix


def frame(engine: SparkEngine, schema: StructType) -> DataFrame:
    """Returns a DataFrame over no Arrow batches yet."""
    arrow = to_arrow(schema)
    nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in arrow], schema=arrow)
    # Otherwise its rows would be part of the plan.
    with temporary_conf(engine.session, {LOCAL_RELATION_LIMIT: "0b"}):
        return local_frame(engine.session, [nothing], schema.json())


class MessageBundles:
    """A cached plan over `frame` for bundles of one operator. Holds the JVM classes and methods
    that each bundle needs, because looking them up takes round trips.
    """

    def __init__(self, engine: SparkEngine, plan: ReusablePlan) -> None:
        """Raises NotReusable."""
        session: Any = engine.session
        jvm = session._jvm
        self.cached = plan
        self.computes = choose.CACHED_PLAN
        self._engine = engine
        self._schema = to_arrow(plan.frame.schema)  # of the result
        self._rdd = plan.frame._jdf.toArrowBatchRdd(plan.physical)
        root = self._rdd
        while root.getClass().getSimpleName() == "MapPartitionsRDD":
            root = root.dependencies().head().rdd()
        if root.getClass().getSimpleName() != "ParallelCollectionRDD":
            raise NotReusable(f"its rows come from a {root.getClass().getSimpleName()}")
        self._root = root.id()
        self._properties = engine.session_properties()
        self._bytes = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        self._partition = jvm.org.apache.spark.rdd.ParallelCollectionPartition
        self._read_arrow = jvm.PythonSQLUtils.readArrowStreamFromFile
        self._write = jvm.PythonRDD.writeIteratorToStream
        self._data_stream = jvm.java.io.DataOutputStream
        self._file_stream = jvm.java.io.FileOutputStream
        self._paths = (engine.bundles.path(), engine.bundles.path())

    def run(
        self, table: pa.Table, schema: pa.Schema, group: str, meter: PlanMeter
    ) -> Generator[pa.RecordBatch, None, None]:
        part_rows = max(1, table.num_rows * _PART_BYTES // max(1, table.nbytes))
        for start in range(0, table.num_rows, part_rows):
            yield from self._run(table.slice(start, part_rows), schema, group, meter)

    def _run(
        self, table: pa.Table, schema: pa.Schema, group: str, meter: PlanMeter
    ) -> Generator[pa.RecordBatch, None, None]:
        into, out = self._paths
        with (
            meter.converting,
            writing(into, table.nbytes),
            pa.OSFile(str(into), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as writer,
        ):
            writer.write_table(table.combine_chunks(), _SLICE_ROWS)
        slices = self._read_arrow(str(into)).toSeq()
        with self._engine.local_tasks.task(group, self._properties) as task:
            with task:
                rows = self._rdd.iterator(
                    self._partition(self._root, 0, slices, self._bytes), task.context
                )
            while True:
                with task:
                    if not rows.hasNext():
                        return
                    stream = self._data_stream(self._file_stream(str(out)))
                    try:
                        self._write(rows.take(1), stream)
                    finally:
                        stream.close()
                with meter.converting:
                    content = pa.py_buffer(out.read_bytes())
                    batch = pa.ipc.read_record_batch(content[_LENGTH_BYTES:], self._schema)
                    batch = conform(batch, schema) if batch.num_rows else batch
                if batch.num_rows:
                    yield batch

    def close(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)
