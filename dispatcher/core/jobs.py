"""The Dispatcher's jobs, and how their statuses change.

A job's status is what its JobMaster reported last. A JobMaster reports its newest status, not every
one, so a report may skip statuses: it is legal if JOB_TRANSITIONS leads to it in any number of
steps. Besides, the Dispatcher ends jobs that have no JobMaster, by the events of `Ending`; one that
takes checkpoints, or can be adopted without, waits for another JobMaster instead: RECONCILING if
its tasks run, or are being ended, and that one may adopt them, else RESTARTING.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.states import JOB_TRANSITIONS, IllegalTransition, JobStatus

STORY_MAX = 50  # transitions remembered of one job
FORGOTTEN_MAX = 100_000  # ids of jobs no longer kept that are still known to have ended


class Ending(Enum):
    """The events that end a job without a report of its JobMaster."""

    CANCELLED_EARLY = "cancelled before it had a JobMaster"
    NO_JOB_MASTER = "no JobMaster process could be started"
    JOB_MASTER_LOST = "its JobMaster was lost"
    JOB_MASTER_LOST_CANCELLING = "its JobMaster was lost while the job was being cancelled"


# From a status, by an event, to a status.
TRANSITIONS: dict[JobStatus, dict[Ending, JobStatus]] = {
    status: {
        Ending.JOB_MASTER_LOST: JobStatus.FAILED,
        Ending.JOB_MASTER_LOST_CANCELLING: JobStatus.CANCELED,
    }
    for status in JobStatus
    if not status.globally_terminal
}
# Those that wait for their next JobMaster.
for _waiting in (JobStatus.INITIALIZING, JobStatus.RECONCILING, JobStatus.RESTARTING):
    TRANSITIONS[_waiting] |= {
        Ending.CANCELLED_EARLY: JobStatus.CANCELED,
        Ending.NO_JOB_MASTER: JobStatus.FAILED,
    }


def _reachable(status: JobStatus) -> frozenset[JobStatus]:
    """What a JobMaster may report after `status`."""
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
class Job:
    job_id: JobId
    name: str
    graph_id: str
    status: JobStatus = JobStatus.INITIALIZING  # changed by `report` and `end` alone
    start_ms: int = 0
    end_ms: int = 0  # 0: not ended
    epoch: int = 0  # of the JobMaster assigned last; 0: none so far
    job_master_id: JobMasterId | None = None
    job_master_address: str = ""  # empty: not known
    tasks_by_state: dict[str, int] = field(default_factory=dict)
    pid: int | None = None  # of its JobMaster process, once known to this Dispatcher
    confirmed: bool = False  # its JobMaster has reported: it has the graph and can be cancelled
    recovers: bool = False  # another JobMaster goes on with it when it has lost its own
    restart_history: str = ""  # as its JobMaster reports it, for its next one
    history: bytes = b""  # the same: a serialised JobHistory
    analysis: bytes = b""  # the same; empty: none, or its tasks cannot be adopted
    assigned_at: float | None = None  # when it got its JobMaster, from this Dispatcher
    lost_in_a_row: int = 0  # JobMasters under which it has stored no checkpoint
    cancel_requested: bool = False
    cancel_again_at: float | None = None
    adopt_until: float | None = None  # found in the store: its JobMaster must register by then
    probe_at: float | None = None  # it is asked whether it lives, while that is awaited
    _story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_MAX), repr=False)

    @property
    def ended(self) -> bool:
        return self.status.globally_terminal

    @property
    def waiting(self) -> bool:
        """It needs a JobMaster."""
        return self.job_master_id is None and not self.ended

    @property
    def may_run(self) -> bool:
        """Whether it has tasks that its next JobMaster may adopt, if only to end them."""
        return self.status is JobStatus.RECONCILING or (
            self.status in _HAS_TASKS and bool(self.analysis)
        )

    def report(self, status: JobStatus, now: float) -> bool:
        """Adopts the status that its JobMaster reports; False if it had it already.

        Raises IllegalTransition.
        """
        if status is self.status:
            return False
        if status not in REPORTABLE[self.status]:
            raise self._illegal(f"its JobMaster reports {status.name}")
        self._move(status, "reported", now)
        return True

    def end(self, event: Ending, now: float) -> None:
        """Raises IllegalTransition."""
        status = TRANSITIONS.get(self.status, {}).get(event)
        if status is None:
            raise self._illegal(event.value)
        self.tasks_by_state = {}
        self._move(status, event.value, now)

    def wait_for_another_master(self, cause: str, now: float) -> None:
        """Its JobMaster is gone, and it goes on under the next one."""
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
        """Adds to its story what changes no status."""
        self._story.append(f"{now:.3f} {what}")

    def story(self) -> list[str]:
        return list(self._story)

    def _move(self, status: JobStatus, cause: str, now: float) -> None:
        self.note(f"{self.status.name} -> {status.name}: {cause}", now)
        self.status = status

    def _illegal(self, event: str) -> IllegalTransition:
        story = "\n".join(f"  {line}" for line in self._story)
        return IllegalTransition(
            f"job {self.job_id} is {self.status.name}, which rules out that {event};"
            f" its story:\n{story}"
        )


class ForgottenJob(NamedTuple):
    job_id: JobId
    status: JobStatus
    why: str = ""  # empty: newer jobs have taken its place


class Violation(NamedTuple):
    """An invariant that does not hold."""

    of: JobId | int  # the job, or the pid of the JobMaster process
    what: str


class JobTable:
    """All jobs of the cluster, oldest first, and how jobs that are no longer kept have ended."""

    def __init__(
        self, jobs: Iterable[Job], forgotten: Iterable[ForgottenJob], *, history: int
    ) -> None:
        """`history`: how many ended jobs are kept."""
        self.by_id = {job.job_id: job for job in sorted(jobs, key=lambda job: job.start_ms)}
        self.forgotten = {job.job_id: job for job in forgotten}
        self._history = history

    def __iter__(self) -> Iterator[Job]:
        return iter(self.by_id.values())

    def find(self, job_id: JobId) -> Job | None:
        """Of a job that is no longer kept, only its id and its last status are known."""
        if (forgotten := self.forgotten.get(job_id)) is not None:
            return Job(job_id=job_id, name="", graph_id="", status=forgotten.status)
        return self.by_id.get(job_id)

    def add(self, job: Job) -> None:
        self.by_id[job.job_id] = job

    def waiting(self) -> list[Job]:
        return [job for job in self if job.waiting]

    def assigned_to(self, job_master_id: JobMasterId | None) -> Job | None:
        return next((job for job in self if job.job_master_id == job_master_id), None)

    def forget_oldest(self) -> list[Job]:
        """Returns the ended jobs that are too many to be kept."""
        ended = sorted((job for job in self if job.ended), key=lambda job: job.end_ms)
        dropped = ended[: max(0, len(ended) - self._history)]
        for job in dropped:
            self.forget(job)
        return dropped

    def forget(self, job: Job, why: str = "") -> None:
        """From now on, only how it ended is known."""
        del self.by_id[job.job_id]
        self.forgotten[job.job_id] = ForgottenJob(job.job_id, job.status, why)
        while len(self.forgotten) > FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]

    def violations(self) -> Iterator[Violation]:
        """What must hold of each job by itself, and does not."""
        ended = 0
        for job in self:
            ended += job.ended
            if job.job_id in self.forgotten:
                yield Violation(job.job_id, "is kept and forgotten")
            if job.end_ms and not job.ended:
                yield Violation(job.job_id, f"is {job.status.name} with the end time {job.end_ms}")
            if job.ended and (job.adopt_until is not None or job.cancel_again_at is not None):
                yield Violation(job.job_id, "has ended and still has a deadline")
            if job.probe_at is not None and job.adopt_until is None:
                yield Violation(job.job_id, "waits for no JobMaster, and asks for it")
            if job.epoch == 0 and job.job_master_id is not None:
                yield Violation(
                    job.job_id, f"has epoch {job.epoch} and JobMaster {job.job_master_id}"
                )
            if job.confirmed and job.job_master_id is None:
                yield Violation(job.job_id, "was reported on without a JobMaster")
        if ended > self._history:
            yield Violation(JobId(""), f"{ended} ended jobs are kept, more than {self._history}")
