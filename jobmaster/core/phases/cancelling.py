"""Cancelling: the user has cancelled the job, and all tasks are being cancelled."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.states import JobEvent, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core.adoption import Adoption
from jobmaster.core.job import Job
from jobmaster.core.phases.ended import Ended
from jobmaster.core.phases.ending import Ending
from jobmaster.core.phases.phase import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelling(Ending):
    statuses = frozenset({JobStatus.CANCELLING})

    @classmethod
    def enter(cls, job: Job, now: float, adoption: Adoption | None = None) -> Cancelling:
        """`adoption` is set while the job's tasks are being taken over."""
        job.graph.apply(JobEvent.CANCEL, job.now_ms(now))
        return cls(adoption=adoption).begin(job, now)

    def record_failure(self, job: Job, error: ErrorInfo) -> bool:
        return False

    def ended(self, job: Job, now: float) -> Phase:
        return Ended.enter(job, JobEvent.CANCELED, now)
