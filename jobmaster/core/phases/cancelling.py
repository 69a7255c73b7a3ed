"""Cancelling: the job's user wants it to end, and all tasks are being cancelled.

Tasks that an earlier JobMaster has left are adopted to be cancelled: CANCELED says that nothing of
the job runs any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.states import ExecutionState, JobEvent, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import events
from jobmaster.core.adoption import Adoption
from jobmaster.core.job import Job
from jobmaster.core.phases.ended import Ended
from jobmaster.core.phases.phase import Phase


@dataclass(frozen=True, slots=True)
class Cancelling(Phase):
    statuses = frozenset({JobStatus.CANCELLING})

    adoption: Adoption | None = None  # until all that runs is known

    @classmethod
    def enter(cls, job: Job, now: float, adoption: Adoption | None = None) -> Cancelling:
        """`adoption`: the job is RECONCILING."""
        job.graph.apply(JobEvent.CANCEL, job.now_ms(now))
        if adoption is None:
            job.end_all_tasks(now)
        else:
            _end_adopted(job, now)
        return cls(adoption)

    def deadline(self) -> float | None:
        return None if self.adoption is None else self.adoption.deadline

    def waiting_for(self, job: Job, now: float) -> str:
        return ""

    def record_failure(self, job: Job, error: ErrorInfo) -> bool:
        return False

    def connected(self, job: Job, event: events.TaskExecutorConnected, now: float) -> None:
        if self.adoption is not None:
            self.adoption.connected(job, event, now)
            _end_adopted(job, now)

    def advance(self, job: Job, now: float) -> Phase:
        if self.adoption is not None:
            if not self.adoption.all_known(job, now):
                return self
            job.end_all_tasks(now)  # also what nobody has
            return Cancelling()
        return Ended.enter(job, JobEvent.CANCELED, now) if job.graph.live == 0 else self


def _end_adopted(job: Job, now: float) -> None:
    known = [
        vertex
        for vertex in job.graph.execution_vertices()
        if vertex.current.state is not ExecutionState.RECONCILING
    ]
    job.end_tasks(known, now)
