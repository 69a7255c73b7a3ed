"""The shared parts of stream readers and writers of PySpark's Python DataSource. They are user code
and run in slots only.
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
from firesteel.plan.source_lines import dumps_without_lines
from firesteel.text import text_of
from taskexecutor.executor.columnar.schemas import conform, from_ddl, to_arrow, to_spark
from taskexecutor.executor.connectors.checks import known_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
    from pyspark.sql.types import StructType

_WRITER = b"firesteel.writer"
BATCH_ROWS = 10_000  # rows per batch of a reader, as in Spark
# Pickled InputPartitions, sent to the readers.
PARTITION_SCHEMA = pa.schema([("partition", pa.binary())])
# Pickled WriterCommitMessages.
MESSAGE_SCHEMA = pa.schema([("subtask", pa.int32()), ("message", pa.binary())])


def create(source: PythonSource | PythonSink) -> DataSource:
    from pyspark.sql.datasource import CaseInsensitiveDict

    return source.data_source(CaseInsensitiveDict(source.options))  # type: ignore[arg-type]


def schema_of(source: PythonSource, data_source: DataSource) -> StructType:
    """Returns the schema given by the program, or else the DataSource's. Raises FiresteelError if
    there is none.
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
    """Returns a DataSourceStreamReader or, for a simple source, a SimpleDataSourceStreamReader.
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
            f"{source.name} returned a {type(made).__name__} to read the stream; "
            f"it must be a {kind.__name__}"
        )
    return made


def stream_writer(
    sink: PythonSink, data_source: DataSource, schema: StructType
) -> DataSourceStreamWriter:
    from pyspark.sql.datasource import DataSourceStreamWriter

    made = data_source.streamWriter(schema, sink.overwrite)
    if not isinstance(made, DataSourceStreamWriter):
        raise FiresteelError(
            f"{sink.name} returned a {type(made).__name__} to write the stream; "
            "it must be a DataSourceStreamWriter or a DataSourceStreamArrowWriter"
        )
    return made


def check_source(source: PythonSource) -> pa.Schema:
    """Creates the source and its reader before data flows, and returns the schema of its rows."""
    data_source = create(source)
    schema = schema_of(source, data_source)
    stream_reader(source, data_source, schema)
    return to_arrow(schema)


def check_sink(sink: PythonSink, schema: pa.Schema | None) -> pa.Schema:
    """Creates the sink and its writer before data flows.

    This one writer is copied to all subtasks that write and commit, as in Spark's driver: its
    attributes may be random, such as the name of a folder, and all subtasks must agree on them. The
    copies are stored with the schema of the commit messages.
    """
    writer = stream_writer(sink, create(sink), to_spark(known_schema(sink.name, schema)))
    try:
        pickled = dumps_without_lines(writer)
    except Exception as error:
        raise FiresteelError(
            f"{sink.name}: its writer cannot be pickled ({text_of(error)});"
            " open resources in write()"
        ) from error
    return MESSAGE_SCHEMA.with_metadata({_WRITER: pickled})


def writer_in(schema: pa.Schema | None) -> Any:
    assert schema is not None and schema.metadata is not None, (
        "analysis ensures that the schema is known"
    )
    return cloudpickle.loads(schema.metadata[_WRITER])


def batches_of(
    rows: Any, schema: StructType, data_source: DataSource, arrow_schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Returns a reader's tuples, Rows or RecordBatches, checked and converted as in PySpark."""
    from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

    for batch in records_to_arrow_batches(iter(rows), BATCH_ROWS, schema, data_source):
        if batch.num_rows:
            yield conform(batch, arrow_schema)


def latest_offset(reader: Any, start: Any) -> Any:
    """Returns the latest offset of a DataSourceStreamReader, with its default read limit. Also
    supports older readers, whose latestOffset takes no arguments.
    """
    if inspect.signature(reader.latestOffset).parameters:
        return reader.latestOffset(start, reader.getDefaultReadLimit())
    return reader.latestOffset()


def offset_text(offset: Any, name: str) -> str:
    """Returns the offset as JSON, in which offsets are compared and stored. Raises FiresteelError
    if it is not JSON.
    """
    try:
        return json.dumps(offset)
    except TypeError as error:
        raise FiresteelError(
            f"{name}: the offset {offset!r} is not JSON ({text_of(error)});"
            " use dicts of strings and numbers"
        ) from error


@contextlib.contextmanager
def user_code(context: RuntimeContext, *, timed: bool = True) -> Iterator[None]:
    """Within it, `TaskContext.get()` has the subtask as its partition, as in Spark's workers."""
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
_users = 0  # number of threads in user code, over all tasks
_users_lock = threading.Lock()


def _count_users(change: int) -> None:
    """Sets the context only while user code runs, because PySpark uses it to distinguish workers
    from drivers.
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
    """Returns a TaskContext that answers by thread, because tasks share a process, which has one
    TaskContext.
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
