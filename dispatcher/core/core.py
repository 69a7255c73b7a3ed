"""What the Dispatcher decides: which jobs exist, which JobMaster process serves which job, what a
client is answered.

Owns: the table of jobs and the table of JobMaster processes. Pure: see firesteel.common.driver.

Rules (numbers are those of the invariants they keep):

* A job is stored before anything is done for it, and before its client hears of it (3).
* A globally terminal job never runs again; submitting its id again returns that it is there (1, 2).
* Submitting the id of a running job is an error and touches nothing of it (4).
* Only the JobMaster that was assigned last, with the last epoch, may report on a job.

A JobMaster process serves one job. Some are kept started beforehand (spares), so a job does not
wait for an interpreter:

    StartProcess ──▶ started ──▶ registered (spare) ──▶ assigned ──▶ acknowledged ──▶ exited
                        │              │                    │
                        └──────────────┴── exits: replaced  └── exits: its job has failed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from dispatcher.core.commands import (
    Acknowledge,
    Answer,
    AskToCancel,
    Command,
    DropResults,
    KillProcess,
    NotifyWatchers,
    Refusal,
    RefusalKind,
    StartJob,
    StartProcess,
)
from dispatcher.core.events import (
    CancelJob,
    CancelNotDelivered,
    Event,
    JobMasterDisconnected,
    JobMasterRegistered,
    JobStatusReported,
    ProcessExited,
    ProcessStarted,
    ProcessStartFailed,
    SubmitJob,
)
from dispatcher.core.records import (
    JobAdded,
    JobAssigned,
    JobCancelRequested,
    JobEnded,
    JobForgotten,
    JobStatusChanged,
    Record,
)
from firesteel.common.core import Effects, Tick
from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.process import exit_reason
from firesteel.common.states import JobStatus

START_BACKOFF_S = 0.5  # doubled with every JobMaster process in a row that ends before it is of use
START_BACKOFF_MAX_S = 30.0
STARTS_BEFORE_GIVING_UP = 3  # then the jobs that wait for a process are failed
STARTING_MAX = 4  # interpreters brought up at the same time
REGISTER_TIMEOUT_S = 30.0  # from process started to registered
RECONNECT_GRACE_S = 5.0  # a broken stream that is not re-established by then is a death notice
ADOPTION_GRACE_S = 10.0  # after a Dispatcher's restart: how long running jobs are given to report
CANCEL_RETRY_S = 1.0
FORGOTTEN_MAX = 100_000  # ids of jobs no longer kept that are still known to have ended
LOST_WHILE_DOWN = "its JobMaster ended while the cluster was down; run the job again"


@dataclass(slots=True, kw_only=True)
class Job:
    job_id: JobId
    name: str
    graph_id: str
    status: JobStatus = JobStatus.INITIALIZING
    start_ms: int = 0
    end_ms: int = 0  # 0: not ended
    epoch: int = 0  # of the JobMaster assigned last; 0: none so far
    job_master_id: JobMasterId | None = None
    tasks_by_state: dict[str, int] = field(default_factory=dict)
    pid: int | None = None  # of its JobMaster process, once known to this Dispatcher
    confirmed: bool = (
        False  # its JobMaster has reported on it: it has the graph and can be asked to cancel
    )
    cancel_requested: bool = False
    cancel_again_at: float | None = None
    adopt_until: float | None = None  # found in the store: its JobMaster must register by then


@dataclass(slots=True, kw_only=True)
class JobMasterProcess:
    pid: int
    child: bool = False  # started by this Dispatcher: the operating system tells of its end
    log_path: str = ""
    job_master_id: JobMasterId | None = None
    address: str = ""
    connection: int | None = None
    job_id: JobId | None = None
    acknowledged: bool = False  # its job is over; it is about to exit
    exit_code: int | None = None
    log_tail: str = ""
    lost_at: float | None = None  # given up then, unless it has (re-)connected


class DispatcherCore:
    """Handles one event at a time; see the module's docstring.

    `wall_offset_s` turns the driver's monotonic clock into seconds since 1970; `jobs` and
    `forgotten` come from the store.
    """

    def __init__(
        self,
        *,
        spares: int,
        history: int,
        wall_offset_s: float = 0.0,
        jobs: Iterable[Job] = (),
        forgotten: Iterable[tuple[JobId, JobStatus]] = (),
        now: float = 0.0,
    ) -> None:
        self.jobs: dict[JobId, Job] = {
            job.job_id: job for job in sorted(jobs, key=lambda job: job.start_ms)
        }
        self.processes: dict[int, JobMasterProcess] = {}  # by pid
        self.stale_reports = 0  # dropped: not from the job's current JobMaster
        self._forgotten: dict[JobId, JobStatus] = dict(forgotten)
        self._spares = spares
        self._history = history
        self._wall_offset_s = wall_offset_s
        self._starting = 0  # StartProcess commands not answered yet
        self._failed_starts = 0  # in a row
        self._last_failure = ""
        self._start_again_at: float | None = None
        self._records: list[Record] = []
        self._commands: list[Command] = []
        for job in self.jobs.values():
            if job.job_master_id is not None and not job.status.globally_terminal:
                job.adopt_until = now + ADOPTION_GRACE_S

    # ---- the driver's interface

    def start(self, now: float) -> Effects[Record, Command]:
        """What is to be done before the first event: the spares."""
        return self.handle(Tick(), now)

    def handle(self, event: Event, now: float) -> Effects[Record, Command]:
        match event:
            case SubmitJob():
                self._submit(event, now)
            case CancelJob():
                self._cancel(event, now)
            case JobMasterRegistered():
                self._registered(event, now)
            case JobMasterDisconnected():
                self._disconnected(event, now)
            case JobStatusReported():
                self._status_reported(event, now)
            case ProcessStarted():
                self._process_started(event, now)
            case ProcessStartFailed():
                self._starting -= 1
                self._start_failed(event.reason, now)
            case ProcessExited():
                self._process_exited(event, now)
            case CancelNotDelivered():
                if (job := self.jobs.get(event.job_id)) and not job.status.globally_terminal:
                    job.cancel_again_at = now + CANCEL_RETRY_S
            case Tick():
                self._time_passed(now)
            case _:
                assert_never(event)
        self._match_jobs_and_processes(now)
        effects = Effects(records=tuple(self._records), commands=tuple(self._commands))
        self._records.clear()
        self._commands.clear()
        return effects

    def next_deadline(self) -> float | None:
        deadlines = [p.lost_at for p in self.processes.values() if p.lost_at is not None]
        for job in self.jobs.values():
            deadlines += [at for at in (job.adopt_until, job.cancel_again_at) if at is not None]
        if self._start_again_at is not None:
            deadlines.append(self._start_again_at)
        return min(deadlines, default=None)

    # ---- what the shell may read

    def find(self, job_id: JobId) -> Job | None:
        """Of a job that is no longer kept only its id and how it ended are known."""
        if (status := self._forgotten.get(job_id)) is not None:
            return Job(job_id=job_id, name="", graph_id="", status=status)
        return self.jobs.get(job_id)

    def is_forgotten(self, job_id: JobId) -> bool:
        return job_id in self._forgotten

    def count(self, *statuses: JobStatus) -> int:
        return sum(job.status in statuses for job in self.jobs.values())

    def running(self) -> int:
        return sum(not job.status.globally_terminal for job in self.jobs.values())

    def process_of(self, job: Job) -> JobMasterProcess | None:
        """The job's JobMaster, while it lives and is connected."""
        process = self.processes.get(job.pid) if job.pid is not None else None
        return (
            process
            if process is not None and process.connection is not None and process.exit_code is None
            else None
        )

    # ---- clients

    def _submit(self, event: SubmitJob, now: float) -> None:
        job = self.find(event.job_id)
        if job is None:
            start_ms = self._wall_ms(now)
            self.jobs[event.job_id] = Job(
                job_id=event.job_id, name=event.name, graph_id=event.graph_id, start_ms=start_ms
            )
            self._records.append(
                JobAdded(
                    job_id=event.job_id, name=event.name, graph_id=event.graph_id, start_ms=start_ms
                )
            )
            self._commands.append(Answer(request=event.request))
            self._commands.append(NotifyWatchers(job_id=event.job_id))
        elif job.status.globally_terminal:
            self._commands.append(
                Answer(request=event.request)
            )  # the stored result is what it gets
        else:
            message = f'job {job.job_id} ("{job.name}") is already {job.status.name}: cancel it first, or submit under a new id'
            self._refuse(event.request, RefusalKind.ALREADY_EXISTS, message)

    def _cancel(self, event: CancelJob, now: float) -> None:
        job = self.find(event.job_id)
        if job is None:
            self._refuse(event.request, RefusalKind.NOT_FOUND, unknown_job(event.job_id))
        elif job.status is JobStatus.CANCELED:
            self._commands.append(Answer(request=event.request))
        elif job.status.globally_terminal:
            message = f'job {job.job_id} ("{job.name}") cannot be cancelled: it is already {job.status.name}'
            self._refuse(event.request, RefusalKind.WRONG_STATE, message)
        else:
            if not job.cancel_requested:
                job.cancel_requested = True
                self._records.append(JobCancelRequested(job_id=job.job_id))
            self._commands.append(Answer(request=event.request))
            if job.job_master_id is None:
                self._end(job, JobStatus.CANCELED, now)  # nothing runs yet
            elif job.confirmed:
                self._ask_to_cancel(job, now)
            # else: its JobMaster is just starting; asked as soon as it reports

    def _ask_to_cancel(self, job: Job, now: float) -> None:
        job.cancel_again_at = None
        if process := self.process_of(job):
            self._commands.append(AskToCancel(job_id=job.job_id, address=process.address))
        # else: asked when it has reconnected; if it does not, the job is ended anyway

    def _refuse(self, request: int, kind: RefusalKind, message: str) -> None:
        self._commands.append(Answer(request=request, refusal=Refusal(kind=kind, message=message)))

    # ---- JobMaster processes

    def _process_started(self, event: ProcessStarted, now: float) -> None:
        self._starting -= 1
        process = self.processes.setdefault(event.pid, JobMasterProcess(pid=event.pid))
        process.child = True
        process.log_path = event.log_path
        if process.job_master_id is None:
            process.lost_at = now + REGISTER_TIMEOUT_S

    def _registered(self, event: JobMasterRegistered, now: float) -> None:
        process = self.processes.setdefault(event.pid, JobMasterProcess(pid=event.pid))
        process.job_master_id = event.job_master_id
        process.address = event.address
        process.connection = event.connection
        process.lost_at = None
        self._failed_starts = 0
        self._start_again_at = None
        if process.job_id is None:
            self._adopt(process)
        if process.job_id is None:
            return
        job = self.jobs.get(process.job_id)
        if job is None or job.status.globally_terminal:
            return  # it will report its terminal status once more, and be acknowledged
        if not job.confirmed:
            self._start_job(job, event.connection)
        elif job.cancel_requested:
            self._ask_to_cancel(job, now)

    def _adopt(self, process: JobMasterProcess) -> None:
        """A process that was assigned by an earlier Dispatcher keeps its job.

        It may never have been told of it, so it is told (again); it is confirmed by its report.
        """
        for job in self.jobs.values():
            if job.job_master_id == process.job_master_id:
                process.job_id = job.job_id
                job.pid = process.pid
                job.adopt_until = None
                return

    def _disconnected(self, event: JobMasterDisconnected, now: float) -> None:
        process = self._by_connection(event.connection)
        if process is None:
            return  # replaced by a newer stream
        process.connection = None
        if process.exit_code is not None or process.acknowledged:
            self._gone(process, now)
        else:
            process.lost_at = now + RECONNECT_GRACE_S

    def _process_exited(self, event: ProcessExited, now: float) -> None:
        process = self.processes.get(event.pid)
        if process is None:
            return
        process.exit_code, process.log_tail = event.exit_code, event.log_tail
        if process.connection is None:
            self._gone(process, now)
        else:
            process.lost_at = (
                now + 1.0
            )  # what its stream still carries is read first: it may be the final status

    def _gone(self, process: JobMasterProcess, now: float) -> None:
        """The last word about a process."""
        del self.processes[process.pid]
        job = self.jobs.get(process.job_id) if process.job_id is not None else None
        if job is None:
            if process.child and not process.acknowledged:
                self._start_failed(f"a JobMaster process {_how_it_ended(process)}", now)
            return
        if job.pid != process.pid:
            return
        job.pid = None
        if job.status.globally_terminal:
            return
        # With high availability, this is where another JobMaster gets the job under the next epoch.
        if job.cancel_requested:
            self._end(job, JobStatus.CANCELED, now)
        else:
            self._end(
                job,
                JobStatus.FAILED,
                now,
                failure=f"the job's JobMaster process {_how_it_ended(process)}",
            )

    def _start_failed(self, reason: str, now: float) -> None:
        self._last_failure = reason
        backoff_s = min(START_BACKOFF_S * 2**self._failed_starts, START_BACKOFF_MAX_S)
        self._failed_starts += 1
        self._start_again_at = now + backoff_s
        if self._failed_starts < STARTS_BEFORE_GIVING_UP:
            return
        for job in self._waiting():
            self._end(
                job,
                JobStatus.FAILED,
                now,
                failure=f"no JobMaster process could be started: {reason}",
            )

    def _by_connection(self, connection: int) -> JobMasterProcess | None:
        return next((p for p in self.processes.values() if p.connection == connection), None)

    # ---- reports

    def _status_reported(self, event: JobStatusReported, now: float) -> None:
        process = self._by_connection(event.connection)
        job = self.jobs.get(event.job_id)
        ended = job is None or job.status.globally_terminal
        if (
            process is None
            or job is None
            or job.pid != process.pid
            or job.epoch != event.epoch
            or ended
        ):
            if process is not None and ended and event.status.globally_terminal:
                self._acknowledge(process, event.status)  # the acknowledgement was lost
                return
            self.stale_reports += 1
            if process is not None and ended:
                self._commands.append(KillProcess(pid=process.pid))  # given up before it came back
            return
        first = not job.confirmed
        job.confirmed = True
        job.tasks_by_state = dict(event.tasks_by_state)
        if event.status.globally_terminal:
            job.status = event.status
            self._ended(job, event.timestamp_ms, event.final_details, "")
            self._acknowledge(process, event.status)
            return
        if event.status is not job.status:
            job.status = event.status
            self._records.append(JobStatusChanged(job_id=job.job_id, status=event.status))
        if first and job.cancel_requested:
            self._ask_to_cancel(job, now)
        self._commands.append(NotifyWatchers(job_id=job.job_id))

    def _acknowledge(self, process: JobMasterProcess, status: JobStatus) -> None:
        process.acknowledged = True
        if process.connection is not None:
            self._commands.append(Acknowledge(connection=process.connection, status=status))

    def _end(self, job: Job, status: JobStatus, now: float, *, failure: str = "") -> None:
        """Ends a job without (or after) its JobMaster."""
        job.status = status
        job.tasks_by_state = {}
        self._ended(job, self._wall_ms(now), None, failure)

    def _ended(self, job: Job, end_ms: int, final_details: bytes | None, failure: str) -> None:
        job.end_ms = end_ms
        job.adopt_until = job.cancel_again_at = None
        self._records.append(
            JobEnded(
                job_id=job.job_id,
                status=job.status,
                end_ms=end_ms,
                final_details=final_details,
                failure=failure,
            )
        )
        self._commands.append(NotifyWatchers(job_id=job.job_id))
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        ended = sorted(
            (j for j in self.jobs.values() if j.status.globally_terminal), key=lambda j: j.end_ms
        )
        for job in ended[: max(0, len(ended) - self._history)]:
            del self.jobs[job.job_id]
            self._forgotten[job.job_id] = job.status
            self._records.append(JobForgotten(job_id=job.job_id))
            self._commands.append(DropResults(job_id=job.job_id))
        while len(self._forgotten) > FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]

    # ---- time and matching

    def _time_passed(self, now: float) -> None:
        for process in [
            p for p in self.processes.values() if p.lost_at is not None and p.lost_at <= now
        ]:
            if process.exit_code is None:
                self._commands.append(KillProcess(pid=process.pid))
            self._gone(process, now)
        for job in list(self.jobs.values()):
            if job.cancel_again_at is not None and job.cancel_again_at <= now:
                self._ask_to_cancel(job, now)
            if job.adopt_until is not None and job.adopt_until <= now:
                if job.cancel_requested:
                    self._end(job, JobStatus.CANCELED, now)
                else:
                    self._end(job, JobStatus.FAILED, now, failure=LOST_WHILE_DOWN)
        if self._start_again_at is not None and self._start_again_at <= now:
            self._start_again_at = None

    def _match_jobs_and_processes(self, now: float) -> None:
        """Run after every event, from current facts: waiting jobs get spares, missing processes are
        started.
        """
        idle = [p for p in self.processes.values() if p.job_id is None and p.exit_code is None]
        ready = [p for p in idle if p.connection is not None]
        waiting = self._waiting()
        for job, process in zip(waiting, ready, strict=False):
            self._assign(job, process)
        matched = min(len(waiting), len(ready))
        if self._start_again_at is not None:
            return
        missing = len(waiting) - matched + self._spares - (len(idle) - matched) - self._starting
        for _ in range(min(missing, STARTING_MAX - self._starting)):
            self._starting += 1
            self._commands.append(StartProcess())

    def _waiting(self) -> Sequence[Job]:
        return [
            j
            for j in self.jobs.values()
            if j.job_master_id is None and not j.status.globally_terminal
        ]

    def _assign(self, job: Job, process: JobMasterProcess) -> None:
        assert process.job_master_id is not None, "only registered processes are assigned"
        assert process.connection is not None, "only connected processes are assigned"
        job.epoch += 1
        job.job_master_id = process.job_master_id
        job.pid = process.pid
        process.job_id = job.job_id
        self._records.append(
            JobAssigned(job_id=job.job_id, epoch=job.epoch, job_master_id=process.job_master_id)
        )
        self._start_job(job, process.connection)

    def _start_job(self, job: Job, connection: int) -> None:
        self._commands.append(
            StartJob(
                connection=connection, job_id=job.job_id, graph_id=job.graph_id, epoch=job.epoch
            )
        )

    def _wall_ms(self, now: float) -> int:
        return round((now + self._wall_offset_s) * 1000)


def unknown_job(job_id: str) -> str:
    return f"there is no job {job_id} on this cluster; `firesteel list -a` shows the jobs that it knows"


def _how_it_ended(process: JobMasterProcess) -> str:
    where = f"; its log is {process.log_path}" if process.log_path else ""
    if process.log_tail:
        where += f"; it ends with\n{process.log_tail}"
    if process.exit_code is None:
        return f"(pid {process.pid}) could not be reached any more{where}"
    return f"(pid {process.pid}) ended with {exit_reason(process.exit_code)}{where}"
