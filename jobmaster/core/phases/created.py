"""Created: the graph is built or is invalid, and the job has not started."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.states import JobEvent, JobStatus
from jobmaster.core.job import Job
from jobmaster.core.phases.ended import Ended
from jobmaster.core.phases.phase import Phase
from jobmaster.core.phases.waiting import WaitingForSlots


@dataclass(frozen=True, slots=True)
class Created(Phase):
    statuses = frozenset({JobStatus.INITIALIZING, JobStatus.CREATED})

    def start(self, job: Job, now: float) -> Phase:
        if job.invalid:
            job.exceptions.failed(job.error(job.invalid, now))
            return Ended.enter(job, JobEvent.REJECT, now, cause=job.invalid)
        job.graph.apply(JobEvent.START, job.now_ms(now))
        waiting = WaitingForSlots.enter(job, now)
        job.declare()
        job.out.extend(job.coordinators.listings())
        return waiting
