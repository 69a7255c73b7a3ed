"""The phases of a job: a phase's state, the events that it handles, and its successors.

    Created ─▶ WaitingForSlots ◀─▶ Analyzing (before the first deployment)
       │              ▲   └──────▶ Running ─▶ Ended
       │         Restarting           ▲
       │              ▲               │
       │           Failing ─▶ Ended   │
       │              ▲               │
       │            (any)             │
       └─▶ Reconciling ───────────────┘

                       (any) ─▶ Cancelling ─▶ Ended      (any) ─▶ Ended, suspended

Phases are finer than the job's status, which users see: a job is RUNNING from its start, even while
it waits for slots. Running also handles tasks of a region that restarts while others continue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from firesteel.common.ids import OperatorId, TaskExecutorId
from firesteel.common.job_graph import ResultPartitionId
from firesteel.common.service.core import Tick
from firesteel.common.states import ExecutionState, JobEvent, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import events
from jobmaster.core.adoption import Adoption
from jobmaster.core.commands import (
    AnalyzeJob,
    AnswerInspection,
    AnswerRequest,
    AnswerRescale,
    AnswerSlots,
    Command,
    DismissTaskExecutor,
    Exit,
    InspectionRefusal,
    log,
)
from jobmaster.core.execution_graph import Execution, ExecutionVertex
from jobmaster.core.failover.restart_strategy import Verdict
from jobmaster.core.job_context import JobContext, TasksFailed
from jobmaster.core.slots.slot import Slot

Step: TypeAlias = "tuple[Phase, list[Command]]"  # the next phase, and the commands on the way to it


def after(commands: Sequence[Command], step: Step) -> Step:
    """Returns the step, with these commands before its own."""
    return step[0], [*commands, *step[1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The events that a phase handles, with defaults. Phases are immutable: a handler returns the
    next phase, often `self`, and commands.
    """

    statuses: ClassVar[frozenset[JobStatus]]  # the job's possible statuses in this phase
    runs: ClassVar[bool] = False  # whether tasks run, apart from those that restart
    waits: ClassVar[bool] = False  # whether no task is deployed until all have their slots

    adoption: Adoption | None = None  # while tasks of an earlier master are being taken over

    # ---- facts

    def deadline(self) -> float | None:
        """Returns when to call `tick`."""
        return None

    def waiting_for(self, job: JobContext, now: float) -> str:
        """Returns what the job waits for, in words for users; empty if it does not wait."""
        return job.slot_wait.describe(now)

    def verdict(self, job: JobContext) -> Verdict | None:
        """Returns the verdict on the job's current failure; None: it is not failing."""
        return None

    @property
    def restarting(self) -> frozenset[ExecutionVertex]:
        """The tasks that will restart while others continue."""
        return frozenset()

    def restarts_soon(self, vertex: ExecutionVertex) -> bool:
        """Whether this task will restart while others continue."""
        return False

    def receives(self, job: JobContext, operator_id: OperatorId) -> bool:
        """Whether the operator's coordinator receives messages now; otherwise they are resent."""
        return True

    def analyzes_on(self, task_executor_id: TaskExecutorId) -> bool:
        """Whether this TaskExecutor analyses the plan."""
        return False

    def analyzes_in(self, slots: Sequence[Slot]) -> bool:
        """Whether one of these slots analyses the plan."""
        return False

    # ---- events

    def start(self, job: JobContext, event: events.JobStarted, now: float) -> Step:
        raise AssertionError(f"a job starts once: {job.graph}")

    def cancel(self, job: JobContext, now: float) -> Step:
        """The user cancels the job."""
        return Cancelling.enter(job, now, self.adoption)

    def fail(self, job: JobContext, error: ErrorInfo, now: float, *, restartable: bool) -> Step:
        """Something failed that no restart of single tasks repairs."""
        job.exceptions.failed(error)
        delay_s: float | None = None
        if job.parallelism.unproven:
            delay_s = 0.0  # the previous parallelism is restored
        elif restartable:
            delay_s = job.restart_delay_s(error, now)
        failing = Failing.enter(job, delay_s, now, cause=error.summary, adoption=self.adoption)
        failed = {"cause": error.summary, "task": error.task_name}
        if delay_s is None:
            failure = log("error", "job fails", **failed)
        else:
            failure = log("warning", "job restarts", delay=f"{delay_s:g} s", **failed)
        return after([failure], failing)

    def tasks_failed(self, job: JobContext, failure: TasksFailed, now: float) -> Step:
        """Regions restart, or the whole job fails."""
        job.partitions.lose(failure.lost)
        if not failure.failed:
            return self, []
        return self.fail(job, failure.error, now, restartable=True)

    def task_finished(self, job: JobContext, execution: Execution, now: float) -> list[Command]:
        return []

    def move_tasks(
        self,
        job: JobContext,
        leaving: Sequence[ExecutionVertex],
        lost: Sequence[ResultPartitionId],
        cause: str,
        now: float,
    ) -> Step:
        """Restarts these tasks elsewhere, without these partitions. This is not a failure."""
        return self, []

    def rescale(self, job: JobContext, now: float) -> Step:
        """The stored parallelism has changed. Restarts all tasks, unless they restart anyway. This
        is not a failure.
        """
        return self, []

    def analyzed(self, job: JobContext, event: events.JobAnalyzed, now: float) -> Step:
        job.stale_messages += 1
        return self, []

    def connected(
        self, job: JobContext, event: events.TaskExecutorConnected, now: float
    ) -> list[Command]:
        """A TaskExecutor reports what it holds; its slots are not in the pool yet."""
        return []

    def reconnected(self, job: JobContext, task_executor_id: TaskExecutorId) -> list[Command]:
        """A stream broke and is open again: messages may have been lost."""
        return []

    def tick(self, job: JobContext, now: float) -> Step:
        """A deadline has passed, of this phase or another part."""
        return self, []

    def advance(self, job: JobContext, now: float) -> Step:
        """Takes the next step if the facts allow it. Called after every event, until it returns
        `self`.
        """
        return self, []

    def follow(self, job: JobContext, now: float) -> list[Command]:
        """Starts or stops checkpoints. Called after every event."""
        otherwise = (
            "some of the job's tasks are being restarted"
            if self.runs
            else "the job is no longer running"
        )
        return job.checkpoints.follow(self.runs and job.all_run, now, otherwise=otherwise)

    def handle_late(self, job: JobContext, event: events.Event | Tick) -> list[Command] | None:
        """Handles any event after the end of the job. Returns None before it."""
        return None

    def check_analysis(self, job: JobContext, now: float) -> Step:
        """Fails the job if its plan cannot resume from the restored checkpoint."""
        if why := job.cannot_resume():
            return self.fail(job, job.error(why, now), now, restartable=False)
        return self, []


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingForSlots(Phase):
    """Tasks are scheduled, and deployed once they have their slots. The job is RUNNING, or
    RESTARTING until it has its slots again.
    """

    statuses = frozenset({JobStatus.RUNNING, JobStatus.RESTARTING})
    waits = True

    @classmethod
    def enter(cls, job: JobContext, now: float) -> Step:
        """Schedules all tasks that may start; every task must be CREATED."""
        return cls(), job.schedule(tuple(job.graph.execution_vertices()), now)

    def rescale(self, job: JobContext, now: float) -> Step:
        return Failing.enter(job, 0.0, now, cause="its parallelism changes")

    def advance(self, job: JobContext, now: float) -> Step:
        if not job.can_deploy:
            return self, []
        if job.graph.status is JobStatus.RESTARTING:
            job.graph.apply(JobEvent.SLOTS_READY, job.now_ms(now))
            job.graph.apply(JobEvent.START, job.now_ms(now))
        if not job.coordinators.ready:
            return self, []
        if job.schemas is None:
            analyzing = Analyzing(slot=job.scheduler.first_slot())
            return analyzing, analyzing.request()
        return Running(), job.deploy(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyzing(Phase):
    """One slot runs the plan on empty input, so that schemas are known and wrong columns are found
    before data flows. The job fails with this slot: a plan that kills its process would also kill
    the next one.
    """

    statuses = frozenset({JobStatus.RUNNING})

    slot: Slot

    def request(self) -> list[Command]:
        slot = self.slot
        return [
            AnalyzeJob(task_executor_id=slot.task_executor_id, allocation_id=slot.allocation_id)
        ]

    def waiting_for(self, job: JobContext, now: float) -> str:
        return job.slot_wait.describe(now) or "the analysis of its plan"

    def analyzed(self, job: JobContext, event: events.JobAnalyzed, now: float) -> Step:
        if not self.analyzes_on(event.task_executor_id):
            job.stale_messages += 1
            return self, []
        job.take_analysis(event.operators)
        return WaitingForSlots().check_analysis(job, now)

    def analyzes_on(self, task_executor_id: TaskExecutorId) -> bool:
        return self.slot.task_executor_id == task_executor_id

    def analyzes_in(self, slots: Sequence[Slot]) -> bool:
        return any(slot is self.slot for slot in slots)

    def reconnected(self, job: JobContext, task_executor_id: TaskExecutorId) -> list[Command]:
        # The request may have been lost with the stream.
        return self.request() if self.analyzes_on(task_executor_id) else []


@dataclass(frozen=True, slots=True)
class RegionRestart:
    """A restart of regions, until the new attempts are scheduled."""

    vertices: tuple[ExecutionVertex, ...]
    at: float | None  # the earliest time; None: it has passed

    @property
    def ended(self) -> bool:
        return all(vertex.current.terminal for vertex in self.vertices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(Phase):
    """Tasks are deployed. The job ends when all of them have finished.

    Tasks that fail restart with their regions, while all others continue. The steps are: the tasks
    are cancelled; they end, the restart strategy's delay passes, and the latest checkpoint is
    known; new attempts are scheduled, and deployed once they have their slots.
    """

    statuses = frozenset({JobStatus.RUNNING})
    runs = True

    restarts: tuple[RegionRestart, ...] = ()  # no task is in two of them

    def deadline(self) -> float | None:
        return min((r.at for r in self.restarts if r.at is not None), default=None)

    def waiting_for(self, job: JobContext, now: float) -> str:
        if not self.restarts:
            return job.slot_wait.describe(now)
        tasks = sum(len(restart.vertices) for restart in self.restarts)
        after_s = max(0.0, max(r.at if r.at is not None else now for r in self.restarts) - now)
        return f"the restart of {tasks} task{'s' if tasks != 1 else ''} (in {after_s:.0f} s)"

    @property
    def restarting(self) -> frozenset[ExecutionVertex]:
        return frozenset(vertex for restart in self.restarts for vertex in restart.vertices)

    def restarts_soon(self, vertex: ExecutionVertex) -> bool:
        return any(vertex in restart.vertices for restart in self.restarts)

    def tasks_failed(self, job: JobContext, failure: TasksFailed, now: float) -> Step:
        error, failed = failure.error, [execution.vertex for execution in failure.failed]
        vertices = job.tasks_to_restart(failed, failure.lost, self.restarting)
        job.partitions.lose(failure.lost)
        if not vertices:
            return self, []  # no task needs the lost partitions
        if all(map(self.restarts_soon, vertices)):
            # A consequence of the failure that already restarts them.
            job.exceptions.also_failed(error)
            return self, []
        if job.restarts_as_a_whole(vertices):
            return self.fail(job, error, now, restartable=True)
        delay_s = job.restart_delay_s(error, now)
        if delay_s is None:
            return self.fail(job, error, now, restartable=False)
        job.exceptions.failed(error)
        restarted = log(
            "error",
            "tasks are restarted",
            cause=error.summary,
            task=error.task_name,
            tasks=len(vertices),
        )
        return after([restarted], self._restart(job, vertices, now + delay_s, now))

    def task_finished(self, job: JobContext, execution: Execution, now: float) -> list[Command]:
        job.scheduler.schedule(job.strategy.after(execution.vertex), now, job.now_ms(now))
        return job.partitions.read_by(execution, self.restarts_soon)

    def move_tasks(
        self,
        job: JobContext,
        leaving: Sequence[ExecutionVertex],
        lost: Sequence[ResultPartitionId],
        cause: str,
        now: float,
    ) -> Step:
        vertices = job.tasks_to_restart(leaving, lost, self.restarting) if leaving or lost else []
        job.partitions.lose(lost)
        if not vertices:
            return self, []
        moved = log("info", "tasks are moved", cause=cause, tasks=len(vertices))
        if job.restarts_as_a_whole(vertices):
            return after([moved], Failing.enter(job, 0.0, now, cause=cause))
        return after([moved], self._restart(job, vertices, now, now))

    def rescale(self, job: JobContext, now: float) -> Step:
        if not job.resizes_in_place:
            return Failing.enter(job, 0.0, now, cause="its parallelism changes")
        if self.restarts:
            return self, []  # called again once they have happened
        live = [vertex for vertex in job.surplus() if not vertex.current.terminal]
        if live:
            ending = ExecutionState.CANCELING
            return self, job.end_tasks([v for v in live if v.current.state is not ending], now)
        return Running(), job.resize_in_place(now)

    def _restart(
        self, job: JobContext, vertices: Sequence[ExecutionVertex], at: float, now: float
    ) -> Step:
        """Cancels these tasks; they restart once they have ended, at `at` or later."""
        cancelled = job.end_tasks(vertices, now)
        job.partitions.replace_those_of(vertices)
        wanted = dict.fromkeys(vertices)
        others = []
        for restart in self.restarts:
            if wanted.keys().isdisjoint(restart.vertices):
                others.append(restart)
                continue
            wanted.update(dict.fromkeys(restart.vertices))
            at = max(at, restart.at if restart.at is not None else now)
        return Running(restarts=(*others, RegionRestart(tuple(wanted), at))), cancelled

    def advance(self, job: JobContext, now: float) -> Step:
        if job.coordinators.spark_program.ended and (self.restarts or job.not_deployed()):
            return Running(), job.end_tasks(job.not_deployed(), now)  # no executor is needed
        for restart in self.restarts:
            if restart.at is not None and restart.at <= now:
                return self._with(restart, replace(restart, at=None)), []
            if restart.at is None and restart.ended and job.checkpoints.settled:
                return self._with(restart), job.restart(restart.vertices, now)
        if job.graph.live == 0 and not self.restarts:
            return Ended.enter(job, JobEvent.FINISH, now)
        return self, job.deploy(now) if job.can_deploy else []

    def _with(self, old: RegionRestart, *new: RegionRestart) -> Running:
        return Running(restarts=(*(r for r in self.restarts if r is not old), *new))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending(Phase):
    """All tasks of the job are being cancelled, including those that an earlier JobMaster left.
    These are adopted to be cancelled, so that no task of the job runs after its end.
    """

    @abstractmethod
    def ended(self, job: JobContext, now: float) -> Step:
        """Returns the next phase once all tasks have ended."""

    def cancel_tasks(self, job: JobContext, now: float) -> list[Command]:
        """Cancels the tasks that are known."""
        known = [
            vertex
            for vertex in job.graph.execution_vertices()
            if self.adoption is None or vertex.current.state is not ExecutionState.RECONCILING
        ]
        return job.end_tasks(known, now)

    def deadline(self) -> float | None:
        return None if self.adoption is None else self.adoption.deadline

    def waiting_for(self, job: JobContext, now: float) -> str:
        return ""

    def connected(
        self, job: JobContext, event: events.TaskExecutorConnected, now: float
    ) -> list[Command]:
        if self.adoption is None:
            return []
        return [*self.adoption.connected(job, event, now), *self.cancel_tasks(job, now)]

    def advance(self, job: JobContext, now: float) -> Step:
        if self.adoption is not None:
            if not self.adoption.all_known(job, now):
                return self, []
            all_known = replace(self, adoption=None)
            # Includes tasks that no TaskExecutor reported.
            return all_known, all_known.cancel_tasks(job, now)
        return self.ended(job, now) if job.graph.live == 0 else (self, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelling(Ending):
    """The user has cancelled the job."""

    statuses = frozenset({JobStatus.CANCELLING})

    @classmethod
    def enter(cls, job: JobContext, now: float, adoption: Adoption | None = None) -> Step:
        job.graph.apply(JobEvent.CANCEL, job.now_ms(now))
        phase = cls(adoption=adoption)
        return phase, phase.cancel_tasks(job, now)

    def cancel(self, job: JobContext, now: float) -> Step:
        return self, []

    def fail(self, job: JobContext, error: ErrorInfo, now: float, *, restartable: bool) -> Step:
        return self, []

    def ended(self, job: JobContext, now: float) -> Step:
        return Ended.enter(job, JobEvent.CANCELED, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing(Ending):
    """The first failure decides what follows; later ones are only recorded."""

    statuses = frozenset({JobStatus.FAILING})

    restart_delay_s: float | None  # the restart strategy's verdict; None: no restart

    @classmethod
    def enter(
        cls,
        job: JobContext,
        restart_delay_s: float | None,
        now: float,
        *,
        cause: str,
        adoption: Adoption | None = None,
    ) -> Step:
        # An adoption has not listed the sources' files yet, which a restart needs.
        listings = [] if adoption is None else job.coordinators.listings()
        job.graph.apply(JobEvent.FAIL, job.now_ms(now), cause)
        phase = cls(adoption=adoption, restart_delay_s=restart_delay_s)
        return phase, [*listings, *phase.cancel_tasks(job, now)]

    def verdict(self, job: JobContext) -> Verdict | None:
        return Verdict(error=job.exceptions.latest, delay_s=self.restart_delay_s)

    def fail(self, job: JobContext, error: ErrorInfo, now: float, *, restartable: bool) -> Step:
        job.exceptions.also_failed(error)
        return self, []

    def ended(self, job: JobContext, now: float) -> Step:
        if not job.checkpoints.settled or not job.parallelism.settled:
            return self, []
        if job.parallelism.unproven:
            return self, [job.parallelism.store_previous()]
        if self.restart_delay_s is None:
            return Ended.enter(job, JobEvent.GIVE_UP, now)
        job.graph.apply(JobEvent.RESTART, job.now_ms(now))
        return Restarting(at=now + self.restart_delay_s), []


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting(Phase):
    """All tasks have ended, and the restart strategy's delay has not passed."""

    statuses = frozenset({JobStatus.RESTARTING})

    at: float

    def deadline(self) -> float | None:
        return self.at

    def waiting_for(self, job: JobContext, now: float) -> str:
        return f"its restart (in {max(0.0, self.at - now):.0f} s)"

    def tick(self, job: JobContext, now: float) -> Step:
        """Creates new attempts of all tasks after the delay; the job then waits for its slots."""
        if now < self.at:
            return self, []
        return after(job.start_over(now), WaitingForSlots.enter(job, now))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Phase):
    """The job is over, at least for this master. Peers that still connect are dismissed, and the
    process waits for the Dispatcher to store the status.
    """

    statuses = frozenset(status for status in JobStatus if status.terminal)

    cause: str  # sent to TaskExecutors

    @classmethod
    def enter(cls, job: JobContext, event: JobEvent, now: float, *, cause: str = "") -> Step:
        """Withdraws the requirements, returns all slots and reports the status."""
        job.graph.apply(event, job.now_ms(now), cause)
        phase = cls(cause=f"the job is {job.graph.status.name}")
        slots = job.pool.clear(now)
        commands = [
            *job.declare(),
            *job.free(slots, phase.cause),
            log("info", "job ended", status=job.graph.status.name),
            job.report_status(),
        ]
        for task_executor_id in job.task_executors.all():
            commands.append(phase._dismiss(task_executor_id))
            job.task_executors.remove(task_executor_id)
        job.slot_wait.update(now, missing=False)
        return phase, commands

    @classmethod
    def suspend(cls, job: JobContext, now: float) -> Step:
        """Ends the job for this master only: it continues under another master, or is over."""
        job.scheduler.forget()
        job.tasks.abandon(now, job.now_ms(now))
        phase, commands = cls.enter(job, JobEvent.SUSPEND, now)
        return phase, [*commands, Exit()]

    def waiting_for(self, job: JobContext, now: float) -> str:
        return ""

    def handle_late(self, job: JobContext, event: events.Event | Tick) -> list[Command]:
        match event:
            case events.CheckpointStored():  # the next master restores it; tasks are not notified
                return job.checkpoints.late_answer(event.checkpoint_id)
            case events.CheckpointNotStored():
                return job.checkpoints.late_answer(event.checkpoint_id, event.problem)
            case events.CheckpointRequested():
                return [AnswerRequest(request=event.request, problem=self.cause)]
            case events.RescaleRequested():
                return [AnswerRescale(request=event.request, problem=self.cause)]
            case events.InspectionRequested():
                return [
                    AnswerInspection(
                        inspection_id=event.inspection_id,
                        refusal=InspectionRefusal.NOT_RUNNING,
                        problem=f"the job is {job.graph.status.name}",
                    )
                ]
            case events.TerminalStatusStored():
                return [*job.checkpoints.ended(job.graph.status), Exit()]
            case events.Superseded():
                # If a checkpoint was stored after this end, its acknowledgement is on its way, and
                # files may be deleted only then. If another master has the job instead, the
                # Dispatcher ends this process.
                return [] if job.graph.status.globally_terminal else [Exit()]
            case events.TaskExecutorConnected():
                return [self._dismiss(event.task_executor_id)]
            case events.SlotsOffered():
                rejected = tuple(slot.allocation_id for slot in event.slots)
                return [
                    AnswerSlots(
                        task_executor_id=event.task_executor_id, accepted=(), rejected=rejected
                    )
                ]
            case events.ResourceManagerConnected():
                return job.declare(force=True)
            case _:
                job.stale_messages += 1
                return []

    def _dismiss(self, task_executor_id: TaskExecutorId) -> Command:
        return DismissTaskExecutor(task_executor_id=task_executor_id, cause=self.cause)
