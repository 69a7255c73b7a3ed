"""Runs splits of files with a cached plan: any number of files, or ranges of them, without a new
plan and without a Spark job.

The plan's RDD is a chain over Spark's scan. It is computed on the calling thread (more precisely,
its thread in the JVM) for a partition with different files than the plan was made for.

A split is read bundle by bundle: the scan ends when the bundle's time is over, so that the plan
emits everything it holds, such as partial aggregates. The next run of the plan continues where the
files were left. Between two bundles the plan holds nothing, so the number of rows that have been
read is a position, whatever the plan does with them.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Generator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from firesteel.common.file_parts import FilePart
from firesteel.connectors import FileSource
from firesteel.operator import PlanMeter
from firesteel.operators import Spec, WatermarkSpec
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans.composed import empty_frame, event_time_us
from taskexecutor.executor.columnar.cached_plans.observations import RowObserver
from taskexecutor.executor.columnar.cached_plans.reusable_plan import (
    ATTEMPTS,
    ROW_BY_ROW,
    NotReusable,
    ReusablePlan,
    attempted,
    reusable_plan,
)
from taskexecutor.executor.columnar.columns.sink import ColumnSink
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.local_tasks import LocalTask
from taskexecutor.executor.columnar.readers.frames import CheckedRows, read_all, read_files
from taskexecutor.executor.columnar.readers.parts import FileParts
from taskexecutor.executor.columnar.schemas import conform, to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_SCAN = "FileSourceScanExec"
_ALLOWED = ROW_BY_ROW | {_SCAN, "ColumnarToRowExec"}
_LENGTH_BYTES = 4  # of each batch's length prefix
_NO_FILTERS = "[]"  # as Spark shows them
# formats in which each record is one row, whatever is read
FORMATS_OF_ROWS = ("parquet", "orc", "text", "binaryfile")


class FilePlans:
    """The cached plans of one operator's files: one for each set of columns given by paths."""

    def __init__(
        self,
        engine: SparkEngine,
        source: FileSource,
        schema: StructType,
        specs: Sequence[Spec],
        watermarks: WatermarkSpec | None,
        parts: FileParts,
        meter: PlanMeter,
    ) -> None:
        self._engine = engine
        self._meter = meter
        self._source = source
        self._schema = schema
        self._specs = tuple(specs)
        self._watermarks = watermarks
        self._parts = parts
        self._plans: dict[tuple[str, ...], FilePlan] = {}
        self._attempts: dict[tuple[str, ...], int] = {}
        self._obstacle = choose.scan_is_cached(source, engine)

    def plan(self, columns: tuple[str, ...], path: str) -> FilePlan | None:
        """Returns the cached plan for files whose paths give these columns, like `path`; None if
        there is none. Calls functions of the program to make it.
        """
        if self._obstacle:
            self._meter.not_cached(self._obstacle)
            return None
        if columns in self._plans and self._plans[columns].outdated:
            self._plans.pop(columns).close()
            self._attempts[columns] = ATTEMPTS
        attempts = self._attempts.setdefault(columns, ATTEMPTS)
        if columns not in self._plans and attempts:
            self._attempts[columns] = attempts - 1
            plan = attempted(self._meter, lambda: self._made(path))
            if plan is not None:
                self._plans[columns] = plan
        return self._plans.get(columns)

    def close(self) -> None:
        for plan in self._plans.values():
            plan.close()

    def _made(self, path: str) -> FilePlan:
        session: Any = self._engine.session
        observer = RowObserver(self._engine)
        malformed: _Run | None = None
        if self._source.malformed is None:
            leaf = read_files(session, self._source, [path], self._schema)
        else:
            every = read_all(session, self._source, [path], self._schema)
            checked = CheckedRows(self._source, self._schema, every, observer)
            leaf = checked.frame
            rows = checked.malformed
            malformed = self._run_of(reusable_plan(session, rows, rows, (), _ALLOWED))
        if self._watermarks is not None:
            leaf = observer.times(leaf, event_time_us(self._watermarks.column, 0))
        empty = empty_frame(session, self._schema)
        by_arrow = functools.partial(ColumnSink.groups, self._engine)
        run = self._run_of(
            reusable_plan(session, leaf, empty, self._specs, _ALLOWED, by_arrow=by_arrow)
        )
        return FilePlan(run, malformed, observer)

    def _run_of(self, cached: ReusablePlan) -> _Run:
        """Raises NotReusable if the plan has other leaves than the scan, or skips files."""
        leaves = cached.physical.collectLeaves()
        scans = [
            leaf
            for leaf in (leaves.apply(index) for index in range(leaves.size()))
            if leaf.getClass().getSimpleName() == _SCAN
        ]
        if len(scans) != 1:
            raise NotReusable("it does not read each file once")
        if not scans[0].partitionFilters().isEmpty():
            raise NotReusable("it chooses among folders by the columns that their names give")
        scan = self._skipped_rows(scans[0])
        return _Run(self._engine, self._parts, cached, self._meter, scan)

    def _skipped_rows(self, scan: Any) -> str:
        """Describes which rows the scan's readers skip: see `FilePlan.scan`."""
        found = scan.metadata().get("PushedFilters")
        filters = str(found.get()) if found.isDefined() else _NO_FILTERS
        columns = ""
        if self._source.format.lower() not in FORMATS_OF_ROWS:  # a row may fit in some columns only
            columns = ",".join(scan.requiredSchema().fieldNames())
        if filters == _NO_FILTERS and not columns:
            return ""
        return hashlib.sha256(f"{filters};{columns}".encode()).hexdigest()[:16]


class FilePlan:
    """A cached plan. It reads one split at a time, bundle by bundle."""

    def __init__(self, run: _Run, malformed: _Run | None, observer: RowObserver) -> None:
        self._rows = run
        self._malformed = malformed
        self._observer = observer
        self._run = run  # the run that reads the split
        self.frame = run.frame
        self.computes = choose.computed_by(spark=True, grouped=run.cached.grouping is not None)

    def close(self) -> None:
        self._rows.close()
        if self._malformed is not None:
            self._malformed.close()

    @property
    def outdated(self) -> bool:
        """See ReusablePlan."""
        return self._rows.cached.outdated

    def scan(self, *, malformed: bool) -> str:
        """Describes which rows the files' readers skip by themselves. Positions in a split count
        the rows that readers return, so they are valid for plans with the same value. Empty: no
        rows are skipped.
        """
        run = self._malformed if malformed else self._rows
        return run.scan if run is not None else ""

    @property
    def state(self) -> ReadState:
        """Returns where the last bundle ended."""
        return self._run.state

    @property
    def latest_us(self) -> int | None:
        """The latest event time of the last bundle, if any."""
        return self._observer.latest_us

    @property
    def malformed_rows(self) -> int:
        """The number of malformed rows in the last bundle."""
        return self._observer.malformed_rows

    def begin(
        self, parts: Sequence[FilePart], group: str, *, rows: int = 0, malformed: bool = False
    ) -> None:
        """Starts to read parts of files, after the first `rows` of the first part.

        `malformed`: reads the malformed rows instead of the results, for `emit_malformed`.
        """
        run = self._malformed if malformed else self._rows
        assert run is not None
        self._run = run
        run.begin(parts, group, rows)

    def bundle(
        self, schema: pa.Schema, group: str, read_s: float
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields the results of the rows that are read in this time, or of all remaining rows if
        they end earlier, as batches of exactly `schema`, each computed on demand. Must be
        exhausted.
        """
        self._observer.reset()
        self._rows.meter.ran_cached()
        return self._rows.bundle(schema, group, read_s)

    def malformed_bundle(self, group: str, read_s: float) -> Generator[pa.RecordBatch, None, None]:
        """Yields the malformed rows that are read in this time."""
        assert self._malformed is not None
        return self._malformed.bundle(self._malformed.schema, group, read_s)

    def end(self) -> None:
        """Closes the files, whether or not they were read completely."""
        self._run.end()


class FileRows:
    """The rows of parts of files as a DataFrame, for plans that are not cached. Spark reads all
    columns, even those that the plan does not need.
    """

    def __init__(
        self,
        engine: SparkEngine,
        source: FileSource,
        schema: StructType,
        parts: FileParts,
    ) -> None:
        self._engine = engine
        self._source = source
        self._schema = schema
        self._parts = parts
        self._type = engine.code.type("FiresteelFileRDD")
        self._scans: dict[tuple[str, ...], tuple[DataFrame, Any]] = {}

    def frame(self, columns: tuple[str, ...], parts: Sequence[FilePart]) -> tuple[DataFrame, int]:
        """Returns the DataFrame and the id of its RDD. `columns` are those given by the files'
        paths.
        """
        from pyspark.sql import DataFrame

        session: Any = self._engine.session
        if columns not in self._scans:
            read = read_files if self._source.malformed is None else read_all
            found = read(session, self._source, [parts[0].path], self._schema)
            rdd = found._jdf.queryExecution().executedPlan().execute()
            _root_of(rdd)
            self._scans[columns] = found, rdd
        scan, rdd = self._scans[columns]
        tasks = _divided(parts, self._engine.cores)
        partitions = session._sc._gateway.new_array(
            session._jvm.org.apache.spark.Partition, len(tasks)
        )
        for index, share in enumerate(tasks):
            partitions[index] = self._parts.partition(share, index)
        rows = self._type(session._jsc.sc(), rdd, partitions)
        java = session._jsparkSession.internalCreateDataFrame(rows, scan._jdf.schema(), False)
        return DataFrame(java, session), rows.id()


def _root_of(rdd: Any) -> Any:
    """Returns the root of the chain. An RDD in a job must know its parents, which it does once they
    have been requested.
    """
    while rdd.getClass().getSimpleName() == "MapPartitionsRDD":
        rdd = rdd.dependencies().head().rdd()
    return rdd


def _divided(parts: Sequence[FilePart], count: int) -> list[list[FilePart]]:
    """Divides whole files, or one range, into about equal shares, in order."""
    first = parts[0]
    if len(parts) == 1 and not first.whole:  # a range of a file that can be divided
        cuts = [first.start + first.length * piece // count for piece in range(count + 1)]
        return [[first._replace(start=start, length=end - start)] for start, end in pairwise(cuts)]
    count = min(count, len(parts))
    bounds = [len(parts) * share // count for share in range(count + 1)]
    return [list(parts[start:end]) for start, end in pairwise(bounds)]


class ReadState(NamedTuple):
    part: int  # the first part that has not been read completely
    rows: int  # rows of it that have been read
    rows_read: int  # in the bundle


class _Run:
    """The JVM objects that run one plan."""

    def __init__(
        self,
        engine: SparkEngine,
        parts: FileParts,
        cached: ReusablePlan,
        meter: PlanMeter,
        scan: str,
    ) -> None:
        self.meter = meter
        self.frame = cached.frame
        self.cached = cached
        self.scan = scan
        self.schema = to_arrow(cached.frame.schema)
        self.state = ReadState(0, 0, 0)
        self._engine = engine
        self._parts = parts
        if ColumnSink.suits(engine, cached.rows.schema):
            self._sink: ColumnSink | None = ColumnSink(
                engine, cached.rows.schema, grouping=cached.grouping
            )
            self._rdd = self._sink.fuse(cached.physical).execute()
        else:
            self._sink = None
            self._rdd = cached.frame._jdf.toArrowBatchRdd(cached.physical)
            self._path = engine.bundles.path()
        root = _root_of(self._rdd)
        kind = root.getClass().getSimpleName()
        if kind != "FileScanRDD":
            raise NotReusable(f"its rows come from a {kind}")
        self._split = engine.code.type("FiresteelFileSplit")(
            root, engine.session_properties(), *engine.local_tasks.resources
        )

    def begin(self, parts: Sequence[FilePart], group: str, rows: int) -> None:
        with self.meter.converting:
            partition = self._parts.partition(parts)
        # Cancelling the group ends a bundle, but not the task that reads its files.
        self._split.begin(partition, 0, rows, f"{group}-files")
        self.state = ReadState(0, 0, 0)

    def bundle(
        self, schema: pa.Schema, group: str, read_s: float
    ) -> Generator[pa.RecordBatch, None, None]:
        task = LocalTask(self._split.bundle(group, int(read_s * 1e9)))
        try:
            rows = self._split.rows(self._rdd)
            batches = (
                self._written(rows, task) if self._sink is None else self._sink.batches(rows, task)
            )
            for batch in batches:
                with self.meter.converting:
                    batch = conform(batch, schema)
                yield batch
            self.state = ReadState(*struct.unpack("<3q", self._split.state()))
        finally:
            task.java.end()

    def end(self) -> None:
        self._split.end()

    def _written(self, rows: Any, task: LocalTask) -> Generator[pa.RecordBatch, None, None]:
        """Yields rows of types that only Spark's own Arrow writer supports."""
        jvm: Any = self._engine.session._jvm
        while True:
            with task:
                if not rows.hasNext():
                    return
                stream = jvm.java.io.DataOutputStream(jvm.java.io.FileOutputStream(str(self._path)))
                try:
                    jvm.PythonRDD.writeIteratorToStream(rows.take(1), stream)
                finally:
                    stream.close()
            content = pa.py_buffer(self._path.read_bytes())
            batch = pa.ipc.read_record_batch(content[_LENGTH_BYTES:], self.schema)
            if batch.num_rows:
                yield batch

    def close(self) -> None:
        with suppress(Exception):  # the JVM may have ended
            self._split.end()
        if self._sink is not None:
            self._sink.close()
        else:
            self._path.unlink(missing_ok=True)
