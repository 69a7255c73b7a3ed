"""Transfers bundles of rows to and from the JVM, in the cheapest way for their size.

In: a few rows as a local relation, which Spark reads without a job; more rows as uncompressed
Parquet in shared memory. Out: Spark's Arrow collect, read as a stream, so that this process never
holds a large result as a whole; or files that Spark's tasks write, so that the JVM does not either.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from firesteel.common.process import temporary
from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from firesteel.operator import PlanMeter
from taskexecutor.executor.columnar.jvm.code import Code
from taskexecutor.executor.columnar.jvm.conditions import innermost
from taskexecutor.executor.columnar.schemas import conform, fits_parquet, to_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCAL_ROWS = 2_000
LOCAL_BYTES = 256 * 1024
_GROUP_BYTES = 8 * MIB  # Spark has up to 4,096 rows of a row group in the heap at a time
BATCH_ROWS = 65_536  # of results, maximum


class BundleStore:
    """This process's folder in shared memory. The TaskExecutor removes it if this process dies
    (`temporary.sweep`).
    """

    def __init__(self) -> None:
        base = temporary.SHARED_MEMORY
        self.folder = temporary.make(
            f"bundles-{os.getpid()}", base if os.access(base, os.W_OK) else None
        )
        self._count = 0

    def path(self) -> Path:
        self._count += 1
        return self.folder / f"{self._count}.parquet"

    def close(self) -> None:
        temporary.remove(self.folder)


class BundleLoader:
    """Loads batches of one schema into Spark. One per operator: it converts the schema once."""

    def __init__(self, session: SparkSession, store: BundleStore, schema: pa.Schema) -> None:
        self._session = session
        self._store = store
        self._schema = schema
        self._spark_schema = to_spark(schema)
        self._spark_schema_json = self._spark_schema.json()
        self._canonical = to_arrow(self._spark_schema)
        # Executors on other machines cannot read this machine's shared memory.
        self._parquet = fits_parquet(schema) and str(session.sparkContext.master).startswith(
            "local"
        )

    @contextlib.contextmanager
    def dataframe(self, batches: Sequence[pa.RecordBatch]) -> Iterator[DataFrame]:
        """Returns the rows as a DataFrame, which is valid inside the `with` only."""
        rows = sum(batch.num_rows for batch in batches)
        size_bytes = sum(batch.nbytes for batch in batches)
        table = pa.Table.from_batches(
            [conform(batch, self._schema) for batch in batches], self._schema
        )
        if not self._parquet or (rows <= LOCAL_ROWS and size_bytes <= LOCAL_BYTES):
            yield self._local(table)
            return
        path = self._store.path()
        try:
            with writing(path, size_bytes):
                pq.write_table(
                    table,
                    path,
                    compression="none",
                    use_dictionary=False,
                    write_statistics=False,
                    store_schema=False,
                    row_group_size=max(1, rows * _GROUP_BYTES // max(1, size_bytes)),
                )
            yield self._session.read.schema(self._spark_schema).parquet(str(path))
        finally:
            path.unlink(missing_ok=True)

    def _local(self, table: pa.Table) -> DataFrame:
        if not table.num_columns:
            return self._session.createDataFrame(table, schema=self._spark_schema)
        return local_frame(
            self._session, table.cast(self._canonical).to_batches(), self._spark_schema_json
        )


def local_frame(session: Any, batches: list[pa.RecordBatch], spark_schema_json: str) -> DataFrame:
    """Like PySpark's createDataFrame, but does not request settings from the JVM each time."""
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    functions = session._jvm.PythonSQLUtils
    rows = session._sc._serialize_to_jvm(
        batches,
        ArrowStreamSerializer(),
        functions.readArrowStreamFromFile,
        session._jvm.ArrowIteratorServer,
    )
    return DataFrame(
        functions.toDataFrame(rows, spark_schema_json, session._jsparkSession), session
    )


@contextlib.contextmanager
def writing(path: Path, size_bytes: int) -> Iterator[None]:
    """Converts errors of the operating system to FiresteelError."""
    try:
        yield
    except OSError as error:
        raise FiresteelError(
            f"cannot write a bundle of {size_bytes} bytes to {path}: {error.strerror or error}"
        ) from error


def collect(
    frame: DataFrame, schema: pa.Schema, meter: PlanMeter
) -> Generator[pa.RecordBatch, None, None]:
    """Runs the plan and yields its rows in order, in batches of exactly `schema`, none of them
    empty. Closing the generator abandons the rest.

    It fetches one partition at a time while Spark computes the next. So Spark holds at most two
    partitions for a slow reader, and never blocks while writing one, which would stop all jobs of
    the slot, including those that the reader's consumers wait for.
    """
    from pyspark.util import _create_local_socket  # as PySpark's own toLocalIterator

    session: Any = frame.sparkSession
    with meter.planning:
        rows = in_arrow(frame, BATCH_ROWS)
    port, secret, server = session._jvm.PythonRDD.toLocalIteratorAndServe(rows, True)
    arrow_schema = to_arrow(frame.schema)
    file: Any
    file, sock = _create_local_socket((port, secret))
    try:
        while _next_partition(file):
            while (size := _read_int(file)) != _END_OF_PARTITION:
                content = _read(file, size)
                with meter.converting:
                    batch = pa.ipc.read_record_batch(pa.py_buffer(content), arrow_schema)
                    batch = conform(batch, schema) if batch.num_rows else batch
                if batch.num_rows:
                    yield batch
        with unwrapped():
            server.getResult()  # raises the plan's error
    finally:
        _close(file, sock)


def in_arrow(frame: DataFrame, batch_rows: int) -> Any:
    """Returns an RDD of the rows as Arrow messages."""
    # structs' fields have distinct names; no large_string
    return frame._jdf.toArrowBatchRdd(batch_rows, "UTC", True, False)


_END_OF_PARTITION = -1


def _next_partition(file: Any) -> bool:
    """Requests the next partition. Returns False if there is none, or the plan has failed."""
    file.write((1).to_bytes(4, "big"))
    file.flush()
    return _read_int(file) == 1


def _read_int(file: Any) -> int:
    return int.from_bytes(_read(file, 4), "big", signed=True)


def _read(file: Any, size: int) -> bytes:
    content: bytes = file.read(size)
    if len(content) < size:
        raise EOFError("Spark's result ended too early")
    return content


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Raises the error of the plan's task itself, without the wrappers of waiting threads."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import UnknownException, convert_exception

    try:
        yield
    except Py4JJavaError as error:
        converted = convert_exception(innermost(error.java_exception))
        if isinstance(converted, UnknownException):
            raise
        raise converted from None


def _close(file: Any, sock: Any) -> None:
    for closable in (file, sock):
        with contextlib.suppress(OSError):
            closable.close()


_FILE_BATCH_ROWS = 8_192  # a batch is in the heap several times while it is written


def collect_in_files(
    frame: DataFrame, schema: pa.Schema, meter: PlanMeter, code: Code, folder: Path
) -> Generator[pa.RecordBatch, None, None]:
    """Like `collect`, for results of any size: Spark writes them to files in `folder` before the
    first one is read, and has a batch of each partition in its heap. A caller that abandons the
    rest removes the files.

    Raises the plan's error, with the file's name if the disk is full.
    """
    with meter.planning:
        spill = code.type("FiresteelResultFiles")(str(folder))
        rows = in_arrow(frame, _FILE_BATCH_ROWS).toJavaRDD()
        written = rows.mapPartitionsWithIndex(spill, False)
    with unwrapped():
        paths = [Path(path) for path in written.collect()]
    arrow_schema = to_arrow(frame.schema)
    for path in paths:
        with pa.OSFile(str(path)) as file:
            while file.tell() < file.size():
                with meter.converting:
                    message = pa.ipc.read_message(file)
                    batch = pa.ipc.read_record_batch(message, arrow_schema)
                    batch = conform(batch, schema) if batch.num_rows else batch
                if batch.num_rows:
                    yield batch
        path.unlink()
