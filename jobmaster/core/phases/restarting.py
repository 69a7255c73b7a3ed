"""Restarting: all tasks have ended, and the restart strategy's delay has not passed."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.states import JobEvent, JobStatus
from jobmaster.core.job import Job
from jobmaster.core.phases.phase import Phase
from jobmaster.core.phases.waiting import WaitingForSlots


@dataclass(frozen=True, slots=True)
class Restarting(Phase):
    statuses = frozenset({JobStatus.RESTARTING})

    at: float

    @classmethod
    def enter(cls, job: Job, at: float, now: float) -> Restarting:
        job.graph.apply(JobEvent.RESTART, job.now_ms(now))
        return cls(at)

    def deadline(self) -> float | None:
        return self.at

    def waiting_for(self, job: Job, now: float) -> str:
        return f"its restart (in {max(0.0, self.at - now):.0f} s)"

    def tick(self, job: Job, now: float) -> Phase:
        """Creates new attempts of all tasks after the delay; the job then waits for its slots."""
        if now < self.at:
            return self
        job.start_over(now)
        return WaitingForSlots.enter(job, now)
