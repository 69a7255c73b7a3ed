"""Decides which jobs exist, which JobMaster process serves which job, and how clients are answered.

Owns the table of jobs and the table of JobMaster processes. A pure core: see
firesteel.common.service.core.

Rules (numbers are those of the invariants that they keep):

* A job is stored before any action is taken for it, and before its client is answered (3).
* A job is submitted once. The same graph under the same id is a repeated submission whose answer
  was lost; it is answered with the existing job, even if that has ended (1, 2). A different graph
  under the same id is refused. Neither changes the job (4).
* Only the JobMaster that was assigned last, with the highest epoch, may report on a job.
* A job that loses its JobMaster gets a new one, under the next epoch, if it takes checkpoints, is a
  batch job, or its JobMaster has reported that its tasks can be adopted without checkpoints. The
  new JobMaster adopts running tasks and continues them, or cancels them if the job was being
  cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from dispatcher.core.commands import (
    Acknowledge,
    Answer,
    AskToCancel,
    Command,
    DropLog,
    DropResults,
    KillProcess,
    NotifyWatchers,
    ProbeJobMaster,
    Refusal,
    RefusalKind,
    StartJob,
    StartProcess,
    StoreGraph,
)
from dispatcher.core.events import (
    CancelJob,
    CancelNotDelivered,
    CheckpointStored,
    Event,
    GraphStored,
    JobMasterDisconnected,
    JobMasterProbe,
    JobMasterProbed,
    JobMasterRegistered,
    JobStatusReported,
    ProcessExited,
    ProcessStarted,
    ProcessStartFailed,
    RemoveJob,
    SubmitJob,
)
from dispatcher.core.processes import JobMasterProcess, ProcessTable
from dispatcher.core.records import (
    HandoverChanged,
    JobAdded,
    JobAssigned,
    JobCancelRequested,
    JobEnded,
    JobForgotten,
    JobStatusChanged,
    Record,
)
from dispatcher.core.submitted_jobs import Ending, ForgottenJob, JobTable, SubmittedJob
from firesteel.common.fencing import Refusals
from firesteel.common.ids import JobId
from firesteel.common.service.core import Effects, Tick
from firesteel.common.states import IllegalTransition, JobStatus

REGISTER_TIMEOUT_S = 30.0  # from a process's start to its registration
RECONNECT_GRACE_S = 5.0  # a JobMaster whose stream stays broken longer is dead
# After a Dispatcher's restart: until JobMasters of running jobs must have registered or answered.
ADOPTION_GRACE_S = 10.0
PROBE_INTERVAL_S = 1.0  # until an unregistered JobMaster is probed again
LAST_MESSAGES_S = 1.0  # after a process's exit, to read the rest of its stream
CANCEL_RETRY_S = 1.0
# How many JobMasters in a row a job may lose before one stores a checkpoint or lasts a while.
JOB_MASTERS_IN_A_ROW = 3
LASTING_S = 60.0
REMOVED = "it was removed (`firesteel remove`)"
LOST_WHILE_DOWN = "its JobMaster ended while the cluster was down; run the job again"


class DispatcherCore:
    """Handles one event at a time; see the module's docstring.

    `wall_offset_s` converts the driver's monotonic clock to seconds since 1970; `jobs` and
    `forgotten` come from the store; at most `history` ended jobs are kept.
    """

    def __init__(
        self,
        *,
        spares: int,
        history: int,
        wall_offset_s: float = 0.0,
        jobs: Iterable[SubmittedJob] = (),
        forgotten: Iterable[ForgottenJob] = (),
        now: float = 0.0,
    ) -> None:
        self.table = JobTable(jobs, forgotten, history=history)
        self.processes = ProcessTable(spares=spares)
        self.stale_reports = 0  # dropped reports: not from the job's current JobMaster
        self.refusals = Refusals()  # messages of JobMasters that were replaced
        self._wall_offset_s = wall_offset_s
        # These belong to the current event, in order.
        self._records: list[Record] = []
        self._commands: list[Command] = []
        for job in self.table:
            job.note(f"{job.status.name} in the store", now)
            if job.job_master_id is not None and not job.ended:
                job.adopt_until = now + ADOPTION_GRACE_S
                job.probe_at = now if job.job_master_address else None

    # ---- the driver's interface

    def handle(self, event: Event, now: float) -> Effects[Record, Command]:
        match event:
            case SubmitJob():
                if self.find(event.job_id) is None:
                    self._commands.append(StoreGraph(submission=event))
                else:
                    self._submit(event, now)
            case GraphStored():
                self._submit(event.submission, now)
            case CancelJob():
                self._cancel(event, now)
            case RemoveJob():
                self._remove(event)
            case JobMasterRegistered():
                self._registered(event, now)
            case JobMasterDisconnected():
                self._disconnected(event, now)
            case JobStatusReported():
                self._status_reported(event, now)
            case CheckpointStored():
                if (job := self.jobs.get(event.job_id)) and job.epoch == event.epoch:
                    job.lost_in_a_row = 0
            case ProcessStarted():
                self._process_started(event, now)
            case ProcessStartFailed():
                self.processes.starting -= 1
                self._start_failed(event.reason, now)
            case ProcessExited():
                self._process_exited(event, now)
            case JobMasterProbed():
                self._probed(event, now)
            case CancelNotDelivered():
                if (job := self.jobs.get(event.job_id)) and not job.ended:
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
        deadlines = [p.lost_at for p in self.processes if p.lost_at is not None]
        for job in self.table:
            times = (job.adopt_until, job.probe_at, job.cancel_again_at)
            deadlines += [at for at in times if at is not None]
        if self.processes.start_again_at is not None:
            deadlines.append(self.processes.start_again_at)
        return min(deadlines, default=None)

    # ---- what the shell may read

    @property
    def jobs(self) -> dict[JobId, SubmittedJob]:
        return self.table.by_id

    def find(self, job_id: JobId) -> SubmittedJob | None:
        return self.table.find(job_id)

    def forgotten(self, job_id: JobId) -> ForgottenJob | None:
        return self.table.forgotten.get(job_id)

    def count(self, *statuses: JobStatus) -> int:
        return sum(job.status in statuses for job in self.table)

    def running(self) -> int:
        return sum(not job.ended for job in self.table)

    def process_of(self, job: SubmittedJob) -> JobMasterProcess | None:
        """Returns the job's JobMaster process if it is alive and connected."""
        process = self.processes.by_pid.get(job.pid) if job.pid is not None else None
        if process is None or process.connection is None or process.exit_reason is not None:
            return None
        return process

    def story(self, of: JobId | int) -> list[str]:
        """Returns how this job, or the JobMaster process with this pid, came to its state."""
        entity = self.processes.by_pid.get(of) if isinstance(of, int) else self.jobs.get(of)
        return entity.story() if entity is not None else []

    def validate(self) -> None:
        """Raises AssertionError with the story of the job or process that violates an invariant."""
        for job_id, what in self.table.violations():
            self._broken(f"job {job_id} {what}", job_id)
        for pid, what in self.processes.violations():
            self._broken(f"JobMaster process {pid} {what}", pid)
        for job in self.table:
            process = self.processes.by_pid.get(job.pid) if job.pid is not None else None
            if job.pid is not None and (process is None or process.job_id != job.job_id):
                self._broken(
                    f"job {job.job_id} is assigned to process {job.pid}, which does not serve it",
                    job.job_id,
                )
            if not job.ended and not job.waiting and job.pid is None and job.adopt_until is None:
                self._broken(f"job {job.job_id} has no JobMaster and waits for none", job.job_id)
        if self.table.waiting() and self.processes.spares():
            job_id = self.table.waiting()[0].job_id
            self._broken(f"job {job_id} waits although there are spare JobMasters", job_id)

    def _broken(self, what: str, of: JobId | int) -> None:
        raise AssertionError("\n  ".join([what, *self.story(of)]))

    # ---- clients

    def _submit(self, event: SubmitJob, now: float) -> None:
        job = self.find(event.job_id)
        if job is None:
            start_ms = self._wall_ms(now)
            job = SubmittedJob(
                job_id=event.job_id,
                name=event.name,
                graph_id=event.graph_id,
                start_ms=start_ms,
                recovers=event.recovers,
                owner=event.owner,
            )
            job.note("submitted", now)
            self.table.add(job)
            self._records.append(
                JobAdded(
                    job_id=event.job_id,
                    name=event.name,
                    graph_id=event.graph_id,
                    start_ms=start_ms,
                    recovers=event.recovers,
                    owner=event.owner,
                )
            )
            self._commands.append(Answer(request=event.request))
            self._commands.append(NotifyWatchers(job_id=event.job_id))
        elif job.graph_id == event.graph_id or self.forgotten(job.job_id) is not None:
            # Only the id of a forgotten job is known.
            self._commands.append(Answer(request=event.request))
        else:
            message = (
                f'job {job.job_id} ("{job.name}", {job.status.name}) was submitted with a different'
                " program: submit this one under a new id"
            )
            self._refuse(event.request, RefusalKind.ALREADY_EXISTS, message)

    def _cancel(self, event: CancelJob, now: float) -> None:
        job = self.find(event.job_id)
        if job is None:
            self._refuse(event.request, RefusalKind.NOT_FOUND, unknown_job(event.job_id))
        elif job.status is JobStatus.CANCELED:
            self._commands.append(Answer(request=event.request))
        elif job.ended:
            message = (
                f'job {job.job_id} ("{job.name}") cannot be cancelled:'
                f" it is already {job.status.name}"
            )
            self._refuse(event.request, RefusalKind.WRONG_STATE, message)
        else:
            if not job.cancel_requested:
                job.cancel_requested = True
                job.note("cancel requested", now)
                self._records.append(JobCancelRequested(job_id=job.job_id))
            self._commands.append(Answer(request=event.request))
            if job.waiting and job.status is not JobStatus.RECONCILING:
                self._end(job, Ending.CANCELLED_EARLY, now)
            elif job.confirmed:
                self._ask_to_cancel(job)
            # else: its JobMaster is starting, or its next one, which cancels running tasks; it gets
            # the request with the job, or at its first report

    def _remove(self, event: RemoveJob) -> None:
        job = self.jobs.get(event.job_id)
        if job is None and self.forgotten(event.job_id) is not None:
            self._commands.append(Answer(request=event.request))  # nothing of it is left to remove
        elif job is None:
            self._refuse(event.request, RefusalKind.NOT_FOUND, unknown_job(event.job_id))
        elif not job.ended:
            message = (
                f'job {job.job_id} ("{job.name}") is {job.status.name}:'
                f" cancel it first (`firesteel cancel {job.job_id}`)"
            )
            self._refuse(event.request, RefusalKind.WRONG_STATE, message)
        else:
            self.table.forget(job, REMOVED)
            self._records.append(JobForgotten(job_id=job.job_id, why=REMOVED))
            self._commands += [
                DropResults(job_id=job.job_id),
                DropLog(job_id=job.job_id),
                NotifyWatchers(job_id=job.job_id),
                Answer(request=event.request),
            ]

    def _ask_to_cancel(self, job: SubmittedJob) -> None:
        job.cancel_again_at = None
        if process := self.process_of(job):
            self._commands.append(AskToCancel(job_id=job.job_id, address=process.address))
        # else: sent when the JobMaster reconnects; if it does not, the job ends anyway

    def _refuse(self, request: int, kind: RefusalKind, message: str) -> None:
        self._commands.append(Answer(request=request, refusal=Refusal(kind=kind, message=message)))

    # ---- JobMaster processes

    def _process_started(self, event: ProcessStarted, now: float) -> None:
        self.processes.starting -= 1
        process = self.processes.get_or_add(event.pid)
        process.note("started", now)
        process.child = True
        process.log_path = event.log_path
        if process.job_master_id is None:
            process.lost_at = now + REGISTER_TIMEOUT_S

    def _registered(self, event: JobMasterRegistered, now: float) -> None:
        process = self.processes.get_or_add(event.pid)
        process.note(f"registered on connection {event.connection}", now)
        process.job_master_id = event.job_master_id
        process.address = event.address
        process.connection = event.connection
        if process.exit_reason is None:  # otherwise these are the last messages of a dead process
            process.lost_at = None
        self.processes.start_succeeded()
        if process.job_id is None:
            self._adopt(process, now)
        if process.job_id is None and event.job_id is not None:
            self._superseded(process, event.job_id)
            return
        if process.job_id is None:
            return
        job = self.jobs.get(process.job_id)
        if job is None or job.ended:
            return  # it reports its terminal status again, and is acknowledged
        if not job.confirmed:
            self._start_job(job, event.connection)
        elif job.cancel_requested:
            self._ask_to_cancel(job)

    def _superseded(self, process: JobMasterProcess, serves: JobId) -> None:
        """Kills a process that was given up and is back: its job runs elsewhere."""
        process.job_id = serves
        job = self.jobs.get(serves)
        if job is not None and not job.ended:
            self._commands.append(KillProcess(pid=process.pid))

    def _adopt(self, process: JobMasterProcess, now: float) -> None:
        """Returns the job to the JobMaster that an earlier Dispatcher assigned.

        The assignment may not have reached it, so it is sent again until the JobMaster reports.
        """
        if (job := self.table.assigned_to(process.job_master_id)) is not None:
            job.note(f"adopted with JobMaster process {process.pid}", now)
            process.job_id = job.job_id
            job.pid = process.pid
            job.adopt_until = job.probe_at = None

    def _probed(self, event: JobMasterProbed, now: float) -> None:
        """Handles the probe of a JobMaster that an earlier Dispatcher assigned and that has not
        registered.
        """
        job = self.jobs.get(event.job_id)
        if job is None or job.adopt_until is None or job.epoch != event.epoch:
            return
        match event.outcome:
            case JobMasterProbe.ENDED:
                self._lose(job, LOST_WHILE_DOWN, now)
            case JobMasterProbe.RUNS:  # it will register, however long that takes
                job.adopt_until = now + ADOPTION_GRACE_S
                job.probe_at = now + PROBE_INTERVAL_S
            case JobMasterProbe.SILENT:  # it hangs, or its machine is unreachable
                job.probe_at = now + PROBE_INTERVAL_S
            case _:
                assert_never(event.outcome)

    def _disconnected(self, event: JobMasterDisconnected, now: float) -> None:
        process = self.processes.on(event.connection)
        if process is None:
            return  # replaced by a newer stream
        process.note("disconnected", now)
        process.connection = None
        if process.exit_reason is not None or process.acknowledged:
            self._gone(process, now)
        else:
            process.lost_at = now + RECONNECT_GRACE_S

    def _process_exited(self, event: ProcessExited, now: float) -> None:
        process = self.processes.by_pid.get(event.pid)
        if process is None:
            return
        process.note(f"exited: {event.reason}", now)
        process.exit_reason, process.log_tail = event.reason, event.log_tail
        if process.connection is None:
            self._gone(process, now)
        else:
            # The final status may be among its last messages.
            process.lost_at = now + LAST_MESSAGES_S

    def _gone(self, process: JobMasterProcess, now: float) -> None:
        """Handles the end of a process that sends no more messages."""
        self.processes.remove(process)
        job = self.jobs.get(process.job_id) if process.job_id is not None else None
        if job is None:
            if process.child and not process.acknowledged:
                self._start_failed(f"a JobMaster process {process.how_it_ended()}", now)
            return
        if job.pid != process.pid:
            return
        job.pid = None
        if not job.ended:
            self._lose(job, f"the job's JobMaster process {process.how_it_ended()}", now)

    def _start_failed(self, reason: str, now: float) -> None:
        if self.processes.start_failed(now):
            for job in self.table.waiting():
                failure = f"no JobMaster process could be started: {reason}"
                self._end(job, Ending.NO_JOB_MASTER, now, failure=failure)

    # ---- reports

    def _status_reported(self, event: JobStatusReported, now: float) -> None:
        process = self.processes.on(event.connection)
        job = self.jobs.get(event.job_id)
        if process is None:
            self.stale_reports += 1
        elif job is None or job.ended:
            self._reported_after_the_end(process, job, event)
        elif job.pid != process.pid or job.epoch != event.epoch:
            self.stale_reports += 1
            if event.epoch < job.epoch:
                self._refuse_job_master(job, "status", event.epoch)
        else:
            self._reported(job, process, event, now)

    def superseded(self, job_id: JobId, epoch: int, what: str) -> str:
        """Returns why the JobMaster of this epoch must not store anything for the job, and counts
        the refusal; empty if it may.
        """
        job = self.jobs.get(job_id)
        if job is not None and job.epoch == epoch and not job.ended:
            return ""
        if job is not None and epoch < job.epoch:
            self._refuse_job_master(job, what, epoch)
        return f"job {job_id} is over, or has a newer JobMaster than that of epoch {epoch}"

    def _refuse_job_master(self, job: SubmittedJob, what: str, epoch: int) -> None:
        self.refusals.refuse(
            what, sender="JobMaster", epoch=epoch, in_force=job.epoch, job_id=job.job_id
        )

    def _reported_after_the_end(
        self, process: JobMasterProcess, job: SubmittedJob | None, event: JobStatusReported
    ) -> None:
        """Acknowledges the stored end of the job, so that the JobMaster deletes the job's files."""
        ended_so = job is None or (job.status, job.epoch) == (event.status, event.epoch)
        if ended_so and event.status.globally_terminal:
            self._acknowledge(process, event.status)  # the acknowledgement was lost
            return
        self.stale_reports += 1
        if job is not None and event.epoch < job.epoch:
            self._refuse_job_master(job, "status", event.epoch)
        self._commands.append(KillProcess(pid=process.pid))  # it was given up before it came back

    def _reported(
        self, job: SubmittedJob, process: JobMasterProcess, event: JobStatusReported, now: float
    ) -> None:
        first = not job.confirmed
        job.confirmed = True
        try:
            news = job.report(event.status, now)
        except IllegalTransition as error:  # the JobMaster's fault: end one job, not all
            self._commands.append(KillProcess(pid=process.pid))
            self._end(job, Ending.JOB_MASTER_LOST, now, failure=str(error))
            return
        job.tasks_by_state = dict(event.tasks_by_state)
        if job.ended:
            self._ended(
                job,
                event.timestamp_ms,
                event.final_details,
                keeps_checkpoints=event.keeps_checkpoints,
            )
            self._acknowledge(process, event.status)
            return
        handover = b"" if event.unadoptable else event.handover or job.handover
        if handover is not None and handover != job.handover:
            self._hand_over(job, handover)
        history = event.history or job.history
        if news or (event.restart_history, history) != (job.restart_history, job.history):
            job.restart_history, job.history = event.restart_history, history
            self._status_changed(job)
        if first and job.cancel_requested:
            self._ask_to_cancel(job)
        self._commands.append(NotifyWatchers(job_id=job.job_id))

    def _hand_over(self, job: SubmittedJob, handover: bytes) -> None:
        job.handover = handover
        self._records.append(HandoverChanged(job_id=job.job_id, handover=handover))

    def _status_changed(self, job: SubmittedJob) -> None:
        self._records.append(
            JobStatusChanged(
                job_id=job.job_id,
                status=job.status,
                restart_history=job.restart_history,
                history=job.history,
            )
        )

    def _acknowledge(self, process: JobMasterProcess, status: JobStatus) -> None:
        process.acknowledged = True
        if process.connection is not None:
            self._commands.append(Acknowledge(connection=process.connection, status=status))

    # ---- ends

    def _lose(self, job: SubmittedJob, failure: str, now: float) -> None:
        """Handles the loss of the job's JobMaster."""
        if job.assigned_at is not None and now - job.assigned_at >= LASTING_S:
            job.lost_in_a_row = 0
        recovers = job.outlives_its_job_master and job.lost_in_a_row < JOB_MASTERS_IN_A_ROW
        if recovers and (job.may_run or not job.cancel_requested):
            job.lost_in_a_row += 1
            job.wait_for_another_master(failure, now)
            if not job.may_run and job.handover:
                self._hand_over(job, b"")  # the next JobMaster starts with no tasks to adopt
            self._status_changed(job)
            self._commands.append(NotifyWatchers(job_id=job.job_id))
        elif job.cancel_requested:
            self._end(job, Ending.JOB_MASTER_LOST_CANCELLING, now)
        else:
            self._end(job, Ending.JOB_MASTER_LOST, now, failure=failure)

    def _end(self, job: SubmittedJob, event: Ending, now: float, *, failure: str = "") -> None:
        job.end(event, now)
        # Only a JobMaster can delete the files of checkpoints.
        self._ended(job, self._wall_ms(now), failure=failure, keeps_checkpoints=True)

    def _ended(
        self,
        job: SubmittedJob,
        end_ms: int,
        final_details: bytes | None = None,
        failure: str = "",
        *,
        keeps_checkpoints: bool,
    ) -> None:
        job.end_ms = end_ms
        job.adopt_until = job.probe_at = job.cancel_again_at = None
        if final_details is not None:
            job.history = b""  # the details include it
        self._records.append(
            JobEnded(
                job_id=job.job_id,
                status=job.status,
                end_ms=end_ms,
                final_details=final_details,
                failure=failure,
                keeps_checkpoints=keeps_checkpoints,
            )
        )
        self._commands.append(NotifyWatchers(job_id=job.job_id))
        for dropped in self.table.forget_oldest():
            self._records.append(JobForgotten(job_id=dropped.job_id))
            self._commands.append(DropResults(job_id=dropped.job_id))

    # ---- time and matching

    def _time_passed(self, now: float) -> None:
        for process in list(self.processes):
            if process.lost_at is not None and process.lost_at <= now:
                if process.exit_reason is None:
                    self._commands.append(KillProcess(pid=process.pid))
                self._gone(process, now)
        for job in list(self.table):
            if job.cancel_again_at is not None and job.cancel_again_at <= now:
                self._ask_to_cancel(job)
            if job.probe_at is not None and job.probe_at <= now - PROBE_INTERVAL_S:
                job.adopt_until = now + ADOPTION_GRACE_S  # no probe was sent for a while
            if job.adopt_until is not None and job.adopt_until <= now:
                self._lose(job, LOST_WHILE_DOWN, now)
            if job.probe_at is not None and job.probe_at <= now:
                job.probe_at = None  # until the outcome is known
                self._commands.append(
                    ProbeJobMaster(
                        job_id=job.job_id, epoch=job.epoch, address=job.job_master_address
                    )
                )
        start_again_at = self.processes.start_again_at
        if start_again_at is not None and start_again_at <= now:
            self.processes.start_again_at = None

    def _match_jobs_and_processes(self, now: float) -> None:
        """Assigns spare processes to waiting jobs and starts missing processes. Runs after every
        event, from current facts.
        """
        for job, process in zip(self.table.waiting(), self.processes.spares(), strict=False):
            self._assign(job, process, now)
        for _ in range(self.processes.to_start(len(self.table.waiting()))):
            self.processes.starting += 1
            self._commands.append(StartProcess())

    def _assign(self, job: SubmittedJob, process: JobMasterProcess, now: float) -> None:
        assert process.job_master_id is not None, "only registered processes are assigned"
        assert process.connection is not None, "only connected processes are assigned"
        job.epoch += 1
        job.job_master_id = process.job_master_id
        job.job_master_address = process.address
        job.assigned_at = now
        job.pid = process.pid
        process.job_id = job.job_id
        job.note(f"assigned to JobMaster process {process.pid} with epoch {job.epoch}", now)
        process.note(f"assigned to job {job.job_id}", now)
        self._records.append(
            JobAssigned(
                job_id=job.job_id,
                epoch=job.epoch,
                job_master_id=process.job_master_id,
                address=process.address,
            )
        )
        self._start_job(job, process.connection)

    def _start_job(self, job: SubmittedJob, connection: int) -> None:
        self._commands.append(
            StartJob(
                connection=connection,
                job_id=job.job_id,
                graph_id=job.graph_id,
                epoch=job.epoch,
                restart_history=job.restart_history,
                history=job.history,
                handover=job.handover or b"",
                reconciles=job.status is JobStatus.RECONCILING,
                cancels=job.cancel_requested,
            )
        )

    def _wall_ms(self, now: float) -> int:
        return round((now + self._wall_offset_s) * 1000)


def unknown_job(job_id: str) -> str:
    return f"there is no job {job_id} on this cluster; `firesteel list -a` shows its jobs"
