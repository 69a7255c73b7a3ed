"""What the core asks of every phase; the answers here are those of a phase not concerned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from firesteel.common.ids import TaskExecutorId
from firesteel.common.states import JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import events
from jobmaster.core.execution_graph import ExecutionVertex
from jobmaster.core.job import Job
from jobmaster.core.slots.slot import Slot


class Phase:
    """Immutable. A method that returns a phase returns the one that follows, often `self`."""

    __slots__ = ()

    statuses: ClassVar[frozenset[JobStatus]]  # those that the job can have in this phase

    def deadline(self) -> float | None:
        """When it wants `tick`."""
        return None

    def waiting_for(self, job: Job, now: float) -> str:
        """What the job waits for, as users read it; empty if for nothing."""
        return job.slot_wait.describe(now)

    def start(self, job: Job, now: float) -> Phase:
        """The shell is up."""
        return self

    def tick(self, job: Job, now: float) -> Phase:
        """A deadline has passed, of this phase or another."""
        return self

    def advance(self, job: Job, now: float) -> Phase:
        """Takes the next step if the facts allow it. Called after every event, until `self` is
        returned.
        """
        return self

    def record_failure(self, job: Job, error: ErrorInfo) -> bool:
        """Records that something failed; returns whether the job fails because of it."""
        job.exceptions.failed(error)
        return True

    def restarts_soon(self, vertex: ExecutionVertex) -> bool:
        """Whether this will be restarted, although others go on."""
        return False

    def analyzed(self, job: Job, event: events.JobAnalyzed) -> Phase:
        job.stale_messages += 1
        return self

    def analyzes_on(self, task_executor_id: TaskExecutorId) -> bool:
        """Whether the plan is being analysed there."""
        return False

    def analyzes_in(self, slots: Sequence[Slot]) -> bool:
        """Whether the plan is being analysed in one of these slots."""
        return False

    def connected(self, job: Job, event: events.TaskExecutorConnected, now: float) -> None:
        """A TaskExecutor names what it holds; its slots are not in the pool yet."""

    def reconnected(self, job: Job, task_executor_id: TaskExecutorId) -> None:
        """The TaskExecutor's stream broke and is open again: messages may have been lost."""
