"""The static tables of the slot's job: each is read once, by the first function that requests it,
or once per refresh interval, by a separate thread.

A version's rows are part of the plans that join them. A refresh replaces the version, never its
rows, so a bundle sees a single version. A failed refresh is retried a few times; then the next
bundle reads the table itself, and fails with the reason.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from firesteel import static_table
from firesteel.common.error_report import summary_of
from firesteel.common.logs import get_logger
from firesteel.common.units import MIB, shortest_size, size
from firesteel.errors import FiresteelError
from firesteel.static_table import StaticTable
from firesteel.text import text_of
from taskexecutor.executor.columnar.cached_plans.reusable_plan import (
    LOCAL_RELATION_LIMIT,
    temporary_conf,
)
from taskexecutor.executor.columnar.cached_plans.table_versions import TableVersion, pinned_here
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import collect, local_frame
from taskexecutor.executor.columnar.schemas import shown, to_arrow, to_spark
from taskexecutor.executor.job_threads import Repeating
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REFRESH_ATTEMPTS = 3
RETRY_S = 5.0  # at most; less if the interval is shorter
_KEPT_BYTES = 1 * MIB  # of a table whose rows stay in the slot, in plans for later jobs

_log = get_logger(__name__)


class TableStatus(NamedTuple):
    """The status of a table whose rows are available."""

    name: str
    age_s: float  # since the start of the read that returned its rows
    failed_refreshes: int  # since the job started here


class StaticTables:
    """The tables of one job in a slot; the functions of the program find them until they are
    closed.
    """

    def __init__(self, engine: SparkEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._held: dict[str, _HeldTable] = {}
        static_table.provide(self.dataframe)

    def dataframe(self, table: StaticTable) -> DataFrame:
        """Returns the version that this thread has pinned, or the latest one."""
        pins = pinned_here()
        if pins is not None and (version := pins.get(table.id)) is not None:
            return version.frame
        with self._lock:
            held = self._held.get(table.id)
            if held is None:
                held = self._held[table.id] = _HeldTable(self._engine, table)
        version = held.version()
        if pins is not None:
            pins[table.id] = version
        return version.frame

    def status(self) -> list[TableStatus]:
        """Returns the status of all tables, from any thread. Does not wait for a read."""
        with self._lock:
            held = list(self._held.values())
        return [status for each in held if (status := each.status()) is not None]

    def close(self) -> None:
        """Ends the refreshes, without waiting for a current one."""
        static_table.provide(None)
        with self._lock:
            for held in self._held.values():
                held.close()
            self._held.clear()


class _HeldTable:
    def __init__(self, engine: SparkEngine, table: StaticTable) -> None:
        self._engine = engine
        self._table = table
        self._schema: pa.Schema | None = None  # of the first read
        self._reading = threading.Lock()
        self._version: TableVersion | None = None
        self._failures = 0  # consecutive failed refreshes
        self._all_failures = 0
        self._read_s: float | None = None  # start of the read that returned the rows
        self._refreshing: Repeating | None = None

    def version(self) -> TableVersion:
        """Returns the version, and reads the table if necessary; other callers wait."""
        with self._reading:
            if self._version is None:
                self._version = self._read()
                if self._table.refresh_s is not None and self._refreshing is None:
                    self._refreshing = Repeating(f"refresh {self._table.name}", self._refresh)
                    self._refreshing.start(self._table.refresh_s)
            return self._version

    def status(self) -> TableStatus | None:
        if self._read_s is None:
            return None
        name = self._table.name or self._table.place
        return TableStatus(name, time.monotonic() - self._read_s, self._all_failures)

    def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.stop()

    def _refresh(self) -> float:
        """Returns the pause until the next refresh, in seconds."""
        refresh_s = self._table.refresh_s
        assert refresh_s is not None
        assert self._refreshing is not None
        if self._version is None:
            return refresh_s  # the next bundle that needs it reads it
        group = f"firesteel-static-{self._table.id}"
        stopped = self._refreshing.stopped
        new: TableVersion | None = None
        try:
            with self._engine.job_group(group, str(self._table), stopped.is_set):
                new = self._read()
        except Exception as error:
            if stopped.is_set():
                return refresh_s
            self._failures += 1
            self._all_failures += 1
            _log.warning(
                "a table could not be refreshed", table=str(self._table), error=text_of(error)
            )
            if self._failures < REFRESH_ATTEMPTS:
                return min(RETRY_S, refresh_s)
        self._failures = 0
        with self._reading:
            old, self._version = self._version, new
        if old is not None and old is not new:
            old.superseded = True
        return refresh_s

    def _read(self) -> TableVersion:
        began_s = time.monotonic()
        try:
            version = self._read_rows(_frame(self._table, self._engine.session))
        except Exception as error:
            raise FiresteelError(f"{self._table}: {summary_of(error)}") from error
        self._read_s = began_s
        return version

    def _read_rows(self, frame: DataFrame) -> TableVersion:
        spark_schema = frame.schema
        schema = to_arrow(spark_schema)
        if self._schema is not None and not self._schema.equals(schema):
            raise FiresteelError(
                f"its columns have changed: they were {shown(self._schema)}, and now are"
                f" {shown(schema)}; declare a schema where the table is read"
            )
        batches = self._collected(frame, schema)
        if not batches and not self._table.allow_empty:
            raise FiresteelError(
                "it has no rows; check the data that its function reads, or pass allow_empty=True "
                "if that may happen"
            )
        canonical = to_arrow(to_spark(schema))
        table = pa.Table.from_batches(batches, schema).cast(canonical)
        version = self._version_of(table, spark_schema.json())
        self._schema = schema
        _log.info(
            "a table was read", table=str(self._table), rows=table.num_rows, bytes=table.nbytes
        )
        return version

    def _version_of(self, table: pa.Table, spark_schema_json: str) -> TableVersion:
        """Returns a version that a plan already holds, or a new one."""
        if table.nbytes > _KEPT_BYTES:
            return self._new_version(table, spark_schema_json, shared=False)
        versions, key = self._engine.plan_cache.table_versions, (spark_schema_json, _digest(table))
        found: TableVersion | None = versions.get(key)
        if found is None or found.superseded:
            found = versions[key] = self._new_version(table, spark_schema_json, shared=True)
        return found

    def _new_version(
        self, table: pa.Table, spark_schema_json: str, *, shared: bool
    ) -> TableVersion:
        from pyspark.sql import functions as sql

        session: Any = self._engine.session
        # Even a table without rows has a batch; otherwise there would be no RDD.
        rows = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        # Arrow batches in the JVM: as rows of a local relation, they would take four times the
        # memory.
        with temporary_conf(session, {LOCAL_RELATION_LIMIT: "0b"}):
            held = local_frame(session, rows, spark_schema_json)
        rdd_id = held._jdf.queryExecution().analyzed().rdd().id()
        return TableVersion(sql.broadcast(held), rdd_id, shared=shared)

    def _collected(self, frame: DataFrame, schema: pa.Schema) -> list[pa.RecordBatch]:
        batches = []
        size_bytes = 0
        unmetered = PlanMeter(TaskClock())
        with closing(collect(frame, schema, unmetered)) as rows:
            for batch in rows:
                size_bytes += batch.nbytes
                if size_bytes > self._table.max_bytes:
                    raise FiresteelError(
                        f"it has more than {shortest_size(self._table.max_bytes)} of rows"
                        f" (max_size; {size(size_bytes)} so far): select only the columns and rows"
                        " that are needed, raise max_size and the slots' heap"
                        " (taskmanager.slot.heap.size), or read it as a stream and join the two"
                        ' with join(other, on="key")'
                    )
                batches.append(batch)
        return batches


def _digest(table: pa.Table) -> bytes:
    """Returns a digest that is equal for the same rows in the same order, bit by bit."""
    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return hashlib.sha256(content.getvalue()).digest()


@contextmanager
def schemas_only(session: Any) -> Iterator[None]:
    """Inside the `with`, this thread sees tables that are not read."""
    frames: dict[str, DataFrame] = {}

    def frame(table: StaticTable) -> DataFrame:
        if table.id not in frames:
            try:
                frames[table.id] = _frame(table, session)
            except Exception as error:
                raise FiresteelError(f"{table}: {summary_of(error)}") from error
        return frames[table.id]

    with static_table.provided_in_thread(frame):
        yield


def _frame(table: StaticTable, session: Any) -> DataFrame:
    from pyspark.sql import DataFrame

    frame = table.read(session)
    if not isinstance(frame, DataFrame):
        raise FiresteelError(
            f"its function returned {type(frame).__name__}; it must return a"
            " pyspark.sql.DataFrame, such as spark.read.parquet(path)"
        )
    if frame.isStreaming:
        raise FiresteelError(
            "its function returned a streaming DataFrame; read it with spark.read, not with"
            " spark.readStream"
        )
    return frame
