"""PythonSink: writes streams with PySpark's Python DataSource.

It consists of two operators (docs/decisions/0007-python-sources-plan-in-a-task.md): writers, and a
PythonCommit in one subtask, which commits their messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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

    `streamWriter(schema, overwrite)` is called once. Its `write` runs in every subtask, over Rows
    or, for a DataSourceStreamArrowWriter, over RecordBatches. `commit(messages, batchId)` runs in
    one subtask when the input has ended, with the messages of all `write` calls. If the job fails
    or is cancelled before, `abort(messages, batchId)` is called, if that is possible.

    `commit_interval` ("1 s", or a timedelta) is for unbounded streams: `write` gets the rows of one
    interval, and its message is committed soon after. Without checkpoints, such rows are written
    again when the job restarts.

    With checkpoints, `write` gets the rows between two of them, and its message is committed when
    the second one is complete; `commit_interval` has no effect. Batch ids increase and are not
    reused. If the job fails before a commit is recorded, `commit` is called again with the same
    messages and the same id: a sink that ignores committed ids writes each row exactly once.

    Raises InvalidProgram if the class has no stream writer or the interval is invalid.
    """

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
        _ = self.commit_interval_s  # checks it now
        object.__setattr__(self, "options", option_texts(self.options))

    @property
    def name(self) -> str:
        """The name of the data source's class, for messages."""
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
    """The committing half of a PythonSink, a separate operator."""

    sink: PythonSink
