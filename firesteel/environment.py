"""Environment: builds a program and executes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firesteel.common.config import options
from firesteel.common.job_graph import JobGraph, Partitioner
from firesteel.common.resources import ResourceProfile
from firesteel.connectors import SequenceSource, Source
from firesteel.datastream import DataStream, Upstream
from firesteel.durations import Duration
from firesteel.errors import InvalidProgram
from firesteel.latest_operator import positive
from firesteel.missing_methods import no_such_member
from firesteel.operators import SourceSpec
from firesteel.plan import deferred_columns
from firesteel.plan.local_rows import (
    LocalTable,
    table_of_arrow,
    table_of_frame,
    table_of_rows,
)
from firesteel.plan.stream_graph import StreamEdge
from firesteel.program import Program
from firesteel.static_table import StaticTable
from firesteel.windows import Watermarks

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from firesteel.client.execution import JobClient, JobResult


class _WithHints(type):
    """Lets the class explain what replaces `Environment.get_execution_environment()`."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            no_such_member(cls, name, DataStream)


class Environment(metaclass=_WithHints):
    """Builds a program and executes it: embedded, or on the cluster of `firesteel run -m`.

    `configuration` has the job's options, such as {"parallelism.default": "2"}; `-D` on the command
    line overrides them. `mode` is "streaming", "batch" or "automatic" (execution.runtime-mode).

    The first Environment of a process makes PySpark's functions, such as `F.col` and `F.udf`, work
    without a SparkSession. With an active SparkSession, they are unchanged.
    """

    def __init__(
        self,
        *,
        parallelism: int | None = None,
        configuration: dict[str, str] | None = None,
        mode: str | None = None,
    ) -> None:
        deferred_columns.install()
        self._program = Program()
        own = self._program.configuration
        own.update({key: str(value) for key, value in (configuration or {}).items()})
        if parallelism is not None:
            own[options.PARALLELISM.key] = str(positive("parallelism", parallelism))
        if mode is not None:
            own[options.RUNTIME_MODE.key] = _runtime_mode(mode)

    if not TYPE_CHECKING:  # a type checker knows the members

        def __getattr__(self, name: str) -> Any:
            no_such_member(type(self), name, DataStream)

    # -- sources

    def from_source(
        self,
        source: Source,
        *,
        watermarks: Watermarks | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Returns a stream of the rows of `source`. With `watermarks`, it has event time.

        A FileSource derives the watermarks of a column itself; for all other sources, an operator
        after the source assigns them.
        """
        if not isinstance(source, Source):
            raise InvalidProgram(
                "from_source() takes a Source, such as FileSource or PythonSource, "
                f"not {type(source).__name__}"
            )
        if watermarks is not None and not isinstance(watermarks, Watermarks):
            raise InvalidProgram(f"watermarks is {watermarks!r}; use Watermarks.bounded(...)")
        source = source.resolved()
        title = f"Source: {name or uid or source.display_name}"
        if watermarks is None:
            return self._source(source, title, uid)
        if source.finds_event_time and watermarks.function is None:
            return self._source(source, title, uid, watermarks)
        planner = source.planner(marked=True)
        stream = self._source(source, title, uid, planner=planner)
        assigned = stream._assign_watermarks(
            watermarks,
            watermarks.assigner_spec(held=planner is not None),
            "Watermarks",
            f"{uid}-watermarks" if uid else "",
        )
        assigned._operator().follows_producer = True
        assigned._node = stream._node  # uid(), name() and side_output() are the source's
        return assigned

    def _source(
        self,
        source: Source,
        title: str,
        uid: str,
        watermarks: Watermarks | None = None,
        planner: Source | None = None,
    ) -> DataStream:
        """`watermarks` are those that the source derives itself."""
        planner = planner or source.planner(marked=False)
        planning = None
        if planner is not None:
            planning = self._program.graph.add_node(
                f"{title} plan", SourceSpec(source=planner), inputs=0
            )
            planning.parallelism = planner.fixed_parallelism
            planning.uid = f"{uid}-plan" if uid else ""
        spec = SourceSpec(
            source=source,
            watermarks=None if watermarks is None else watermarks.spec(),
            watermark_alignment=None if watermarks is None else watermarks.alignment,
        )
        node = self._program.graph.add_node(title, spec, inputs=0 if planning is None else 1)
        node.parallelism = source.fixed_parallelism
        node.uid = uid
        if planning is not None:
            self._program.graph.add_edge(
                StreamEdge(
                    source=planning, target=node, target_input=0, partitioner=Partitioner.REBALANCE
                )
            )
        time_columns = frozenset({watermarks.column}) if watermarks is not None else frozenset()
        return DataStream(
            self._program, (Upstream(node=node),), time_columns=time_columns, node=node
        )

    def from_sequence(self, start: int, end: int, *, column: str = "value") -> DataStream:
        """Returns a stream of the numbers from `start` to `end`, exclusive, like Python's range, as
        a column of int64.
        """
        return self.from_source(SequenceSource(start, end, column), name="Sequence")

    def from_collection(
        self,
        rows: Iterable[Any],
        schema: str | DataType | pa.Schema | Sequence[str] | None = None,
        *,
        watermarks: Watermarks | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Returns a stream of rows in memory: tuples, lists, dicts, Rows, or single values of a
        column `value`.

        `schema` is a DDL string, a StructType, an Arrow schema, or a list of column names; without
        types, they are inferred as by `spark.createDataFrame`. A datetime without zone is local to
        the machine that runs the program, as it is there. At a parallelism of 1, the rows keep
        their order. Raises InvalidProgram for rows that do not fit.
        """
        return self._local(
            table_of_rows(rows, schema, prefer_ntz=self._prefers_ntz), watermarks, name, uid
        )

    def from_pandas(
        self,
        frame: pd.DataFrame,
        schema: str | DataType | pa.Schema | Sequence[str] | None = None,
        *,
        watermarks: Watermarks | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Returns a stream of the rows of a pandas DataFrame, without its index; NaN and NaT are
        null.

        `schema` is as in `from_collection`, with columns in the order of the frame's; without one,
        Arrow's types decide, as in `spark.createDataFrame`. Times without zone are local to
        spark.sql.session.timeZone, unless the schema has TIMESTAMP_NTZ. Raises InvalidProgram.
        """
        return self._local(
            table_of_frame(frame, schema, prefer_ntz=self._prefers_ntz), watermarks, name, uid
        )

    def from_arrow(
        self,
        table: pa.Table | pa.RecordBatch | pa.RecordBatchReader,
        schema: str | DataType | pa.Schema | Sequence[str] | None = None,
        *,
        watermarks: Watermarks | None = None,
        name: str | None = None,
        uid: str = "",
    ) -> DataStream:
        """Returns a stream of the rows of an Arrow table, record batch or reader. `schema` and
        times without zone are as in `from_pandas`. Raises InvalidProgram.
        """
        return self._local(
            table_of_arrow(table, schema, prefer_ntz=self._prefers_ntz), watermarks, name, uid
        )

    @property
    def _prefers_ntz(self) -> bool:
        """Whether times without zone are inferred as TIMESTAMP_NTZ."""
        return self._program.configuration.get("spark.sql.timestampType", "") == "TIMESTAMP_NTZ"

    def _local(
        self, local: LocalTable, watermarks: Watermarks | None, name: str | None, uid: str
    ) -> DataStream:
        source = self._program.table_source(local)
        return self.from_source(source, watermarks=watermarks, name=name, uid=uid)

    # -- static tables

    def static(
        self,
        read: Callable[[SparkSession], DataFrame],
        *,
        name: str | None = None,
        refresh: Duration | None = None,
        max_size: str | int = "32 mb",
        allow_empty: bool = False,
    ) -> StaticTable:
        """Returns a table for joins inside transforms: `df.join(table.dataframe(), "key")`.

        Each slot of the job calls `read(spark)` when a bundle first needs the table, and keeps its
        rows. With `refresh`, it reads them again at this interval, and later bundles see the new
        ones. A table of more than `max_size`, as Arrow data, fails the job, as does one without
        rows unless `allow_empty` is set.
        """
        return StaticTable(
            read, name=name, refresh=refresh, max_size=max_size, allow_empty=allow_empty
        )

    # -- settings

    def resource_group(self, name: str, resources: ResourceProfile) -> None:
        """Registers a resource group: operators with `.resource_group(name)` share slots only with
        each other.
        """
        self._program.resource_groups[name] = resources

    def add_python_file(self, path: str) -> None:
        """Adds a .py, .zip or .whl file or a folder to the job's sys.path, as --py-files does."""
        self._program.files.append(_existing(path, "add_python_file"))

    def add_python_archive(self, path: str, target_dir: str = "") -> None:
        """Unpacks an archive as `target_dir` in the job's directory, as --py-archives a.zip#dir
        does.
        """
        self._program.archives.append(
            _existing(path, "add_python_archive") + (f"#{target_dir}" if target_dir else "")
        )

    def set_python_requirements(self, path: str) -> None:
        """Installs the packages of a requirements.txt for the job, as --py-requirements does."""
        self._program.requirements = _existing(path, "set_python_requirements")

    # -- execution

    def job_graph(
        self, job_name: str = "job", *, overrides: dict[str, str] | None = None
    ) -> JobGraph:
        """Returns the JobGraph of the job that `execute` would run now. `overrides` take precedence
        over the program's configuration.
        """
        return self._program.job_graph(job_name, overrides=overrides)

    def execute(self, job_name: str = "job") -> JobResult:
        """Runs one job with all sinks that no earlier job has run, and all operators upstream of
        them; in attached mode, waits for its end.

        Raises InvalidProgram if there is no such sink, JobFailed (with the user's traceback first)
        or JobCanceled.
        """
        return self._program.execute(job_name)

    def execute_async(self, job_name: str = "job") -> JobClient:
        """Submits the job like `execute`, without waiting for it: returns a handle with its id,
        status, `result()` and `cancel()`.

        An embedded cluster ends with the program, and so does the job: wait for its `result()`.
        """
        return self._program.execute_async(job_name)


def _runtime_mode(mode: str) -> str:
    modes = [choice.lower() for choice in options.RUNTIME_MODE.choices]
    if not isinstance(mode, str) or mode.lower() not in modes:
        raise InvalidProgram(f"Environment(mode={mode!r}): allowed: {', '.join(map(repr, modes))}")
    return mode.upper()


def _existing(path: str, where: str) -> str:
    full = Path(path).expanduser().resolve()
    if not full.exists():
        raise InvalidProgram(f"{where}({path!r}): there is no such file: {full}")
    return str(full)
