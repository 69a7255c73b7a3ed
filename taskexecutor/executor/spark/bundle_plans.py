"""Runs bundles by a kept plan: rows enter and leave the generated code without a Spark job and
without a plan of their own.

The plan's RDD is a chain over one list of Arrow batches. It is computed on the calling thread (or
rather its thread in the JVM) for a partition that holds another list: the bundle. See
docs/decisions/0009.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog

from firesteel.common.error_report import summary_of
from firesteel.common.units import MIB
from firesteel.operator import PlanMeter
from firesteel.plan.specs import Spec
from taskexecutor.executor.spark.bundles import local_frame, writing
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.kept_plan import (
    ATTEMPTS,
    LOCAL_RELATION_LIMIT,
    ROW_BY_ROW,
    KeptPlan,
    NotKept,
    keep,
    temporary_conf,
)
from taskexecutor.executor.spark.schemas import conform, to_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUNDLE_ROWS = 100_000  # larger bundles of a slot with several cores go to all of them, as a job
_PART_BYTES = 16 * MIB  # of a bundle in the JVM at a time, unless a single row has more
_SLICE_ROWS = 1_000  # between checks for cancellation
_LEAF = frozenset({"RDDScanExec"})
_LENGTH_BYTES = 4  # the prefix of each batch

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A kept plan, with the JVM's classes and methods that each bundle needs: looking them up takes
    round trips.
    """

    kept: KeptPlan
    schema: pa.Schema  # of the result
    rdd: Any  # of Arrow batches
    root: int  # the id of the RDD over the list of input batches
    properties: Any  # the session's settings, for tasks
    bytes: Any  # the class tag of byte[]
    partition: Any
    read_arrow: Any
    write: Any
    data_stream: Any
    file_stream: Any


class BundlePlans:
    """The kept plan of one operator's bundles, made with the first bundle if that is sound."""

    def __init__(
        self, engine: SparkEngine, schema: pa.Schema, specs: Sequence[Spec], meter: PlanMeter
    ) -> None:
        self._engine = engine
        self._meter = meter
        self._session: Any = engine.session
        self._schema = schema  # of the bundles
        self._spark_schema = to_spark(schema)
        self._canonical = to_arrow(self._spark_schema)
        self._specs = tuple(specs)
        self._attempts = ATTEMPTS if schema.names else 0
        self._plan: _Plan | None = None
        self._paths = (engine.bundles.path(), engine.bundles.path())

    def suits(self, rows: int) -> bool:
        """Whether a kept plan is the fastest way for a bundle of this size."""
        return rows <= BUNDLE_ROWS or self._engine.cores == 1

    @property
    def frame(self) -> DataFrame | None:
        """The kept plan's frame; None if there is no kept plan."""
        return self._plan.kept.frame if self._plan is not None else None

    @property
    def undecided(self) -> bool:
        """There is no plan yet, but another attempt to make one is worth it."""
        return self._plan is None and self._attempts > 0

    def drop_if_outdated(self) -> None:
        """Called between bundles: a plan that holds an older read of a static table is not kept."""
        if self._plan is not None and self._plan.kept.outdated:
            self._plan = None
            self._attempts = ATTEMPTS

    def make(self) -> None:
        """Tries to make the plan, which sets `frame`. Calls the functions of the program."""
        self._attempts -= 1
        try:
            with self._meter.planning:
                self._plan = self._made()
            self._meter.made()
        except NotKept as reason:
            self._meter.not_kept(str(reason))
        except Exception as error:
            # If it is the program's error, planning the bundle in the usual way raises it again.
            _log.info("the plan is not kept", error=repr(error))
            self._meter.not_kept(f"making a plan without rows failed: {summary_of(error)}")

    def run(
        self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, group: str
    ) -> Generator[pa.RecordBatch, None, None]:
        """The results in batches of exactly `schema`, each computed on demand."""
        with self._meter.converting:
            table = pa.Table.from_batches(
                [conform(batch, self._schema) for batch in batches], self._schema
            ).cast(self._canonical)
        self._meter.ran_kept()
        part_rows = max(1, table.num_rows * _PART_BYTES // max(1, table.nbytes))
        for start in range(0, table.num_rows, part_rows):
            yield from self._run(table.slice(start, part_rows), schema, group)

    def _run(
        self, table: pa.Table, schema: pa.Schema, group: str
    ) -> Generator[pa.RecordBatch, None, None]:
        into, out = self._paths
        with (
            self._meter.converting,
            writing(into, table.nbytes),
            pa.OSFile(str(into), "wb") as file,
            pa.ipc.new_stream(file, self._canonical) as writer,
        ):
            writer.write_table(table.combine_chunks(), _SLICE_ROWS)
        plan = self._plan
        assert plan is not None
        slices = plan.read_arrow(str(into)).toSeq()
        with self._engine.local_tasks.task(group, plan.properties) as task:
            with task:
                rows = plan.rdd.iterator(
                    plan.partition(plan.root, 0, slices, plan.bytes), task.context
                )
            while True:
                with task:
                    if not rows.hasNext():
                        return
                    stream = plan.data_stream(plan.file_stream(str(out)))
                    try:
                        plan.write(rows.take(1), stream)
                    finally:
                        stream.close()
                with self._meter.converting:
                    content = pa.py_buffer(out.read_bytes())
                    batch = pa.ipc.read_record_batch(content[_LENGTH_BYTES:], plan.schema)
                    batch = conform(batch, schema) if batch.num_rows else batch
                if batch.num_rows:
                    yield batch

    def close(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _made(self) -> _Plan:
        session = self._session
        leaf = self._leaf()
        kept = keep(session, leaf, leaf, self._specs, ROW_BY_ROW | _LEAF)
        rdd = kept.frame._jdf.toArrowBatchRdd(kept.physical)
        root = rdd
        while root.getClass().getSimpleName() == "MapPartitionsRDD":
            root = root.dependencies().head().rdd()
        if root.getClass().getSimpleName() != "ParallelCollectionRDD":
            raise NotKept(f"its rows come from a {root.getClass().getSimpleName()}")
        jvm = session._jvm
        return _Plan(
            kept=kept,
            schema=to_arrow(kept.frame.schema),
            rdd=rdd,
            root=root.id(),
            properties=self._engine.session_properties(),
            bytes=jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B")),
            partition=jvm.org.apache.spark.rdd.ParallelCollectionPartition,
            read_arrow=jvm.PythonSQLUtils.readArrowStreamFromFile,
            write=jvm.PythonRDD.writeIteratorToStream,
            data_stream=jvm.java.io.DataOutputStream,
            file_stream=jvm.java.io.FileOutputStream,
        )

    def _leaf(self) -> DataFrame:
        """A frame over no Arrow batches yet."""
        nothing = pa.RecordBatch.from_arrays(
            [pa.nulls(0, field.type) for field in self._canonical], schema=self._canonical
        )
        # Otherwise its rows would be part of the plan.
        with temporary_conf(self._session, {LOCAL_RELATION_LIMIT: "0b"}):
            return local_frame(self._session, [nothing], self._spark_schema.json())
