"""Sink: what a program writes to, and the writer that each of its subtasks gets.

Writing has two phases, so that rows count once even if tasks fail: a writer *prepares* what it has
written since the last time, as committables (a file under a temporary name, an open transaction),
and a committer makes them visible.

    each subtask       SinkWriter: write(batch)*, prepare()  ->  Committer: commit(committables)

Both run in the same subtask. With checkpoints, `prepare` is called when one is taken and `commit`
when it is complete, by another attempt and in another subtask if the job has failed between.
Without them, a sink commits at the end of the input and every `commit_interval_s`, and what was
committed is written again if the job restarts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from firesteel.connectors.source import CoordinatorOptions
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    import pyarrow as pa

    from firesteel.operator import RuntimeContext

Committable: TypeAlias = Any  # picklable


class SinkWriter(ABC):
    """Writes the rows of one subtask.

    All calls are made on the task's thread, never two at once. A failure or a cancellation leads
    from wherever the writer is to `close`.
    """

    # Set by a writer that has something complete to commit, ahead of the interval.
    commit_now: bool = False

    def open(self) -> None:  # noqa: B027 - optional
        """Acquires what writing needs."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Takes a batch of at least one row. It may be held back until `flush` or `prepare`."""

    def flush(self) -> None:  # noqa: B027 - optional
        """The input has run dry: rows that are held back only for efficiency are written."""

    @abstractmethod
    def prepare(self) -> Sequence[Committable]:
        """Everything written so far is safe, and visible once it is committed.

        Returns what to commit, as picklable values; () for a sink whose rows are visible when they
        are written.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Releases everything, and discards what was not prepared; called once, on every path."""


class Committer(ABC):
    """Makes visible what writers have prepared."""

    def start_over(self) -> None:  # noqa: B027 - optional
        """The job starts from its beginning, and not from a checkpoint: rows that an earlier
        attempt of this subtask committed will come again. Called before the writer is opened, also
        by the first attempt. Other subtasks may have committed by then, and need not start over.
        """

    @abstractmethod
    def commit(self, committables: Sequence[Committable]) -> None:
        """Makes them visible. Idempotent: after a failure it may be called again with the same."""

    def recovered(self) -> None:  # noqa: B027 - optional
        """Everything that was restored from a checkpoint is committed, by all subtasks. What else
        earlier attempts of the job have prepared never will be.
        """

    @abstractmethod
    def abort(self, committables: Sequence[Committable]) -> None:
        """Discards them: they were prepared and will not be committed."""

    def close(self) -> None:  # noqa: B027 - optional
        """Releases everything; called once, on every path."""


class Sink:
    """Base of all sinks. A subclass is a description: it holds options, and is pickled into the
    job.

    A sink of your own implements `create_writer`, and `create_committer` if its writer prepares
    committables. The members at the end are for the built-in ones.
    """

    # What slots make of the sink, as "module:Class"; a string, because programs do not import the
    # task runtime.
    runtime: ClassVar[str] = "taskexecutor.executor.connectors.writer_sink:WriterSink"

    @property
    def display_name(self) -> str:
        """The operator's title, unless the program names it."""
        return type(self).__name__.removesuffix("Sink")

    @property
    def commit_interval_s(self) -> float | None:
        """Rows are committed at most so long after they were written; None: when the input ends."""
        return None

    def resolved(self) -> Self:
        """The sink as it is shipped, made when the program names it: relative paths mean the folder
        of the program, for example. Raises InvalidProgram for options that make no sense.
        """
        return self

    def check(self, schema: pa.Schema | None) -> None:
        """Called once, in a slot, before data flows; what it raises fails the job.

        `schema` is the input's, None if it is not known.
        """

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        """A writer for one subtask."""
        raise InvalidProgram(f"{self.display_name} does not implement create_writer()")

    def create_committer(self, context: RuntimeContext) -> Committer | None:
        """A committer for one subtask; None if its writer prepares nothing."""
        return None

    # -- of built-in sinks

    @property
    def coordinator(self) -> CoordinatorOptions | None:
        """What receives the rows in the JobMaster."""
        return None

    @property
    def global_committer(self) -> Sink | None:
        """A sink whose single subtask commits what all subtasks of this one emit."""
        return None
