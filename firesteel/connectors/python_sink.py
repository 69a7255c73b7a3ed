"""PythonSink: streams written by PySpark's Python DataSource.

It is two operators (docs/decisions/0007-python-sources-plan-in-a-task.md): writers, whose commit
messages a PythonCommit in one subtask commits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from firesteel.connectors.checks import duration_s, option_texts
from firesteel.connectors.python_data_source import check_data_source, overrides
from firesteel.connectors.sink import Sink
from firesteel.durations import Duration
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


@dataclass(frozen=True, slots=True)
class PythonSink(Sink):
    """Writes a stream with PySpark's Python DataSource, given as its class:
    `PythonSink(MySink, {"path": "p"})`.

    `streamWriter(schema, overwrite)` is called once; its `write` runs in every subtask, over Rows
    or, of a DataSourceStreamArrowWriter, over RecordBatches; `commit(messages, batchId)` in one,
    when the input has ended, with what all of them returned. If the job fails or is cancelled
    before, `abort(messages, batchId)` is called, where that is possible.

    `commit_interval` ("1 s", a timedelta) is for streams that do not end: `write` gets the rows of
    one interval, and what it returns is committed soon after. Without checkpoints, such rows are
    written again when the job restarts.

    With checkpoints, `write` gets the rows between two of them, and what it returns is committed
    when the second one is complete; `commit_interval` means nothing. Batch ids increase, and are
    not used again. A job that fails at the wrong moment calls `commit` again with the same messages
    and the same id: a sink that ignores ids that it has committed has each row once.

    Raises InvalidProgram if the class has no stream writer or the interval is invalid.
    """

    runtime: ClassVar[str] = "taskexecutor.executor.connectors.python.sink:PythonSinkRuntime"

    data_source: type[DataSource]
    options: dict[str, str] = field(default_factory=dict)
    overwrite: bool = False
    commit_interval: Duration | None = None

    def __post_init__(self) -> None:
        check_data_source("PythonSink", self.data_source)
        if not overrides(self.data_source, "streamWriter"):
            raise InvalidProgram(
                f"{self.name} cannot be written as a stream: it does not implement streamWriter()"
            )
        _ = self.commit_interval_s  # checked now
        object.__setattr__(self, "options", option_texts(self.options))

    @property
    def name(self) -> str:
        """The data source's class, for messages."""
        return self.data_source.__name__

    @property
    def display_name(self) -> str:
        return self.name

    @property
    def commit_interval_s(self) -> float | None:
        if self.commit_interval is None:
            return None
        return duration_s("PythonSink: commit_interval", self.commit_interval)

    @property
    def global_committer(self) -> PythonCommit:
        return PythonCommit(self)


@dataclass(frozen=True, slots=True)
class PythonCommit(Sink):
    """The committing half of a PythonSink, an operator of its own."""

    runtime: ClassVar[str] = "taskexecutor.executor.connectors.python.sink:PythonCommitRuntime"

    sink: PythonSink
