"""The first phases of a job: Created, and Reconciling if tasks of an earlier JobMaster run."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.ids import OperatorId, TaskExecutorId
from firesteel.common.states import ExecutionState, JobEvent, JobStatus, TaskEvent
from jobmaster.core import events
from jobmaster.core.adoption import Adoption, can_adopt
from jobmaster.core.commands import Command, log
from jobmaster.core.execution_graph import ExecutionVertex
from jobmaster.core.failover.restart_strategy import Verdict
from jobmaster.core.job_context import JobContext, TasksFailed
from jobmaster.core.phases import Ended, Failing, Phase, Running, Step, WaitingForSlots, after


@dataclass(frozen=True, slots=True, kw_only=True)
class Created(Phase):
    """The graph is built or is invalid, and the job has not started."""

    statuses = frozenset({JobStatus.INITIALIZING, JobStatus.CREATED})

    verdict_before: Verdict | None  # of the earlier master on the failure that it handled
    adoption_timeout_s: float

    def start(self, job: JobContext, event: events.JobStarted, now: float) -> Step:
        latest = job.completed.latest
        restored = [] if latest is None else job.restore_coordinators(job.graph.vertices)
        if event.adopts is not None:
            job.coordinators.take_found(event.found)
        return after(restored, self._start(job, event, now))

    def _start(self, job: JobContext, event: events.JobStarted, now: float) -> Step:
        if job.invalid:
            job.exceptions.failed(job.error(job.invalid, now))
            return Ended.enter(job, JobEvent.REJECT, now, cause=job.invalid)
        verdict = None if event.cancels else self.verdict_before
        if event.adopts is not None and (event.cancels or verdict is not None or can_adopt(job)):
            step = Reconciling.enter(job, event, self.adoption_timeout_s, now)
        elif verdict is None or verdict.delay_s is not None:
            restarts = job.checkpoints.enabled or job.lists_tasks
            assert event.adopts is None or restarts, "its tasks were to be adopted"
            job.graph.apply(JobEvent.START, job.now_ms(now))
            waiting, scheduled = WaitingForSlots.enter(job, now)
            return waiting, [*scheduled, *job.declare(), *job.coordinators.listings()]
        else:
            step = self, []
        phase, commands = step
        if event.cancels:
            return after(commands, phase.cancel(job, now))
        if verdict is None:
            return after(commands, phase.check_analysis(job, now))
        if verdict.error is not None and job.exceptions.latest is None:
            job.exceptions.failed(verdict.error)
        cause = "under its earlier JobMaster"
        failing = Failing.enter(job, verdict.delay_s, now, cause=cause, adoption=phase.adoption)
        return after(commands, failing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciling(Phase):
    """Tasks of an earlier JobMaster run, and this one waits for their reports."""

    statuses = frozenset({JobStatus.RECONCILING})

    adoption: Adoption

    @classmethod
    def enter(cls, job: JobContext, event: events.JobStarted, timeout_s: float, now: float) -> Step:
        job.take_analysis(event.adopts or ())
        job.take_collected()
        job.graph.apply(JobEvent.ADOPT, job.now_ms(now))
        for execution in job.graph.executions():
            execution.apply(TaskEvent.ADOPT, job.now_ms(now))
        adoption = Adoption(deadline=now + timeout_s, timeout_s=timeout_s)
        return cls(adoption=adoption), adoption.take_listed(job, event.listed, now)

    def restarts_soon(self, vertex: ExecutionVertex) -> bool:
        return True  # it may: nothing is released until that is known

    def receives(self, job: JobContext, operator_id: OperatorId) -> bool:
        return self.adoption.collecting and job.coordinators.collects(operator_id)

    def deadline(self) -> float | None:
        return self.adoption.deadline

    def waiting_for(self, job: JobContext, now: float) -> str:
        return self.adoption.waiting_for(job, now)

    def tasks_failed(self, job: JobContext, failure: TasksFailed, now: float) -> Step:
        self.adoption.failed(failure)  # they restart once the other tasks are known
        return self, []

    def connected(
        self, job: JobContext, event: events.TaskExecutorConnected, now: float
    ) -> list[Command]:
        return self.adoption.connected(job, event, now)

    def reconnected(self, job: JobContext, task_executor_id: TaskExecutorId) -> list[Command]:
        return self.adoption.ask(job, task_executor_id)  # the request may have been lost

    def advance(self, job: JobContext, now: float) -> Step:
        """Ends the adoption once the tasks have reported or time is up."""
        resumed = self.adoption.resume_sinks(job)
        if not self.adoption.over(job, now):
            return self, resumed
        reconciled = self.adoption.conclude(job, now)
        failure = reconciled.failure
        failed = 0 if failure is None else len(failure.failed)
        begun = len(job.graph.attempts) - job.graph.count(ExecutionState.CREATED)
        adopted = log("info", "tasks were adopted", tasks=begun - failed, restarted=failed)
        commands = [*resumed, *reconciled.commands, adopted, *job.coordinators.listings()]
        if not reconciled.begun and failed and job.checkpoints.enabled:
            job.graph.apply(JobEvent.NOT_FOUND, job.now_ms(now))
            commands += job.start_over(now)
            return after(commands, WaitingForSlots.enter(job, now))
        job.graph.apply(JobEvent.RECONCILED, job.now_ms(now))
        phase: Phase = Running()
        commands += phase.follow(job, now)
        commands += self.adoption.notify(job, now)
        if failure is not None:
            phase, restarts = phase.tasks_failed(job, failure, now)
            commands += restarts
        if job.lists_tasks and phase.runs:
            commands += job.begin_others(now)
            commands += job.partitions.release_read(phase.restarts_soon)
        return phase, commands
