"""Cancelling: the job's user wants it to end, and all tasks are being cancelled."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.states import JobEvent, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core.job import Job
from jobmaster.core.phases.ended import Ended
from jobmaster.core.phases.phase import Phase


@dataclass(frozen=True, slots=True)
class Cancelling(Phase):
    statuses = frozenset({JobStatus.CANCELLING})

    @classmethod
    def enter(cls, job: Job, now: float) -> Cancelling:
        job.graph.apply(JobEvent.CANCEL, job.now_ms(now))
        job.end_all_tasks(now)
        return cls()

    def waiting_for(self, job: Job, now: float) -> str:
        return ""

    def record_failure(self, job: Job, error: ErrorInfo) -> bool:
        return False

    def advance(self, job: Job, now: float) -> Phase:
        return Ended.enter(job, JobEvent.CANCELED, now) if job.graph.live == 0 else self
