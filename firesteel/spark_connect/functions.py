"""Functions of a PySpark program in the slots: unpickled, and called for batches and rows.

The program has pickled them for Spark Connect. Slots have classic sessions, so what a function
refers to of Connect becomes its classic counterpart: a session is the slot's, and a UDF one of
classic PySpark.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from firesteel.common.output import write_results
from firesteel.connectors import Sink, SinkWriter
from firesteel.errors import FiresteelError
from firesteel.spark_connect.outer_frames import OuterFrame

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row

    from firesteel.operator import RuntimeContext

_LINE = "-" * 43
_BATCH_ID = "streaming.sql.batchId"  # the local property in which `foreach` finds its epoch


@dataclass(frozen=True)
class PickledFunction:
    """A function as the client of Spark Connect has pickled it. It is unpickled in the slot, where
    `frames` take the places of the DataFrames in it.
    """

    data: bytes
    frames: tuple[OuterFrame, ...] = ()

    @cached_property
    def function(self) -> Any:
        return _Unpickler(io.BytesIO(self.data), self.frames).load()

    @property
    def names(self) -> frozenset[str]:
        """The names in the pickle, among which are those of all modules that it needs."""
        strings = {
            argument
            for _, argument, _ in pickletools.genops(self.data)
            if isinstance(argument, str)
        }
        words = {word for text in strings for word in text.split()}  # GLOBAL has two words
        return frozenset(word.partition(".")[0] for word in words if _is_module_name(word))


def _is_module_name(word: str) -> bool:
    return all(part.isidentifier() for part in word.split("."))


class _Sessions:
    """Stands for the class of Spark Connect's sessions in functions that refer to one."""

    @staticmethod
    def _getActiveSessionIfMatches(session_id: str) -> Any:
        return _session()

    def __getattr__(self, name: str) -> Any:
        from pyspark.sql import SparkSession

        return getattr(SparkSession, name)


class _TaskContext:
    """The TaskContext of a call for the rows of a partition and epoch."""

    def __init__(self, partition: int, epoch: int) -> None:
        self._partition = partition
        self._properties = {_BATCH_ID: str(epoch)}

    def partitionId(self) -> int:
        return self._partition

    def getLocalProperty(self, key: str) -> str | None:
        return self._properties.get(key)


class _TaskContexts:
    """Stands for the class TaskContext, whose context is one per process: a slot has several
    tasks.
    """

    @staticmethod
    def get() -> _TaskContext | None:
        return getattr(_calls, "context", None)


_calls = threading.local()  # of the thread's call: `context`, and `session` of its DataFrame


def _session() -> Any:
    """Returns the session of the call."""
    from pyspark.sql import SparkSession

    return getattr(_calls, "session", SparkSession._instantiatedSession)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, frames: Sequence[OuterFrame]) -> None:
        super().__init__(data)
        self._frames = iter(frames)

    def _frame(self, *_: Any) -> Any:
        found = next(self._frames, None)
        if found is None:
            raise FiresteelError(
                "the function refers to a DataFrame outside of it; read it inside the function,"
                " with df.sparkSession.read, or join it before writeStream"
            )
        return found.frame(_session())

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "pyspark.sql.connect.session", "SparkSession":
                return _Sessions()
            case "pyspark.sql.connect.dataframe", "DataFrame":
                return self._frame
            case "pyspark.taskcontext", "TaskContext":
                return _TaskContexts
            case "pyspark.sql.connect.udf", "UserDefinedFunction":
                module = "pyspark.sql.udf"
        return super().find_class(module, name)


@dataclass(frozen=True)
class OnBatches:
    """Calls `function(frame, batch_id)` with `before(frame)`, if there is a `before`."""

    function: Callable[[DataFrame, int], None]
    before: Callable[[DataFrame], DataFrame]

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.function(self.before(frame), batch_id)


@dataclass(frozen=True)
class Renamed:
    """Gives the columns of a batch their names in the program, which may repeat."""

    names: tuple[str, ...]

    def __call__(self, frame: DataFrame) -> DataFrame:
        return frame.toDF(*self.names)


@dataclass(frozen=True)
class ForeachBatchFunction:
    """The function of `foreachBatch`."""

    pickled: PickledFunction

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        from firesteel.spark_connect import kafka_table

        kafka_table.accept_in_functions()
        _calls.session = frame.sparkSession
        try:
            self.pickled.function(frame, batch_id)
        finally:
            del _calls.session


@dataclass(frozen=True)
class Console:
    """Prints batches as Spark's console sink does."""

    rows: int
    truncate: bool

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        table = frame._show_string(self.rows, self.truncate)  # type: ignore[operator]
        write_results(f"{_LINE}\nBatch: {batch_id}\n{_LINE}\n{table}\n")


@dataclass(frozen=True)
class ForeachWriter:
    """The function or object of `foreach`, for the rows of a partition and epoch."""

    pickled: PickledFunction

    def __call__(self, rows: Sequence[Row], partition: int, epoch: int) -> None:
        self.call(iter(rows), partition, epoch)

    def call(self, rows: Iterator[Row], partition: int, epoch: int) -> None:
        function, *_ = self.pickled.function
        _calls.context = _TaskContext(partition, epoch)
        try:
            function(partition, rows)
        finally:
            del _calls.context

    @property
    def is_object(self) -> bool:
        """Whether it is an object with `process`, and perhaps `open` and `close`."""
        return b"func_with_open_process_close" in self.pickled.data


@dataclass(frozen=True, slots=True)
class ForeachFunctionSink(Sink):
    """Calls a function of `foreach` with each row as it arrives."""

    writer: ForeachWriter

    @property
    def display_name(self) -> str:
        return "Foreach"

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        return _RowWriter(self.writer, context)


class _RowWriter(SinkWriter):
    def __init__(self, writer: ForeachWriter, context: RuntimeContext) -> None:
        self._writer = writer
        self._partition = context.task.subtask

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow
        from pyspark.sql.conversion import ArrowTableToRowsConversion
        from pyspark.sql.pandas.types import from_arrow_schema

        table = pyarrow.Table.from_batches([batch])
        rows = ArrowTableToRowsConversion.convert(table, from_arrow_schema(batch.schema))
        self._writer.call(iter(rows), self._partition, 0)

    def prepare(self) -> tuple[()]:
        return ()
