"""PythonSource: streams of PySpark's Python DataSource.

It is read by two operators (docs/decisions/0007-python-sources-plan-in-a-task.md): a PartitionPlan
in one subtask plans the partitions that the subtasks of the PythonSource read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from firesteel.connectors.checks import duration_s, option_texts
from firesteel.connectors.python_data_source import check_data_source, overrides
from firesteel.connectors.source import Source
from firesteel.durations import Duration
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class PythonSource(Source):
    """Reads a stream of PySpark's Python DataSource, given as its class:
    `PythonSource(MySource, {"topic": "t"})`.

    A `streamReader` is asked for offsets and partitions in one subtask, every `poll_interval`, and
    its partitions are read by all subtasks; a `simpleStreamReader` reads in one. A reader with a
    method `isFinished(end) -> bool`, called with the offset up to which everything has been
    planned, is bounded; any other goes on for ever. `commit(end)` is called when a checkpoint that
    contains everything before `end` is complete.

    `schema` (DDL string or StructType) overrides that of the class. Raises InvalidProgram if the
    class has no stream reader.
    """

    runtime: ClassVar[str] = "taskexecutor.executor.connectors.python.source:PythonSourceRuntime"

    data_source: type[DataSource]
    options: dict[str, str] = field(default_factory=dict)
    schema: str | StructType | pa.Schema | None = None
    poll_interval: Duration = "100 ms"

    def __post_init__(self) -> None:
        check_data_source("PythonSource", self.data_source)
        if self.is_simple and not overrides(self.data_source, "simpleStreamReader"):
            raise InvalidProgram(
                f"{self.name} cannot be read as a stream: "
                "it implements neither streamReader() nor simpleStreamReader()"
            )
        _ = self.poll_interval_s  # checked now
        object.__setattr__(self, "options", option_texts(self.options))

    @property
    def name(self) -> str:
        """The data source's class, for messages."""
        return self.data_source.__name__

    @property
    def display_name(self) -> str:
        return self.name

    @property
    def is_simple(self) -> bool:
        """It plans and reads in one call."""
        return not overrides(self.data_source, "streamReader")

    @property
    def poll_interval_s(self) -> float:
        """`poll_interval` in seconds."""
        return duration_s("PythonSource: poll_interval", self.poll_interval)

    @property
    def fixed_parallelism(self) -> int | None:
        return 1 if self.is_simple else None

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> None:
        """None: its splits are planned in a task."""

    def planner(self, *, marked: bool) -> PartitionPlan | None:
        return None if self.is_simple else PartitionPlan(self, marked=marked)


@dataclass(frozen=True, slots=True)
class PartitionPlan(Source):
    """The planning half of a PythonSource, an operator of its own."""

    runtime: ClassVar[str] = "taskexecutor.executor.connectors.python.source:PartitionPlanRuntime"

    source: PythonSource
    marked: bool = False  # watermarks, counted from 1, are behind the partitions of each call

    @property
    def fixed_parallelism(self) -> int:
        return 1

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> None:
        """None: it finds its partitions itself."""
