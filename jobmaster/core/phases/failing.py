"""Failing: something failed, and all tasks are being cancelled."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.states import JobEvent, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core.adoption import Adoption
from jobmaster.core.job import Job
from jobmaster.core.phases.ended import Ended
from jobmaster.core.phases.ending import Ending
from jobmaster.core.phases.phase import Phase
from jobmaster.core.phases.restarting import Restarting


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing(Ending):
    """The first failure decides what follows; later ones are only recorded."""

    statuses = frozenset({JobStatus.FAILING})

    restart_delay_s: float | None  # the restart strategy's verdict; None: no restart

    @classmethod
    def enter(
        cls,
        job: Job,
        restart_delay_s: float | None,
        now: float,
        *,
        cause: str,
        adoption: Adoption | None = None,
    ) -> Failing:
        """`adoption` is set while the job's tasks are being taken over."""
        job.graph.apply(JobEvent.FAIL, job.now_ms(now), cause)
        return cls(adoption=adoption, restart_delay_s=restart_delay_s).begin(job, now)

    def record_failure(self, job: Job, error: ErrorInfo) -> bool:
        job.exceptions.also_failed(error)
        return False

    def ended(self, job: Job, now: float) -> Phase:
        if not job.checkpoints.settled:
            return self
        if self.restart_delay_s is None:
            return Ended.enter(job, JobEvent.GIVE_UP, now)
        return Restarting.enter(job, now + self.restart_delay_s, now)
