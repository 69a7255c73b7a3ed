"""WaitingForSlots: tasks are scheduled; when their slots are there, they are deployed."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.states import JobEvent, JobStatus
from jobmaster.core.job import Job
from jobmaster.core.phases.analyzing import Analyzing
from jobmaster.core.phases.phase import Phase
from jobmaster.core.phases.running import Running


@dataclass(frozen=True, slots=True)
class WaitingForSlots(Phase):
    """The job is RUNNING, or RESTARTING until it has its slots again. How long it has waited, and
    for how many slots, is in `Job.slot_wait`.
    """

    statuses = frozenset({JobStatus.RUNNING, JobStatus.RESTARTING})

    @classmethod
    def enter(cls, job: Job, now: float) -> WaitingForSlots:
        """Schedules all of the job that may start; every task must be CREATED."""
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
