"""The Dispatcher's jobs and the transitions of their status.

A job's status is the one that its JobMaster reported last. A JobMaster reports its newest status
only, so a report may skip statuses: it is legal if JOB_TRANSITIONS leads to it in any number of
steps. In addition, the Dispatcher ends jobs that have no JobMaster, by the events of `Ending`. A
job that takes checkpoints, or whose tasks can be adopted, waits for a new JobMaster instead: in
RECONCILING if its tasks run or are being cancelled and may be adopted, otherwise in RESTARTING.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.states import JOB_TRANSITIONS, IllegalTransition, JobStatus

STORY_MAX = 50  # transitions kept per job
FORGOTTEN_MAX = 100_000  # ids of deleted jobs that are still known to have ended


class Ending(Enum):
    """Ends a job without a report of its JobMaster."""

    CANCELLED_EARLY = "cancelled before it had a JobMaster"
    NO_JOB_MASTER = "no JobMaster process could be started"
    JOB_MASTER_LOST = "its JobMaster was lost"
    JOB_MASTER_LOST_CANCELLING = "its JobMaster was lost while the job was being cancelled"


# {status: {event: next status}}
TRANSITIONS: dict[JobStatus, dict[Ending, JobStatus]] = {
    status: {
        Ending.JOB_MASTER_LOST: JobStatus.FAILED,
        Ending.JOB_MASTER_LOST_CANCELLING: JobStatus.CANCELED,
    }
    for status in JobStatus
    if not status.globally_terminal
}
# Statuses in which a job waits for its next JobMaster.
for _waiting in (JobStatus.INITIALIZING, JobStatus.RECONCILING, JobStatus.RESTARTING):
    TRANSITIONS[_waiting] |= {
        Ending.CANCELLED_EARLY: JobStatus.CANCELED,
        Ending.NO_JOB_MASTER: JobStatus.FAILED,
    }


def _reachable(status: JobStatus) -> frozenset[JobStatus]:
    """Returns the statuses that a JobMaster may report after `status`."""
    found: set[JobStatus] = set()
    to_follow = [status]
    while to_follow:
        for following in JOB_TRANSITIONS[to_follow.pop()].values():
            if following not in found:
                found.add(following)
                to_follow.append(following)
    return frozenset(found | {status})


_HAS_TASKS = frozenset({JobStatus.RUNNING, JobStatus.CANCELLING, JobStatus.FAILING})
REPORTABLE = {status: _reachable(status) for status in JobStatus}


@dataclass(slots=True, kw_only=True)
class SubmittedJob:
    job_id: JobId
    name: str
    graph_id: str
    owner: str = ""  # the name of who submitted it; empty: not known
    status: JobStatus = JobStatus.INITIALIZING  # changed only by `report` and `end`
    start_ms: int = 0
    end_ms: int = 0  # 0: not ended
    epoch: int = 0  # of the JobMaster assigned last; 0: none so far
    job_master_id: JobMasterId | None = None
    job_master_address: str = ""  # empty: not known
    tasks_by_state: dict[str, int] = field(default_factory=dict)
    pid: int | None = None  # of its JobMaster process, once this Dispatcher knows it
    # Its JobMaster has reported, so it has the graph and can cancel the job.
    confirmed: bool = False
    recovers: bool = False  # a new JobMaster continues the job when its JobMaster is lost
    restart_history: str = ""  # reported by its JobMaster for the next one
    history: bytes = b""  # as above: a serialised JobHistory
    # As above; empty: its tasks cannot be adopted. None: no JobMaster has reported one, which it
    # does before the first task is deployed.
    handover: bytes | None = None
    assigned_at: float | None = None  # when this Dispatcher assigned its JobMaster
    lost_in_a_row: int = 0  # JobMasters in a row under which it stored no checkpoint
    cancel_requested: bool = False
    cancel_again_at: float | None = None
    adopt_until: float | None = None  # loaded from the store: its JobMaster must register by then
    probe_at: float | None = None  # when to probe its JobMaster while `adopt_until` is set
    _story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_MAX), repr=False)

    @property
    def ended(self) -> bool:
        return self.status.globally_terminal

    @property
    def waiting(self) -> bool:
        """Whether it needs a JobMaster."""
        return self.job_master_id is None and not self.ended

    @property
    def may_run(self) -> bool:
        """Whether it may have tasks that its next JobMaster can adopt, if only to cancel them."""
        return self.status is JobStatus.RECONCILING or (
            self.status in _HAS_TASKS and bool(self.handover)
        )

    @property
    def outlives_its_job_master(self) -> bool:
        """Whether the next JobMaster continues the job: from a checkpoint, with the tasks of the
        last one, or from its start if no task was deployed.
        """
        return self.recovers or self.handover != b""

    def report(self, status: JobStatus, now: float) -> bool:
        """Adopts the status that its JobMaster reports; returns False if it is unchanged. Raises
        IllegalTransition.
        """
        if status is self.status:
            return False
        if status not in REPORTABLE[self.status]:
            raise self._illegal(f"its JobMaster reports {status.name}")
        self._move(status, "reported", now)
        return True

    def end(self, event: Ending, now: float) -> None:
        """Ends the job by this event. Raises IllegalTransition."""
        status = TRANSITIONS.get(self.status, {}).get(event)
        if status is None:
            raise self._illegal(event.value)
        self.tasks_by_state = {}
        self._move(status, event.value, now)

    def wait_for_another_master(self, cause: str, now: float) -> None:
        """Makes the job wait for a new JobMaster, which continues it."""
        self.job_master_id, self.confirmed = None, False
        self.adopt_until = self.probe_at = self.cancel_again_at = None
        self.tasks_by_state = {}
        if self.status in (JobStatus.INITIALIZING, JobStatus.RECONCILING):
            self.note(cause, now)
        elif self.may_run:
            self._move(JobStatus.RECONCILING, cause, now)
        else:
            self._move(JobStatus.RESTARTING, cause, now)

    def note(self, what: str, now: float) -> None:
        """Adds an entry to its story that does not change the status."""
        self._story.append(f"{now:.3f} {what}")

    def story(self) -> list[str]:
        return list(self._story)

    def _move(self, status: JobStatus, cause: str, now: float) -> None:
        self.note(f"{self.status.name} -> {status.name}: {cause}", now)
        self.status = status

    def _illegal(self, event: str) -> IllegalTransition:
        story = "\n".join(f"  {line}" for line in self._story)
        return IllegalTransition(
            f"job {self.job_id} is {self.status.name}; illegal transition: {event};"
            f" its story:\n{story}"
        )


class ForgottenJob(NamedTuple):
    job_id: JobId
    status: JobStatus
    why: str = ""  # empty: dropped in favour of newer jobs


class Violation(NamedTuple):
    """A violated invariant."""

    of: JobId | int  # the job's id, or the pid of the JobMaster process
    what: str


class JobTable:
    """All jobs of the cluster, oldest first, and the end of jobs that are no longer kept."""

    def __init__(
        self, jobs: Iterable[SubmittedJob], forgotten: Iterable[ForgottenJob], *, history: int
    ) -> None:
        """`history` is the number of ended jobs to keep."""
        self.by_id = {job.job_id: job for job in sorted(jobs, key=lambda job: job.start_ms)}
        self.forgotten = {job.job_id: job for job in forgotten}
        self._history = history

    def __iter__(self) -> Iterator[SubmittedJob]:
        return iter(self.by_id.values())

    def find(self, job_id: JobId) -> SubmittedJob | None:
        """Returns the job, or None. A job that is no longer kept has only an id and a status."""
        if (forgotten := self.forgotten.get(job_id)) is not None:
            return SubmittedJob(job_id=job_id, name="", graph_id="", status=forgotten.status)
        return self.by_id.get(job_id)

    def add(self, job: SubmittedJob) -> None:
        self.by_id[job.job_id] = job

    def waiting(self) -> list[SubmittedJob]:
        return [job for job in self if job.waiting]

    def assigned_to(self, job_master_id: JobMasterId | None) -> SubmittedJob | None:
        return next((job for job in self if job.job_master_id == job_master_id), None)

    def forget_oldest(self) -> list[SubmittedJob]:
        """Forgets the oldest ended jobs beyond the limit, and returns them."""
        ended = sorted((job for job in self if job.ended), key=lambda job: job.end_ms)
        dropped = ended[: max(0, len(ended) - self._history)]
        for job in dropped:
            self.forget(job)
        return dropped

    def forget(self, job: SubmittedJob, why: str = "") -> None:
        """Forgets all about the job except how it ended."""
        del self.by_id[job.job_id]
        self.forgotten[job.job_id] = ForgottenJob(job.job_id, job.status, why)
        while len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]

    def violations(self) -> Iterator[Violation]:
        """Yields the invariants that a single job violates."""
        ended = 0
        for job in self:
            ended += job.ended
            if job.job_id in self.forgotten:
                yield Violation(job.job_id, "is kept and forgotten")
            if job.end_ms and not job.ended:
                yield Violation(job.job_id, f"is {job.status.name} with the end time {job.end_ms}")
            if job.ended and (job.adopt_until is not None or job.cancel_again_at is not None):
                yield Violation(job.job_id, "has ended but still has a deadline")
            if job.probe_at is not None and job.adopt_until is None:
                yield Violation(job.job_id, "is probed although it awaits no JobMaster")
            if job.epoch == 0 and job.job_master_id is not None:
                yield Violation(
                    job.job_id, f"has epoch {job.epoch} and JobMaster {job.job_master_id}"
                )
            if job.confirmed and job.job_master_id is None:
                yield Violation(job.job_id, "was reported on without a JobMaster")
        if ended > self._history:
            yield Violation(JobId(""), f"{ended} ended jobs are kept, more than {self._history}")
