"""The Dispatcher's core: events in, commands and records out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.core.commands import (
    Acknowledge,
    Answer,
    AskToCancel,
    DropLog,
    DropResults,
    KillProcess,
    ProbeJobMaster,
    RefusalKind,
    StartJob,
    StartProcess,
    StoreGraph,
)
from dispatcher.core.core import (
    ADOPTION_GRACE_S,
    JOB_MASTERS_IN_A_ROW,
    LASTING_S,
    PROBE_INTERVAL_S,
    RECONNECT_GRACE_S,
    REMOVED,
    DispatcherCore,
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
from dispatcher.core.processes import STARTS_BEFORE_GIVING_UP
from dispatcher.core.records import (
    HandoverChanged,
    JobAdded,
    JobAssigned,
    JobCancelRequested,
    JobEnded,
    JobForgotten,
    JobStatusChanged,
)
from dispatcher.core.submitted_jobs import Ending, SubmittedJob
from firesteel.common.ids import JobId, JobMasterId
from firesteel.common.service.core import Tick
from firesteel.common.states import IllegalTransition, JobStatus

JOB = JobId("a" * 32)
OTHER = JobId("b" * 32)


class Harness:
    """A core with its clock, its latest commands and all its commands."""

    def __init__(
        self, *, spares: int = 1, history: int = 100, jobs: list[SubmittedJob] | None = None
    ) -> None:
        self.now = 100.0
        self.core = DispatcherCore(spares=spares, history=history, jobs=jobs or [], now=self.now)
        self.records: list[object] = []
        self.commands: list[object] = []
        self.handle(Tick())

    def handle(self, event: Event) -> list[object]:
        effects = self.core.handle(event, self.now)
        self.records += effects.records
        self.commands += effects.commands
        self.core.validate()
        return [*effects.records, *effects.commands]

    def pass_time(self, seconds: float) -> list[object]:
        self.now += seconds
        return self.handle(Tick())

    def submit(
        self,
        job_id: JobId = JOB,
        request: int = 1,
        *,
        recovers: bool = False,
        graph_id: str = "g",
    ) -> list[object]:
        submission = SubmitJob(
            request=request,
            job_id=job_id,
            name="a job",
            graph_id=graph_id,
            graph=b"graph",
            blob_hashes=frozenset(),
            recovers=recovers,
        )
        out = self.handle(submission)
        if out == [StoreGraph(submission=submission)]:
            return self.handle(GraphStored(submission=submission))
        return out

    def cancel(self, job_id: JobId = JOB, request: int = 2) -> list[object]:
        return self.handle(CancelJob(request=request, job_id=job_id))

    def process(self, number: int = 1) -> list[object]:
        """A JobMaster process comes up and registers; pid and connection are its number."""
        self.handle(ProcessStarted(pid=number, log_path=f"/logs/{number}.log"))
        return self.register(number)

    def register(
        self, number: int, connection: int | None = None, serves: JobId | None = None
    ) -> list[object]:
        return self.handle(
            JobMasterRegistered(
                connection=connection or number,
                job_master_id=JobMasterId(f"{number:032x}"),
                pid=number,
                address=f"127.0.0.1:{number}",
                job_id=serves,
            )
        )

    def report(
        self,
        status: JobStatus,
        *,
        job_id: JobId = JOB,
        connection: int = 1,
        epoch: int = 1,
        restart_history: str = "",
        history: bytes = b"",
        handover: bytes = b"",
        unadoptable: bool = False,
    ) -> list[object]:
        return self.handle(
            JobStatusReported(
                connection=connection,
                job_id=job_id,
                epoch=epoch,
                status=status,
                timestamp_ms=5,
                restart_history=restart_history,
                history=history,
                handover=handover,
                unadoptable=unadoptable,
                tasks_by_state={status.name: 1},
                final_details=b"details" if status.globally_terminal else None,
            )
        )

    def running(self, *, recovers: bool = False) -> Harness:
        self.process()
        self.submit(recovers=recovers)
        self.report(JobStatus.RUNNING)
        return self

    def dies(self, number: int) -> list[object]:
        out = self.handle(ProcessExited(pid=number, reason="killed by SIGKILL"))
        return out + self.handle(JobMasterDisconnected(connection=number))

    @property
    def job(self) -> SubmittedJob:
        return self.core.jobs[JOB]


def of(kind: type, things: list[object]) -> list[object]:
    return [thing for thing in things if isinstance(thing, kind)]


def refusal(things: list[object]) -> RefusalKind | None:
    (answer,) = of(Answer, things)
    return answer.refusal.kind if answer.refusal else None


def test_a_spare_is_started_before_any_job_comes() -> None:
    assert of(StartProcess, Harness(spares=2).commands) == [StartProcess(), StartProcess()]


def test_a_job_is_stored_given_to_the_spare_and_the_spare_replaced() -> None:
    harness = Harness()
    harness.process()
    out = harness.submit()
    assert of(JobAdded, out) == [JobAdded(job_id=JOB, name="a job", graph_id="g", start_ms=100_000)]
    assert of(JobAssigned, out) == [
        JobAssigned(
            job_id=JOB, epoch=1, job_master_id=JobMasterId(f"{1:032x}"), address="127.0.0.1:1"
        )
    ]
    assert of(StartJob, out) == [StartJob(connection=1, job_id=JOB, graph_id="g", epoch=1)]
    assert of(StartProcess, out) == [StartProcess()]
    assert refusal(out) is None


def test_the_graph_is_stored_before_the_job_and_a_repeated_submission_stores_none() -> None:
    harness = Harness()
    harness.submit()
    harness.submit(request=2)
    (store,) = of(StoreGraph, harness.commands)
    assert isinstance(store, StoreGraph)
    assert len(of(JobAdded, harness.records)) == 1
    assert refusal(harness.handle(GraphStored(submission=store.submission))) is None
    assert len(of(JobAdded, harness.records)) == 1, "two submissions at the same time"


def test_only_the_current_job_master_commits_checkpoints() -> None:
    harness = Harness().running(recovers=True)
    superseded = harness.core.superseded
    assert superseded(JOB, 1, "a checkpoint") == ""
    assert f"job {JOB} is over, or has a newer" in superseded(JOB, 2, "a checkpoint")
    assert f"job {OTHER} is over" in superseded(OTHER, 1, "a checkpoint")
    assert not harness.core.refusals.by_sender
    assert "than that of epoch 0" in superseded(JOB, 0, "a checkpoint")
    assert harness.core.refusals.by_sender["JobMaster"] == 1
    harness.report(JobStatus.FINISHED)
    assert f"job {JOB} is over" in superseded(JOB, 1, "a checkpoint")


def test_jobs_without_a_spare_wait_for_one_in_order() -> None:
    harness = Harness()
    out = harness.submit() + harness.submit(OTHER)
    assert len(of(StartProcess, harness.commands)) == 3  # one for each, one spare
    assert not of(StartJob, out)
    assert [c.job_id for c in of(StartJob, harness.process(1))] == [JOB]
    assert [c.job_id for c in of(StartJob, harness.process(2))] == [OTHER]


def test_an_early_registration_starts_no_extra_process() -> None:
    harness = Harness()
    harness.register(1)
    harness.handle(ProcessStarted(pid=1, log_path="/logs/1.log"))
    harness.submit()
    assert len(of(StartProcess, harness.commands)) == 2  # the first, and the one that replaces it
    assert harness.core.processes.by_pid[1].lost_at is None


def test_a_repeated_submission_returns_the_existing_job() -> None:
    harness = Harness()
    harness.submit()
    assert harness.submit(request=7) == [Answer(request=7)]
    harness.process()
    harness.report(JobStatus.RUNNING)
    assert harness.submit(request=8) == [Answer(request=8)]
    assert harness.job.status is JobStatus.RUNNING and harness.job.epoch == 1


@pytest.mark.parametrize("ended", [False, True])
def test_another_program_under_a_taken_job_id_is_refused(ended: bool) -> None:
    harness = Harness().running()
    if ended:
        harness.report(JobStatus.FINISHED)
    status = harness.job.status
    out = harness.submit(request=7, graph_id="another")
    assert refusal(out) is RefusalKind.ALREADY_EXISTS
    assert JOB in out[0].refusal.message
    assert out == [out[0]]
    assert harness.job.status is status


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED])
def test_submitting_an_ended_job_again_returns_it_and_never_runs_it(status: JobStatus) -> None:
    harness = Harness().running()
    harness.report(status)
    assert harness.submit(request=7) == [Answer(request=7)]
    assert harness.job.status is status


def test_a_forgotten_job_never_runs_again() -> None:
    harness = Harness(history=1).running()
    harness.report(JobStatus.FINISHED)
    harness.process(2)
    harness.submit(OTHER)
    out = harness.report(JobStatus.FINISHED, job_id=OTHER, connection=2)
    assert of(JobForgotten, out) == [JobForgotten(job_id=JOB)]
    assert of(DropResults, out) == [DropResults(job_id=JOB)]
    assert list(harness.core.jobs) == [OTHER]
    assert harness.submit(request=9) == [Answer(request=9)]
    assert list(harness.core.jobs) == [OTHER]
    forgotten = harness.core.find(JOB)
    assert forgotten is not None
    assert forgotten.status is JobStatus.FINISHED
    assert refusal(harness.cancel(JOB)) is RefusalKind.WRONG_STATE


def test_a_removed_job_leaves_how_it_ended_and_never_runs_again() -> None:
    harness = Harness().running()
    harness.report(JobStatus.FINISHED)
    out = harness.handle(RemoveJob(request=3, job_id=JOB))
    assert of(JobForgotten, out) == [JobForgotten(job_id=JOB, why=REMOVED)]
    assert of(DropResults, out) == [DropResults(job_id=JOB)]
    assert of(DropLog, out) == [DropLog(job_id=JOB)]
    assert of(Answer, out) == [Answer(request=3)]
    assert list(harness.core.jobs) == []
    assert harness.core.forgotten(JOB) == (JOB, JobStatus.FINISHED, REMOVED)
    assert harness.submit(request=9) == [Answer(request=9)]
    assert harness.handle(RemoveJob(request=4, job_id=JOB)) == [Answer(request=4)], "once more"
    assert of(Acknowledge, harness.report(JobStatus.FINISHED)), "its JobMaster may end"


def test_a_job_that_runs_or_is_not_there_is_not_removed() -> None:
    harness = Harness().running()
    out = harness.handle(RemoveJob(request=3, job_id=JOB))
    assert refusal(out) is RefusalKind.WRONG_STATE
    assert out[0].refusal.message == (
        f'job {JOB} ("a job") is RUNNING: cancel it first (`firesteel cancel {JOB}`)'
    )
    assert list(harness.core.jobs) == [JOB]
    assert refusal(harness.handle(RemoveJob(request=3, job_id=OTHER))) is RefusalKind.NOT_FOUND


def test_a_terminal_status_is_stored_and_only_then_acknowledged() -> None:
    harness = Harness().running()
    out = harness.report(JobStatus.FINISHED)
    assert of(JobEnded, out) == [
        JobEnded(job_id=JOB, status=JobStatus.FINISHED, end_ms=5, final_details=b"details")
    ]
    assert of(Acknowledge, out) == [Acknowledge(connection=1, status=JobStatus.FINISHED)]
    assert not of(JobEnded, harness.report(JobStatus.FINISHED))  # reported twice, stored once
    assert of(Acknowledge, harness.report(JobStatus.FINISHED)) == [
        Acknowledge(connection=1, status=JobStatus.FINISHED)
    ]


def test_reports_of_others_and_of_older_epochs_are_dropped() -> None:
    harness = Harness().running()
    harness.process(2)
    assert harness.report(JobStatus.FINISHED, connection=2) == []
    assert harness.report(JobStatus.FINISHED, epoch=0) == []
    assert harness.report(JobStatus.FINISHED, connection=99) == []
    assert harness.job.status is JobStatus.RUNNING
    assert harness.core.stale_reports == 3


def test_a_job_without_its_job_master_is_cancelled_immediately() -> None:
    harness = Harness()
    harness.submit()
    out = harness.cancel()
    assert refusal(out) is None
    (ended,) = of(JobEnded, out)
    assert (ended.status, ended.end_ms) == (JobStatus.CANCELED, 100_000)
    assert not of(StartJob, harness.process())


def test_a_cancel_reaches_a_starting_job_master_at_its_first_report() -> None:
    harness = Harness()
    harness.process()
    harness.submit()
    assert not of(AskToCancel, harness.cancel())
    assert of(AskToCancel, harness.report(JobStatus.CREATED)) == [
        AskToCancel(job_id=JOB, address="127.0.0.1:1")
    ]
    harness.report(JobStatus.CANCELLING)
    assert not of(AskToCancel, harness.report(JobStatus.CANCELED))
    assert harness.job.status is JobStatus.CANCELED


def test_a_cancel_that_was_not_delivered_is_repeated() -> None:
    harness = Harness().running()
    assert of(AskToCancel, harness.cancel())
    harness.handle(CancelNotDelivered(job_id=JOB))
    assert harness.core.next_deadline() == harness.now + 1.0
    assert of(AskToCancel, harness.pass_time(1.0))
    harness.handle(CancelNotDelivered(job_id=JOB))
    harness.report(JobStatus.CANCELED)
    assert not of(AskToCancel, harness.pass_time(10.0))


def test_cancelling_what_cannot_be_cancelled() -> None:
    harness = Harness().running()
    assert refusal(harness.cancel(OTHER)) is RefusalKind.NOT_FOUND
    harness.report(JobStatus.FINISHED)
    assert refusal(harness.cancel()) is RefusalKind.WRONG_STATE


def test_cancelling_a_cancelled_job_is_done_already() -> None:
    harness = Harness()
    harness.submit()
    harness.cancel()
    assert refusal(harness.cancel()) is None


def test_a_dead_job_master_fails_its_job_with_exit_code_and_log() -> None:
    harness = Harness().running()
    harness.report(JobStatus.RUNNING, unadoptable=True)
    harness.handle(
        ProcessExited(pid=1, reason="exit code -9 (killed by SIGKILL)", log_tail="  its last words")
    )
    assert harness.job.status is JobStatus.RUNNING  # what it said last is read first
    (ended,) = of(JobEnded, harness.handle(JobMasterDisconnected(connection=1)))
    assert ended.status is JobStatus.FAILED
    assert "exit code -9 (killed by SIGKILL)" in ended.failure
    assert "its last words" in ended.failure
    assert "/logs/1.log" in ended.failure


def test_a_registration_after_the_exit_does_not_revive_the_process() -> None:
    harness = Harness().running()
    harness.report(JobStatus.RUNNING, unadoptable=True)
    harness.handle(ProcessExited(pid=1, reason="exit code 1"))
    harness.register(1, connection=2)
    harness.pass_time(1.0)
    assert harness.job.status is JobStatus.FAILED
    assert 1 not in harness.core.processes.by_pid


def test_a_final_status_that_arrives_after_the_exit_counts() -> None:
    harness = Harness().running()
    harness.handle(ProcessExited(pid=1, reason="exit code 0"))
    harness.report(JobStatus.FINISHED)
    harness.handle(JobMasterDisconnected(connection=1))
    assert harness.job.status is JobStatus.FINISHED


def test_the_death_of_its_job_master_completes_a_cancellation() -> None:
    harness = Harness().running()
    harness.cancel()
    harness.handle(JobMasterDisconnected(connection=1))
    harness.handle(ProcessExited(pid=1, reason="exit code 1"))
    assert harness.job.status is JobStatus.CANCELED


def test_a_broken_stream_that_is_established_again_changes_nothing() -> None:
    harness = Harness().running()
    harness.handle(JobMasterDisconnected(connection=1))
    harness.register(1, connection=2)
    harness.handle(JobMasterDisconnected(connection=1))
    harness.pass_time(10 * RECONNECT_GRACE_S)
    assert harness.job.status is JobStatus.RUNNING
    harness.report(JobStatus.FINISHED, connection=2)
    assert harness.job.status is JobStatus.FINISHED


def test_a_broken_stream_that_is_not_is_a_death_notice() -> None:
    harness = Harness().running()
    harness.report(JobStatus.RUNNING, unadoptable=True)
    harness.handle(JobMasterDisconnected(connection=1))
    out = harness.pass_time(RECONNECT_GRACE_S)
    assert of(KillProcess, out) == [KillProcess(pid=1)]
    assert harness.job.status is JobStatus.FAILED


def test_a_lost_job_start_is_repeated_under_the_same_epoch() -> None:
    harness = Harness()
    harness.process()
    harness.submit()
    harness.handle(JobMasterDisconnected(connection=1))
    assert of(StartJob, harness.register(1, connection=2)) == [
        StartJob(connection=2, job_id=JOB, graph_id="g", epoch=1)
    ]


def test_a_dead_spare_is_replaced_with_growing_pauses() -> None:
    harness = Harness()
    pauses = []
    for pid in (1, 2, 3):
        harness.handle(ProcessStarted(pid=pid, log_path=""))
        assert not of(StartProcess, harness.handle(ProcessExited(pid=pid, reason="exit code 1")))
        pauses.append(harness.core.next_deadline() - harness.now)
        assert of(StartProcess, harness.pass_time(pauses[-1])) == [StartProcess()]
    assert pauses == [0.5, 1.0, 2.0]


def test_jobs_fail_when_no_job_master_can_be_started() -> None:
    harness = Harness()
    harness.submit()
    for _ in range(STARTS_BEFORE_GIVING_UP):
        assert harness.job.status is JobStatus.INITIALIZING
        if not harness.core.processes.starting:
            harness.pass_time(harness.core.next_deadline() - harness.now)
        harness.handle(ProcessStartFailed(reason="no memory"))
    assert harness.job.status is JobStatus.FAILED
    assert "no memory" in of(JobEnded, harness.records)[0].failure


def test_only_changes_of_status_are_stored() -> None:
    harness = Harness().running()
    assert not of(JobStatusChanged, harness.report(JobStatus.RUNNING))
    assert [r.status for r in of(JobStatusChanged, harness.records)] == [JobStatus.RUNNING]


def stored(status: JobStatus = JobStatus.RUNNING, *, assigned: bool = True) -> SubmittedJob:
    master = JobMasterId(f"{1:032x}") if assigned else None
    return SubmittedJob(
        job_id=JOB,
        name="a job",
        graph_id="g",
        status=status,
        start_ms=1,
        epoch=int(assigned),
        job_master_id=master,
    )


def test_after_a_restart_a_running_job_is_adopted_with_its_job_master() -> None:
    harness = Harness(jobs=[stored()])
    harness.register(1)
    assert not of(StartJob, harness.report(JobStatus.RUNNING))
    harness.pass_time(2 * ADOPTION_GRACE_S)
    assert harness.job.status is JobStatus.RUNNING
    assert of(AskToCancel, harness.cancel())
    harness.report(JobStatus.CANCELED)
    assert harness.job.status is JobStatus.CANCELED


def test_after_a_restart_an_unreported_job_master_gets_its_job_again() -> None:
    harness = Harness(jobs=[stored(JobStatus.INITIALIZING)])
    assert [(c.job_id, c.epoch) for c in of(StartJob, harness.register(1))] == [(JOB, 1)]


def test_after_a_restart_a_promised_cancel_is_kept() -> None:
    before = Harness().running()
    assert of(JobCancelRequested, before.cancel()) == [JobCancelRequested(job_id=JOB)]
    assert not of(JobCancelRequested, before.cancel())
    job = stored()
    job.cancel_requested = True
    harness = Harness(jobs=[job])
    harness.register(1)
    assert of(AskToCancel, harness.report(JobStatus.RUNNING))


def test_after_a_restart_a_job_whose_job_master_is_gone_fails() -> None:
    job = stored()
    job.handover = b""
    harness = Harness(jobs=[job])
    harness.pass_time(ADOPTION_GRACE_S)
    assert harness.job.status is JobStatus.FAILED
    harness.register(1)
    assert of(KillProcess, harness.report(JobStatus.RUNNING)) == [KillProcess(pid=1)]
    assert harness.job.status is JobStatus.FAILED


def assigned(*, recovers: bool = False) -> Harness:
    """Returns a Dispatcher that finds a running job and requests a JobMaster for it."""
    job = stored()
    job.recovers, job.job_master_address = recovers, "there:1"
    harness = Harness(jobs=[job])
    assert of(ProbeJobMaster, harness.commands) == [
        ProbeJobMaster(job_id=JOB, epoch=1, address="there:1")
    ]
    return harness


def probed(harness: Harness, outcome: JobMasterProbe, epoch: int = 1) -> list[object]:
    return harness.handle(JobMasterProbed(job_id=JOB, epoch=epoch, outcome=outcome))


def test_after_a_restart_a_job_master_with_a_closed_port_is_replaced() -> None:
    harness = assigned(recovers=True)
    harness.process(2)
    (start,) = of(StartJob, probed(harness, JobMasterProbe.ENDED))
    assert (start.connection, start.epoch) == (2, 2)
    assert not probed(harness, JobMasterProbe.ENDED), "of the one before"
    assert harness.job.epoch == 2


def test_after_a_restart_an_answering_job_master_is_awaited_without_limit() -> None:
    harness = assigned()
    for _ in range(100):
        probed(harness, JobMasterProbe.RUNS)
        assert of(ProbeJobMaster, harness.pass_time(PROBE_INTERVAL_S))
    assert harness.job.status is JobStatus.RUNNING
    harness.register(1)
    harness.report(JobStatus.RUNNING)
    assert not of(ProbeJobMaster, harness.pass_time(2 * ADOPTION_GRACE_S))
    assert not probed(harness, JobMasterProbe.ENDED), "its stream says so from now on"
    assert harness.job.status is JobStatus.RUNNING


def test_after_a_restart_a_silent_job_master_is_replaced_after_a_timeout() -> None:
    harness = assigned()
    while harness.job.status is JobStatus.RUNNING:
        probed(harness, JobMasterProbe.SILENT)
        harness.pass_time(PROBE_INTERVAL_S)
    assert harness.now == 100.0 + ADOPTION_GRACE_S


def test_a_dispatcher_that_could_not_act_checks_before_it_decides() -> None:
    harness = assigned()
    probed(harness, JobMasterProbe.RUNS)
    harness.now += 2 * ADOPTION_GRACE_S  # without a Tick
    assert of(ProbeJobMaster, harness.pass_time(0.0))
    assert harness.job.status is JobStatus.RUNNING
    probed(harness, JobMasterProbe.RUNS)
    assert harness.job.epoch == 1


@pytest.mark.parametrize(
    ("epoch", "status"), [(1, JobStatus.FAILED), (2, JobStatus.FINISHED), (1, JobStatus.FINISHED)]
)
def test_only_the_job_master_that_ended_a_job_learns_that_it_is_stored(
    epoch: int, status: JobStatus
) -> None:
    """The JobMaster that receives the notice deletes the checkpoints."""
    harness = Harness(jobs=[replace(stored(JobStatus.FAILED), epoch=2)])
    harness.register(1, serves=JOB)
    out = harness.report(status, epoch=epoch)
    assert of(KillProcess, out) and not of(Acknowledge, out)
    harness.register(2, serves=JOB)
    assert of(Acknowledge, harness.report(JobStatus.FAILED, epoch=2, connection=2))


def test_after_a_restart_a_job_that_waited_for_a_job_master_gets_one() -> None:
    harness = Harness(jobs=[stored(JobStatus.INITIALIZING, assigned=False)])
    assert [c.job_id for c in of(StartJob, harness.process())] == [JOB]


def test_after_a_restart_an_ended_job_does_not_run_again() -> None:
    harness = Harness(jobs=[stored(JobStatus.FINISHED)])
    assert not of(StartJob, harness.process(2))
    assert harness.submit() == [Answer(request=1)]


def test_a_report_may_skip_statuses_but_not_go_back() -> None:
    harness = Harness()
    harness.process()
    harness.submit()
    harness.report(JobStatus.RUNNING)  # CREATED was never seen
    harness.report(JobStatus.CANCELLING)
    out = harness.report(JobStatus.RUNNING)
    (ended,) = of(JobEnded, out)
    assert ended.status is JobStatus.FAILED
    assert "CANCELLING; illegal transition: its JobMaster reports RUNNING" in ended.failure
    assert "INITIALIZING -> RUNNING: reported" in ended.failure, "its story"
    assert of(KillProcess, out) == [KillProcess(pid=1)]


def test_no_event_ends_a_job_that_has_ended() -> None:
    job = SubmittedJob(job_id=JOB, name="a job", graph_id="g", status=JobStatus.FINISHED)
    for event in Ending:
        with pytest.raises(IllegalTransition, match="is FINISHED; illegal transition"):
            job.end(event, 1.0)


def test_a_job_shows_how_it_reached_its_state() -> None:
    harness = Harness().running()
    harness.cancel()
    harness.handle(JobMasterDisconnected(connection=1))
    harness.pass_time(RECONNECT_GRACE_S)
    assert harness.core.story(JOB) == [
        "100.000 submitted",
        "100.000 assigned to JobMaster process 1 with epoch 1",
        "100.000 INITIALIZING -> RUNNING: reported",
        "100.000 cancel requested",
        "105.000 RUNNING -> CANCELED: its JobMaster was lost while the job was being cancelled",
    ]
    harness.process(2)
    assert harness.core.story(2) == ["105.000 started", "105.000 registered on connection 2"]
    assert harness.core.story(3) == []


def test_a_broken_invariant_is_an_error_with_the_story() -> None:
    harness = Harness().running()
    harness.job.pid = 99
    with pytest.raises(
        AssertionError, match=r"is assigned to process 99, which does not serve it(.|\n)*submitted"
    ):
        harness.core.validate()


def test_a_job_that_takes_checkpoints_continues_under_another_job_master() -> None:
    harness = Harness().running(recovers=True)
    assert of(JobAdded, harness.records)[0].recovers
    out = harness.dies(1)
    assert harness.job.status is JobStatus.RESTARTING
    assert of(JobStatusChanged, out) == [JobStatusChanged(job_id=JOB, status=JobStatus.RESTARTING)]
    out = harness.process(2)
    (assigned,), (start,) = of(JobAssigned, out), of(StartJob, out)
    assert (assigned.epoch, start.epoch) == (2, 2), "it is stored before it is sent"
    harness.report(JobStatus.RUNNING, connection=2, epoch=2)
    assert harness.job.status is JobStatus.RUNNING


def test_the_next_job_master_gets_the_number_of_restarts() -> None:
    harness = Harness().running(recovers=True)
    (start,) = of(StartJob, harness.commands)
    assert start.restart_history == ""
    (stored,) = of(JobStatusChanged, harness.report(JobStatus.RESTARTING, restart_history="once"))
    assert stored.restart_history == "once"
    assert not of(JobStatusChanged, harness.report(JobStatus.RESTARTING, restart_history="once")), (
        "nothing has changed"
    )
    (stored,) = of(JobStatusChanged, harness.report(JobStatus.RESTARTING, restart_history="twice"))
    assert stored.restart_history == "twice", "although its status is the same"
    harness.dies(1)
    assert of(StartJob, harness.process(2))[0].restart_history == "twice"


def test_what_a_job_has_gone_through_is_stored_for_the_next_job_master() -> None:
    harness = Harness().running(recovers=True)
    (stored,) = of(JobStatusChanged, harness.report(JobStatus.RUNNING, history=b"failed once"))
    assert stored.history == b"failed once", "although its status is the same"
    assert not of(JobStatusChanged, harness.report(JobStatus.RUNNING)), "as reported before"
    (stored,) = of(JobStatusChanged, harness.dies(1))
    assert stored.history == b"failed once"
    assert of(StartJob, harness.process(2))[0].history == b"failed once"
    harness.report(JobStatus.FINISHED, connection=2, epoch=2)
    assert harness.job.history == b"", "it is part of the details"


def test_a_job_master_that_was_given_up_gets_no_job_when_it_is_back() -> None:
    harness = Harness().running(recovers=True)
    harness.handle(JobMasterDisconnected(connection=1))
    assert KillProcess(pid=1) in harness.pass_time(RECONNECT_GRACE_S)
    out = harness.register(1, connection=7, serves=JOB)
    assert of(KillProcess, out) == [KillProcess(pid=1)]
    assert not of(StartJob, out)
    assert of(StartJob, harness.process(2))[0].epoch == 2


def test_the_job_masters_of_a_job_without_a_checkpoint_are_limited() -> None:
    harness = Harness().running(recovers=True)
    for number in range(1, JOB_MASTERS_IN_A_ROW + 1):
        harness.dies(number)
        harness.process(number + 1)
    harness.handle(CheckpointStored(job_id=JOB, epoch=JOB_MASTERS_IN_A_ROW + 1))
    for number in range(JOB_MASTERS_IN_A_ROW + 1, 2 * JOB_MASTERS_IN_A_ROW + 1):
        harness.dies(number)
        harness.process(number + 1)
    assert harness.job.status is JobStatus.RESTARTING
    (ended,) = of(JobEnded, harness.dies(2 * JOB_MASTERS_IN_A_ROW + 1))
    assert (ended.status, ended.keeps_checkpoints) == (JobStatus.FAILED, True)
    assert "SIGKILL" in ended.failure


def test_a_job_can_be_cancelled_while_it_has_no_job_master() -> None:
    harness = Harness().running(recovers=True)
    harness.dies(1)
    out = harness.cancel()
    assert refusal(out) is None
    assert [record.status for record in of(JobEnded, out)] == [JobStatus.CANCELED]


def test_a_job_without_checkpoints_starts_again_if_no_task_was_deployed() -> None:
    """A Dispatcher that has just started knows that as well: no handover is stored."""
    for harness in (Harness().running(), Harness(jobs=[stored()])):
        if harness.core.processes.by_pid:
            assert not of(JobEnded, harness.dies(1))
        else:
            assert not of(JobEnded, harness.pass_time(ADOPTION_GRACE_S))
        assert harness.job.status is JobStatus.RESTARTING
        (start,) = of(StartJob, harness.process(2))
        assert (start.epoch, start.reconciles) == (2, False)
        harness.report(JobStatus.RUNNING, connection=2, epoch=2)
        assert not of(JobEnded, harness.dies(2)), "nor did the second one deploy a task"
        harness.process(3)
        for status in (JobStatus.CREATED, JobStatus.RUNNING):
            harness.report(status, connection=3, epoch=3, unadoptable=True)
        assert of(JobEnded, harness.dies(3)), "its tasks may have run, and cannot be adopted"


def test_without_checkpoints_a_job_with_adoptable_tasks_gets_a_job_master() -> None:
    harness = Harness().running()
    harness.report(JobStatus.RUNNING, handover=b"found")
    for number in range(1, 2 * JOB_MASTERS_IN_A_ROW):
        harness.pass_time(LASTING_S)
        assert not of(JobEnded, harness.dies(number))
        assert of(StartJob, harness.process(number + 1))[0].reconciles
    last = 3 * JOB_MASTERS_IN_A_ROW - 1
    for number in range(2 * JOB_MASTERS_IN_A_ROW, last):
        assert not of(JobEnded, harness.dies(number))
        harness.process(number + 1)
    assert of(JobEnded, harness.dies(last)), "they have not lasted"


@pytest.mark.parametrize("lost_first", [True, False])
def test_tasks_of_a_job_that_is_cancelled_are_left_to_its_next_job_master(
    lost_first: bool,
) -> None:
    harness = Harness().running(recovers=True)
    harness.report(JobStatus.RUNNING, handover=b"found")
    steps = [lambda: harness.dies(1), harness.cancel]
    for step in steps if lost_first else reversed(steps):
        assert not of(JobEnded, step())
    assert harness.job.status is JobStatus.RECONCILING
    (start,) = of(StartJob, harness.process(2))
    assert start.reconciles and start.cancels
    for status in (JobStatus.CANCELLING, JobStatus.CANCELED):
        harness.report(status, connection=2, epoch=2)
    assert harness.job.status is JobStatus.CANCELED


@pytest.mark.parametrize("recovers", [True, False])
def test_a_job_that_is_failing_is_ended_by_its_next_job_master(recovers: bool) -> None:
    """That one hears what the first one has decided."""
    harness = Harness().running(recovers=recovers)
    harness.report(JobStatus.RUNNING, handover=b"found")
    harness.report(JobStatus.FAILING, restart_history="a verdict")
    assert not of(JobEnded, harness.dies(1))
    assert harness.job.status is JobStatus.RECONCILING
    (start,) = of(StartJob, harness.process(2))
    assert start.reconciles and start.restart_history == "a verdict"
    harness.report(JobStatus.FAILED, connection=2, epoch=2)
    assert harness.job.status is JobStatus.FAILED


def test_a_job_without_checkpoints_that_is_being_restarted_is_restarted() -> None:
    harness = Harness().running()
    harness.report(JobStatus.RUNNING, handover=b"found")
    harness.report(JobStatus.RESTARTING)
    out = harness.dies(1)
    assert not of(JobEnded, out)
    assert [record.handover for record in of(HandoverChanged, out)] == [b""]
    (start,) = of(StartJob, harness.process(2))
    assert not start.reconciles
    harness.report(JobStatus.RUNNING, connection=2, epoch=2)
    assert of(JobEnded, harness.dies(2)), "it is unknown whether tasks run again"


def test_after_a_restart_a_checkpointed_job_gets_another_job_master() -> None:
    job = stored()
    job.recovers = True
    harness = Harness(jobs=[job])
    harness.process(2)
    (start,) = of(StartJob, harness.pass_time(ADOPTION_GRACE_S))
    assert (start.connection, start.epoch) == (2, 2)
