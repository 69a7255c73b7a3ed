"""PythonSource: reads streams with PySpark's Python DataSource.

It consists of two operators (docs/decisions/0007-python-sources-plan-in-a-task.md): a PartitionPlan
in one subtask plans the partitions, which the subtasks of the PythonSource read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    """Reads a stream with PySpark's Python DataSource, given as its class:
    `PythonSource(MySource, {"topic": "t"})`.

    A `streamReader` provides offsets and partitions in one subtask, every `poll_interval`, and all
    subtasks read its partitions; a `simpleStreamReader` reads in one subtask. A reader with a
    method `isFinished(end) -> bool`, which is called with the offset up to which everything is
    planned, is bounded; any other never ends. `commit(end)` is called when a checkpoint that
    contains everything before `end` is complete.

    `schema` (DDL string or StructType) overrides that of the class. Raises InvalidProgram if the
    class has no stream reader.
    """

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
        _ = self.poll_interval_s  # checks it now
        object.__setattr__(self, "options", option_texts(self.options))

    @property
    def name(self) -> str:
        """The name of the data source's class, for messages."""
        return self.data_source.__name__

    @property
    def display_name(self) -> str:
        return self.name

    @property
    def is_simple(self) -> bool:
        """Whether one call plans and reads."""
        return not overrides(self.data_source, "streamReader")

    @property
    def poll_interval_s(self) -> float:
        """`poll_interval` in seconds."""
        return duration_s("PythonSource: poll_interval", self.poll_interval)

    @property
    def fixed_parallelism(self) -> int | None:
        return 1 if self.is_simple else None

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> None:
        """Returns None: a task plans the splits."""

    def planner(self, *, marked: bool) -> PartitionPlan | None:
        return None if self.is_simple else PartitionPlan(self, marked=marked)


@dataclass(frozen=True, slots=True)
class PartitionPlan(Source):
    """The planning half of a PythonSource, a separate operator."""

    source: PythonSource
    marked: bool = False  # watermarks, counted from 1, follow the partitions of each call

    @property
    def fixed_parallelism(self) -> int:
        return 1

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> None:
        """Returns None: it determines its partitions itself."""
