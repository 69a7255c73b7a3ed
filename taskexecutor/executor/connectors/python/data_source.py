"""PySpark's Python DataSource, as it is: what is common to its stream readers and writers here.
User code: runs in slots only.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from firesteel.connectors import PythonSink, PythonSource
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext, TaskInfo
from taskexecutor.executor.spark.schemas import conform, from_ddl, to_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
    from pyspark.sql.types import StructType

_WRITER = b"firesteel.writer"
BATCH_ROWS = 10_000  # rows of a reader go on in batches of so many, as in Spark
PARTITION_SCHEMA = pa.schema(
    [("partition", pa.binary())]
)  # pickled InputPartitions, on their way to the readers
MESSAGE_SCHEMA = pa.schema(
    [("subtask", pa.int32()), ("message", pa.binary())]
)  # pickled WriterCommitMessages


def create(source: PythonSource | PythonSink) -> DataSource:
    from pyspark.sql.datasource import CaseInsensitiveDict

    return source.data_source(CaseInsensitiveDict(source.options))  # type: ignore[arg-type]


def schema_of(source: PythonSource, data_source: DataSource) -> StructType:
    """The one the program gives, or else what the DataSource says. Raises FiresteelError if there
    is none.
    """
    from pyspark.sql.types import StructType

    schema = source.schema
    if schema is None:
        try:
            schema = data_source.schema()
        except NotImplementedError as error:
            raise FiresteelError(
                f"{source.name} has no schema(): give PythonSource a schema, or implement it"
            ) from error
    if isinstance(schema, str):
        schema = from_ddl(schema)
    if isinstance(schema, pa.Schema):
        schema = to_spark(schema)
    if not isinstance(schema, StructType):
        raise FiresteelError(
            f"the schema of {source.name} is {schema!r}; it must be a DDL string or a StructType"
        )
    return schema


def stream_reader(source: PythonSource, data_source: DataSource, schema: StructType) -> Any:
    """A DataSourceStreamReader, or a SimpleDataSourceStreamReader where the program relies on that.
    Raises FiresteelError.
    """
    from pyspark.sql.datasource import DataSourceStreamReader, SimpleDataSourceStreamReader

    made: Any
    if source.is_simple:
        made, kind = data_source.simpleStreamReader(schema), SimpleDataSourceStreamReader
    else:
        made, kind = data_source.streamReader(schema), DataSourceStreamReader  # type: ignore[assignment]
    if not isinstance(made, kind):
        raise FiresteelError(
            f"{source.name} made a {type(made).__name__} to read the stream; it must be a {kind.__name__}"
        )
    return made


def stream_writer(
    sink: PythonSink, data_source: DataSource, schema: StructType
) -> DataSourceStreamWriter:
    from pyspark.sql.datasource import DataSourceStreamWriter

    made = data_source.streamWriter(schema, sink.overwrite)
    if not isinstance(made, DataSourceStreamWriter):
        raise FiresteelError(
            f"{sink.name} made a {type(made).__name__} to write the stream; it must be a DataSourceStreamWriter "
            "or a DataSourceStreamArrowWriter"
        )
    return made


def check_source(source: PythonSource) -> pa.Schema:
    """Before data flows: it can be made, and so can its reader. Returns the rows' schema."""
    data_source = create(source)
    schema = schema_of(source, data_source)
    stream_reader(source, data_source, schema)
    return to_arrow(schema)


def check_sink(sink: PythonSink, schema: pa.Schema | None) -> pa.Schema:
    """Before data flows: it can be made, and so can its writer.

    One writer is made, here, and copied to all who write and commit, as Spark's driver does it:
    what it holds may be drawn by lot, such as the name of a folder, and they must agree on it. The
    copies travel with the schema of the commit messages.
    """
    if schema is None:
        raise FiresteelError(
            f"{sink.name}: the schema of its input is not known; declare one on the operator before it"
        )
    writer = stream_writer(sink, create(sink), to_spark(schema))
    try:
        pickled = cloudpickle.dumps(writer)
    except Exception as error:
        raise FiresteelError(
            f"{sink.name}: its writer cannot be pickled ({error}); open what it needs in write()"
        ) from error
    return MESSAGE_SCHEMA.with_metadata({_WRITER: pickled})


def writer_in(schema: pa.Schema | None) -> Any:
    assert schema is not None and schema.metadata is not None, "analysis makes sure of it"
    return cloudpickle.loads(schema.metadata[_WRITER])


def batches_of(
    rows: Any, schema: StructType, data_source: DataSource, arrow_schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """What a reader yields - tuples, Rows or RecordBatches - checked and converted as PySpark does
    it.
    """
    from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

    for batch in records_to_arrow_batches(iter(rows), BATCH_ROWS, schema, data_source):
        if batch.num_rows:
            yield conform(batch, arrow_schema)


def latest_offset(reader: Any, start: Any) -> Any:
    """Of a DataSourceStreamReader, with its own read limit; also of the older kind whose
    latestOffset takes no arguments.
    """
    if inspect.signature(reader.latestOffset).parameters:
        return reader.latestOffset(start, reader.getDefaultReadLimit())
    return reader.latestOffset()


def offset_text(offset: Any, name: str) -> str:
    """Offsets are compared and kept as JSON. Raises FiresteelError for one that is none."""
    try:
        return json.dumps(offset)
    except TypeError as error:
        raise FiresteelError(
            f"{name}: the offset {offset!r} is not JSON ({error}); use dicts of strings and numbers"
        ) from error


@contextlib.contextmanager
def user_code(context: RuntimeContext, *, timed: bool = True) -> Iterator[None]:
    """In it, `TaskContext.get()` tells the subtask as partition, as it does in Spark's Python
    workers.
    """
    before = getattr(_current, "context", None)
    _current.context = context
    _count_users(1)
    try:
        with context.time("python") if timed else contextlib.nullcontext():
            yield
    finally:
        _count_users(-1)
        _current.context = before


_current = threading.local()
_users = 0  # threads in user code, all tasks together
_users_lock = threading.Lock()


def _count_users(change: int) -> None:
    """The TaskContext is there only while somebody may ask for it: by it, PySpark tells a worker
    from a driver.
    """
    global _users
    from pyspark import TaskContext

    with _users_lock:
        _users += change
        if _users == 0:
            TaskContext._setTaskContext(None)
        elif TaskContext._taskContext is None:
            TaskContext._setTaskContext(object.__new__(_by_thread()))


@functools.cache
def _by_thread() -> type:
    """PySpark has one TaskContext per process, but here tasks share one: it answers according to
    the thread.
    """
    from pyspark import TaskContext

    class ThreadTaskContext(TaskContext):
        def partitionId(self) -> int:
            return _info().subtask

        def attemptNumber(self) -> int:
            return _info().attempt

        def taskAttemptId(self) -> int:
            return int(_info().attempt_id[:15], 16)

        def stageId(self) -> int:
            return 0

    return ThreadTaskContext


def _info() -> TaskInfo:
    context: RuntimeContext | None = getattr(_current, "context", None)
    if context is None:
        raise RuntimeError("there is no task in this thread: TaskContext is for read() and write()")
    return context.task
