"""Sink: a description of where a program writes to, and the writer that each of its subtasks gets.

Writing has two phases, so that rows count once even if tasks fail: a writer *prepares* what it has
written since the last time, as committables (a file under a temporary name, an open transaction),
and a committer makes them visible.

    each subtask       SinkWriter: write(batch)*, prepare()  ->  Committer: commit(committables)

Both run in the same subtask. With checkpoints, `prepare` is called when one is taken and `commit`
when it is complete; if the job has failed in between, a new attempt, possibly in another subtask,
calls `commit`. Without checkpoints, a sink commits at the end of the input and every
`commit_interval_s`, and committed rows are written again if the job restarts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from firesteel.connectors.source import CoordinatorOptions
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    import pyarrow as pa

    from firesteel.operator import RuntimeContext

Committable: TypeAlias = Any  # picklable


class SinkWriter(ABC):
    """Writes the rows of one subtask.

    All calls are made on the task's thread, never concurrently. After a failure or a cancellation,
    the next call is `close`.
    """

    # Set by a writer that has something complete to commit before the interval ends.
    commit_now: bool = False

    def open(self) -> None:  # noqa: B027 - optional
        """Acquires resources."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Writes a batch of at least one row. The rows may be held back until `flush` or
        `prepare`.
        """

    def flush(self) -> None:  # noqa: B027 - optional
        """Writes rows that are held back only for efficiency, because the input has run dry."""

    @abstractmethod
    def prepare(self) -> Sequence[Committable]:
        """Makes everything written so far safe, so that a commit makes it visible.

        Returns what to commit, as picklable values; () for a sink whose rows are visible when they
        are written.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Releases all resources and discards unprepared rows; called once, on every path."""


class Committer(ABC):
    """Makes visible what writers have prepared."""

    def start_over(self) -> None:  # noqa: B027 - optional
        """Called if the job starts from the beginning instead of a checkpoint: rows that an earlier
        attempt of this subtask committed will be written again. Called before the writer is opened,
        also in the first attempt. Other subtasks may have committed by then, and need not start
        over.
        """

    @abstractmethod
    def commit(self, committables: Sequence[Committable]) -> None:
        """Makes the committables visible. Idempotent: after a failure it may be called again."""

    def recovered(self) -> None:  # noqa: B027 - optional
        """Called when all subtasks have committed everything that was restored from a checkpoint.
        Anything else that earlier attempts of the job have prepared will never be committed.
        """

    @abstractmethod
    def abort(self, committables: Sequence[Committable]) -> None:
        """Discards committables that were prepared and will not be committed."""

    def close(self) -> None:  # noqa: B027 - optional
        """Releases all resources; called once, on every path."""


class Sink:
    """Base of all sinks. A subclass is a description: it holds options, and is pickled into the
    job.

    A custom sink implements `create_writer`, and `create_committer` if its writer prepares
    committables. The members at the end are for built-in sinks.
    """

    @property
    def display_name(self) -> str:
        """The operator's title, unless the program sets one."""
        return type(self).__name__.removesuffix("Sink")

    @property
    def commit_interval_s(self) -> float | None:
        """The maximum time from writing to committing rows; None: they are committed at the end of
        input.
        """
        return None

    def resolved(self) -> Self:
        """Returns the sink as it is shipped; called when the program adds it. Resolves, for
        example, relative paths against the program's folder. Raises InvalidProgram for invalid
        options.
        """
        return self

    def check(self, schema: pa.Schema | None) -> None:
        """Called once, in a slot, before data flows; an exception fails the job.

        `schema` is the input's, or None if it is not known.
        """

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        """Returns a writer for one subtask."""
        raise InvalidProgram(f"{self.display_name} does not implement create_writer()")

    def create_committer(self, context: RuntimeContext) -> Committer | None:
        """Returns a committer for one subtask, or None if its writer prepares nothing."""
        return None

    # -- of built-in sinks

    @property
    def commits_with_checkpoints(self) -> bool:
        """Whether rows are visible only when a checkpoint has completed, or the input has ended."""
        return False

    @property
    def coordinator(self) -> CoordinatorOptions | None:
        """The receiver of the rows in the JobMaster."""
        return None

    @property
    def global_committer(self) -> Sink | None:
        """A sink whose single subtask commits what all subtasks of this one emit."""
        return None
