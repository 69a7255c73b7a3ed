"""WaitingForSlots: tasks are scheduled, and deployed once they have their slots."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.states import JobEvent, JobStatus
from jobmaster.core.job import Job
from jobmaster.core.phases.analyzing import Analyzing
from jobmaster.core.phases.phase import Phase
from jobmaster.core.phases.running import Running


@dataclass(frozen=True, slots=True)
class WaitingForSlots(Phase):
    """The job is RUNNING, or RESTARTING until it has its slots again. `Job.slot_wait` has the
    number of missing slots and the time since they are missing.
    """

    statuses = frozenset({JobStatus.RUNNING, JobStatus.RESTARTING})

    @classmethod
    def enter(cls, job: Job, now: float) -> WaitingForSlots:
        """Schedules all tasks that may start; every task must be CREATED."""
        job.schedule(tuple(job.graph.execution_vertices()), now)
        return cls()

    def advance(self, job: Job, now: float) -> Phase:
        if not job.can_deploy:
            return self
        if job.graph.status is JobStatus.RESTARTING:
            job.graph.apply(JobEvent.SLOTS_READY, job.now_ms(now))
            job.graph.apply(JobEvent.START, job.now_ms(now))
        if not job.coordinators.ready:
            return self
        if job.schemas is None:
            return Analyzing.enter(job, job.scheduler.first_slot(), then=self)
        job.deploy(now)
        return Running()
