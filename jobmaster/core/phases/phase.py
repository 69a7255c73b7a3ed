"""The interface of phases to the core, with defaults for events that a phase does not handle."""

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
    """Immutable. A method that returns a phase returns the next one, often `self`."""

    __slots__ = ()

    statuses: ClassVar[frozenset[JobStatus]]  # the job's possible statuses in this phase

    def deadline(self) -> float | None:
        """Returns when to call `tick`."""
        return None

    def waiting_for(self, job: Job, now: float) -> str:
        """Returns what the job waits for, in words for users; empty if it does not wait."""
        return job.slot_wait.describe(now)

    def start(self, job: Job, now: float) -> Phase:
        """Handles the start of the shell."""
        return self

    def tick(self, job: Job, now: float) -> Phase:
        """Handles a passed deadline, of this phase or another part."""
        return self

    def advance(self, job: Job, now: float) -> Phase:
        """Takes the next step if the facts allow it. Called after every event, until it returns
        `self`.
        """
        return self

    def record_failure(self, job: Job, error: ErrorInfo) -> bool:
        """Records a failure; returns whether the job fails because of it."""
        job.exceptions.failed(error)
        return True

    def restarts_soon(self, vertex: ExecutionVertex) -> bool:
        """Whether this task will restart while others continue."""
        return False

    def analyzed(self, job: Job, event: events.JobAnalyzed) -> Phase:
        job.stale_messages += 1
        return self

    def analyzes_on(self, task_executor_id: TaskExecutorId) -> bool:
        """Whether this TaskExecutor analyses the plan."""
        return False

    def analyzes_in(self, slots: Sequence[Slot]) -> bool:
        """Whether one of these slots analyses the plan."""
        return False

    def connected(self, job: Job, event: events.TaskExecutorConnected, now: float) -> None:
        """Handles a TaskExecutor's report of what it holds; its slots are not in the pool yet."""

    def reconnected(self, job: Job, task_executor_id: TaskExecutorId) -> None:
        """Handles a stream that broke and is open again: messages may have been lost."""
