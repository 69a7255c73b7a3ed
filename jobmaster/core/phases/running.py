"""Running: tasks are deployed. The job ends when all of them have finished."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.states import JobEvent, JobStatus
from jobmaster.core.job import Job
from jobmaster.core.phases.ended import Ended
from jobmaster.core.phases.phase import Phase


@dataclass(frozen=True, slots=True)
class Running(Phase):
    statuses = frozenset({JobStatus.RUNNING})

    def advance(self, job: Job, now: float) -> Phase:
        if job.graph.live == 0:
            return Ended.enter(job, JobEvent.FINISH, now)
        if job.scheduler.waiting and job.can_deploy:  # tasks that start because others finished
            job.deploy(now)
        return self
