"""JobMasterCore: decides everything about one job. Events in, commands out; no I/O, clock or
randomness.

The way of a job: JobStarted -> slots are required and source paths listed -> all slots there -> the
plan is analysed in one of them -> everything is deployed, one command per TaskExecutor -> task
states come in -> all tasks terminal -> the job is terminal: requirements go to zero, slots back,
the status to the Dispatcher, TaskExecutors are dismissed.

A failed task takes the job through FAILING (all tasks cancelled) to FAILED, or to RESTARTING if the
restart strategy allows. A restarting job waits for its slots in RESTARTING, and only then goes
CREATED -> RUNNING again.

This class holds the job's status and dispatches; what happens to tasks is in `tasks.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Never, assert_never

from firesteel.common.core import Effects, Tick
from firesteel.common.ids import AllocationId, AttemptId, IdSource, OperatorId, TaskExecutorId
from firesteel.common.job_graph import JobGraph
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.coordinators import BadOptions
from jobmaster.core.coordinators.registry import Coordinators
from jobmaster.core.execution_graph import (
    Execution,
    ExecutionGraph,
    InvalidJobGraph,
    build,
    share_slots,
)
from jobmaster.core.failover.exceptions import ExceptionHistory
from jobmaster.core.scheduler import EagerScheduling, Scheduler, SchedulingStrategy
from jobmaster.core.settings import JobSettings
from jobmaster.core.slots.pool import SlotPool
from jobmaster.core.slots.slot import Slot, SlotOffer
from jobmaster.core.slots.wait import SlotWait
from jobmaster.core.task_executors import TaskExecutors
from jobmaster.core.tasks import Tasks, execution_fields

_ENDING = (JobStatus.FAILING, JobStatus.CANCELLING)


class JobMasterCore:
    def __init__(
        self,
        job_graph: JobGraph,
        settings: JobSettings,
        *,
        ids: IdSource,
        now: float,
        now_ms: int,
        strategy: SchedulingStrategy | None = None,
    ) -> None:
        """`now` (monotonic seconds) and `now_ms` (wall clock) name the same instant; from then on
        only `now` counts.
        """
        self._wall_ms = now_ms - now * 1000
        self._settings = settings
        self._ids = ids
        self._strategy = strategy or EagerScheduling()
        self._restarts = settings.new_restart_strategy()
        self.exceptions = ExceptionHistory()
        self.pool = SlotPool(idle_timeout_s=settings.slot_idle_timeout_s)
        self.task_executors = TaskExecutors(
            heartbeat_interval_s=settings.heartbeat_interval_s,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            reconnect_grace_s=settings.reconnect_grace_s,
        )
        self._hosts: dict[TaskExecutorId, str] = {}
        self.coordinators = Coordinators()
        self._invalid = ""  # why the graph cannot be run at all
        try:
            self.graph = build(job_graph, ids, now_ms)
            share_slots(self.graph)
            self.coordinators = Coordinators.of(job_graph)
        except (InvalidJobGraph, BadOptions) as error:
            self.graph = ExecutionGraph(job_graph, now_ms)
            self._invalid = str(error)
        self.scheduler = Scheduler(self.graph, self.pool)
        self._out: list[commands.Command] = []
        self.tasks = Tasks(self.graph, self.pool, self._out)
        self.schemas: dict[commands.OutputOf, bytes] | None = (
            None  # of every operator's outputs, once analysed
        )
        self.plans: dict[OperatorId, str] = {}
        self._analyzing: Slot | None = None
        self._declared = 0  # sequence of the last declaration
        self._slot_wait = SlotWait(self.pool, timeout_s=settings.slot_request_timeout_s)
        self._restart_delay_s: float | None = (
            None  # while FAILING: the verdict of the restart strategy
        )
        self._restart_at: float | None = None  # while RESTARTING: when to ask for slots
        self._reported: tuple[JobStatus, int] = (JobStatus.INITIALIZING, self.graph.version)
        self.restarts = 0
        self.stale_messages = 0  # about attempts or slots that are no more

    # ---- the core's interface

    def handle(self, event: events.Event | Tick, now: float) -> Effects[Never, commands.Command]:
        if self.graph.status.terminal:
            self._handle_after_end(event)
        else:
            self._handle(event, now)
            self._advance(now)
        out = tuple(self._out)
        self._out.clear()
        return Effects(commands=out)

    def next_deadline(self) -> float | None:
        if self.graph.status.terminal:
            return None
        deadlines = [
            self.task_executors.next_deadline(),
            self.pool.next_deadline(),
            self.coordinators.next_deadline(),
            self._slot_wait.deadline(),
            self._restart_at,
        ]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def now_ms(self, now: float) -> int:
        return int(self._wall_ms + now * 1000)

    def waiting_for(self, now: float) -> str:
        """What the job waits for, for people; empty if for nothing."""
        if self.graph.status.terminal or self.graph.status in _ENDING:
            return ""
        if self._restart_at is not None:
            return f"its restart (in {max(0.0, self._restart_at - now):.0f} s)"
        if slots := self._slot_wait.describe(now):
            return slots
        if self._analyzing is not None:
            return "the analysis of its plan"
        return ""

    # ---- events

    def _handle(self, event: events.Event | Tick, now: float) -> None:
        match event:
            case Tick():
                self._tick(now)
            case events.TaskStatesReported():
                self.task_executors.seen(event.task_executor_id, now)
                for update in event.updates:
                    self._task_updated(update, now)
            case events.TaskExecutorSeen():
                self.task_executors.seen(event.task_executor_id, now)
            case events.OperatorMessageReceived():
                self._operator_message(event, now)
            case events.SlotsOffered():
                self.task_executors.seen(event.task_executor_id, now)
                self._slots_offered(event.task_executor_id, event.slots, now)
            case events.TaskExecutorConnected():
                self._task_executor_connected(event, now)
            case events.TaskExecutorDisconnected():
                self.task_executors.disconnect(event.task_executor_id, event.connection, now)
            case events.TaskExecutorLost():
                self._task_executor_lost(event.task_executor_id, event.cause, now)
            case events.SlotLost():
                self._slot_lost(event.allocation_id, event.error, now)
            case events.JobAnalyzed():
                self._analyzed(event)
            case events.AnalysisFailed():
                if (
                    self._analyzing is not None
                    and self._analyzing.task_executor_id == event.task_executor_id
                ):
                    self._fail(event.error, now, restartable=False)
            case events.PathsListed():
                self._out.extend(
                    self.coordinators.paths_listed(
                        event.operator_id, event.files, now, self.graph.attempts
                    )
                )
            case events.PathsMissing():
                self._fail(
                    ErrorInfo(summary=event.problem, timestamp_ms=self.now_ms(now)),
                    now,
                    restartable=False,
                )
            case events.ChunkSpooled() | events.ChunkNotSpooled():
                self._spooled(event)
            case events.ResourceManagerConnected():
                self._declare(force=True)
            case events.ResourcesShort():
                if event.sequence == self._declared:
                    self._slot_wait.explain(event.explanation)
            case events.JobStarted():
                self._start(now)
            case events.CancelRequested():
                self._cancel(now)
            case events.DispatcherLost():
                self._suspend(now)
            case events.TerminalStatusStored():
                pass  # about an earlier life of this process; nothing is terminal yet
            case _:
                assert_never(event)

    def _handle_after_end(self, event: events.Event | Tick) -> None:
        """The job is over: whoever still comes is sent away."""
        match event:
            case events.TerminalStatusStored() | events.DispatcherLost():
                self._out.append(commands.Exit())
            case events.TaskExecutorConnected():
                self._out.append(self._goodbye(event.task_executor_id))
            case events.SlotsOffered():
                rejected = tuple(slot.allocation_id for slot in event.slots)
                self._out.append(
                    commands.AnswerSlots(
                        task_executor_id=event.task_executor_id, accepted=(), rejected=rejected
                    )
                )
            case events.ResourceManagerConnected():
                self._declare(force=True)
            case _:
                self.stale_messages += 1

    # ---- from start to deployment

    def _start(self, now: float) -> None:
        if self._invalid:
            self.exceptions.failed(ErrorInfo(summary=self._invalid, timestamp_ms=self.now_ms(now)))
            self._end(JobStatus.FAILED, now)
            return
        if self.graph.status is not JobStatus.CREATED:
            return
        self.graph.transition(JobStatus.RUNNING, self.now_ms(now))
        self.scheduler.schedule(self._strategy.first(self.graph), now, self.now_ms(now))
        self._declare()
        self._out.append(commands.BeginResults(restart=self.restarts))
        self._out.extend(self.coordinators.listings())

    def _advance(self, now: float) -> None:
        """After every event, from the facts as they are now: the next step, if one can be taken."""
        if self.graph.status.terminal:
            return
        if self.graph.live == 0 and self._restart_at is None:
            self._all_tasks_ended(now)
        if self.graph.status.terminal:
            return
        if self.scheduler.waiting:
            self._deploy_when_ready(now)
        self._slot_wait.update(
            now, missing=bool(self.scheduler.waiting) and not self.scheduler.has_all_slots
        )
        self._declare()
        reported = (self.graph.status, self.graph.version)
        if reported[0] is not self._reported[0]:
            self._report_status()
        elif reported[1] != self._reported[1]:
            self._out.append(commands.ReportProgress())
        self._reported = reported

    def _deploy_when_ready(self, now: float) -> None:
        if (
            self.graph.status in _ENDING
            or not self.scheduler.has_all_slots
            or self.task_executors.any_broken
        ):
            return
        if self.graph.status is JobStatus.RESTARTING:
            self.graph.transition(JobStatus.CREATED, self.now_ms(now))
            self.graph.transition(JobStatus.RUNNING, self.now_ms(now))
        if not self.coordinators.ready:
            return
        if self.schemas is None:
            if self._analyzing is None:
                self._analyze(self.scheduler.first_slot())
            return
        self._out.extend(self.scheduler.deploy(self.schemas, self.now_ms(now)))

    def _analyze(self, slot: Slot) -> None:
        self._analyzing = slot
        self._out.append(
            commands.AnalyzeJob(
                task_executor_id=slot.task_executor_id, allocation_id=slot.allocation_id
            )
        )

    def _analyzed(self, event: events.JobAnalyzed) -> None:
        if self._analyzing is None or self._analyzing.task_executor_id != event.task_executor_id:
            self.stale_messages += 1
            return
        self._analyzing = None
        self.schemas = {
            commands.OutputOf(analysis.operator_id, tag): schema
            for analysis in event.operators
            for tag, schema in (("", analysis.schema), *analysis.side_schemas.items())
        }
        self.plans = {analysis.operator_id: analysis.plan for analysis in event.operators}

    # ---- slots and TaskExecutors

    def _slots_offered(
        self,
        task_executor_id: TaskExecutorId,
        offers: tuple[SlotOffer, ...],
        now: float,
        host: str = "",
    ) -> None:
        answer = self.pool.offer(
            task_executor_id, host or self._hosts.get(task_executor_id, ""), offers, now
        )
        for slot in answer.replaced:
            self._tasks_lost(
                (slot,), self._error(now, "its slot's process was replaced by another one"), now
            )
        if offers:
            self._out.append(
                commands.AnswerSlots(
                    task_executor_id=task_executor_id,
                    accepted=answer.accepted,
                    rejected=answer.rejected,
                )
            )

    def _task_executor_connected(self, event: events.TaskExecutorConnected, now: float) -> None:
        """It tells all that it holds. What we believed to be there and is not, is lost; what should
        not be, ends.
        """
        who = event.task_executor_id
        returning = who in self.task_executors
        if not self.task_executors.connect(who, event.connection, now):
            return
        self._hosts[who] = event.host
        offered = {slot.allocation_id for slot in event.slots}
        gone = [
            allocation_id
            for allocation_id in self.pool.slots_of(who)
            if allocation_id not in offered
        ]
        for allocation_id in gone:
            self._slot_lost(
                allocation_id, self._error(now, "its TaskExecutor came back without the slot"), now
            )
        held = [self.pool.slots[allocation_id] for allocation_id in self.pool.slots_of(who)]
        self._slots_offered(who, event.slots, now, event.host)
        for update in event.tasks:
            if (
                update.state is not ExecutionState.FAILED
            ):  # that one is asked about: the reason is still on its way
                self._task_updated(update, now)
        known = {update.attempt_id for update in event.tasks}
        missing = [e for e in self.tasks.deployed_in(held) if e.attempt_id not in known]
        unheard = [e for e in missing if e.state is ExecutionState.DEPLOYING]
        if unheard and self.schemas is not None:
            self._out.extend(self.scheduler.deployments(unheard, self.schemas))
        lost = [e for e in missing if e.state is not ExecutionState.DEPLOYING]
        if lost:
            self._executions_lost(
                lost, self._error(now, "its TaskExecutor came back without the task"), now
            )
        self.tasks.cancel_unwanted(who, event.tasks)
        self._out.extend(
            self.coordinators.reconnected(
                e for e in self.tasks.deployed_in(held) if e.attempt_id in known
            )
        )
        if returning and self._analyzing is not None and self._analyzing.task_executor_id == who:
            self._analyze(self._analyzing)  # the request may have been lost with the old stream

    def _task_executor_lost(self, task_executor_id: TaskExecutorId, cause: str, now: float) -> None:
        known = task_executor_id in self.task_executors
        self.task_executors.remove(task_executor_id)
        slots = self.pool.lose_task_executor(task_executor_id)
        if not known and not slots:
            return
        self._log("warning", "TaskExecutor lost", None, tm_id=task_executor_id, cause=cause)
        self._tasks_lost(
            slots, self._error(now, f"TaskExecutor {task_executor_id} is lost: {cause}"), now
        )
        self._out.append(
            commands.DismissTaskExecutor(
                task_executor_id=task_executor_id, cause=f"held for dead: {cause}"
            )
        )

    def _slot_lost(self, allocation_id: AllocationId, error: ErrorInfo, now: float) -> None:
        slot = self.pool.lose(allocation_id)
        if slot is None:
            self.stale_messages += 1
            return
        self._tasks_lost((slot,), error, now)

    def _tasks_lost(self, slots: Iterable[Slot], error: ErrorInfo, now: float) -> None:
        """What ran in these slots is dead. They have left the pool already."""
        slots = tuple(slots)
        self._executions_lost(self.tasks.deployed_in(slots), error, now)
        if self._analyzing is not None and any(slot is self._analyzing for slot in slots):
            # Not simply tried again: a plan that kills its process would do so for ever.
            self._fail(error, now, restartable=True)

    def _executions_lost(self, executions: list[Execution], error: ErrorInfo, now: float) -> None:
        failed = self.tasks.lost(executions, error, now, self.now_ms(now))
        if failed:
            first = failed[0].error
            assert first is not None
            self._fail(first, now, restartable=True)

    def _tick(self, now: float) -> None:
        self._out.extend(self.coordinators.tick(now, self.graph.attempts))
        for task_executor_id, cause in self.task_executors.verdicts(now):
            self._task_executor_lost(task_executor_id, cause, now)
        expired = self.pool.release_idle(now)
        if expired:
            self._declare()  # lowered first, so that the ResourceManager does not refill
            self._free(expired, "idle")
        if self._restart_at is not None and self._restart_at <= now:
            self._restart(now)
        if self._slot_wait.overdue(now):
            self._fail(self._error(now, self._slot_wait.failure()), now, restartable=False)

    # ---- tasks and their operators

    def _task_updated(self, update: events.TaskUpdate, now: float) -> None:
        execution = self._live(update.attempt_id)
        if execution is None:
            return
        error = self.tasks.update(execution, update, now, self.now_ms(now))
        if error is not None:
            self._fail(error, now, restartable=True)
        if not execution.terminal:
            return
        if execution.state is ExecutionState.FINISHED:
            if self.graph.status is JobStatus.RUNNING:
                more = list(self._strategy.after(self.graph, execution))
                if more:
                    self.scheduler.schedule(more, now, self.now_ms(now))
            self._out.extend(
                self.coordinators.attempt_finished(execution, now, self.graph.attempts)
            )
            return
        self.coordinators.attempt_ended(execution)

    def _operator_message(self, event: events.OperatorMessageReceived, now: float) -> None:
        self.task_executors.seen(event.task_executor_id, now)
        execution = self._live(event.attempt_id)
        if execution is not None:
            self._out.extend(
                self.coordinators.receive(
                    execution, event.operator_id, event.message, now, self.graph.attempts
                )
            )

    def _spooled(self, event: events.ChunkSpooled | events.ChunkNotSpooled) -> None:
        execution = self._live(event.attempt_id)
        if execution is not None:
            problem = event.problem if isinstance(event, events.ChunkNotSpooled) else ""
            self._out.extend(
                self.coordinators.spooled(execution, event.operator_id, event.sequence, problem)
            )

    def _live(self, attempt_id: AttemptId) -> Execution | None:
        """The execution, if it has not ended; a message about any other is stale."""
        execution = self.graph.attempts.get(attempt_id)
        if execution is None or execution.terminal:
            self.stale_messages += 1
            return None
        return execution

    # ---- the job's status

    def _fail(self, error: ErrorInfo, now: float, *, restartable: bool) -> None:
        """Something failed. The first failure decides; what fails while the job is being ended only
        joins it.
        """
        status = self.graph.status
        if status is JobStatus.FAILING:
            self.exceptions.also_failed(error)
            return
        if status is JobStatus.CANCELLING:
            return
        self.exceptions.failed(error)
        self._log("error", "job fails", None, cause=error.summary, task=error.task_name)
        self._restart_delay_s = self._restarts.delay_s(now) if restartable else None
        self._restart_at = None
        self._end_all(JobStatus.FAILING, now)

    def _cancel(self, now: float) -> None:
        if self.graph.status is JobStatus.CANCELLING:
            return
        self._restart_at = None
        self._end_all(JobStatus.CANCELLING, now)

    def _end_all(self, status: JobStatus, now: float) -> None:
        self.graph.transition(status, self.now_ms(now))
        self._analyzing = None
        self.scheduler.forget()
        self.tasks.cancel_all(now, self.now_ms(now))

    def _all_tasks_ended(self, now: float) -> None:
        match self.graph.status:
            case JobStatus.RUNNING:
                self._end(JobStatus.FINISHED, now)
            case JobStatus.CANCELLING:
                self._end(JobStatus.CANCELED, now)
            case JobStatus.FAILING if self._restart_delay_s is None:
                self._end(JobStatus.FAILED, now)
            case JobStatus.FAILING:
                assert self._restart_delay_s is not None
                self.graph.transition(JobStatus.RESTARTING, self.now_ms(now))
                self._restart_at = now + self._restart_delay_s

    def _restart(self, now: float) -> None:
        """New attempts for all tasks, and a request for their slots; it goes on when they are
        there.
        """
        self._restart_at = None
        self.restarts += 1
        self.graph.start_over(self._ids, self.now_ms(now))
        self.coordinators.start_over()
        self._out.append(commands.BeginResults(restart=self.restarts))
        self.scheduler.schedule(self._strategy.first(self.graph), now, self.now_ms(now))

    def _suspend(self, now: float) -> None:
        self._restart_at = None
        self.scheduler.forget()
        self.tasks.abandon(now, self.now_ms(now))
        self._end(JobStatus.SUSPENDED, now)
        self._out.append(commands.Exit())

    def _end(self, status: JobStatus, now: float) -> None:
        """Terminal: nothing is required any more, all slots go back, everybody is told."""
        self.graph.transition(status, self.now_ms(now))
        slots = self.pool.clear()
        self._declare()
        self._free(slots, f"the job is {status.name}")
        self._log("info", "job ended", None, status=status.name)
        self._report_status()
        self._out.extend(
            self._goodbye(task_executor_id) for task_executor_id in self.task_executors.all()
        )
        for task_executor_id in self.task_executors.all():
            self.task_executors.remove(task_executor_id)
        self._slot_wait.update(now, missing=False)

    # ---- what is told to whom

    def _declare(self, *, force: bool = False) -> None:
        requirements = self.pool.take_requirements()
        if force and requirements is None:
            requirements = self.pool.requirements()
        if requirements is not None:
            self._declared += 1
            self._out.append(
                commands.DeclareRequirements(sequence=self._declared, requirements=requirements)
            )

    def _free(self, slots: Iterable[Slot], cause: str) -> None:
        by_task_executor: dict[TaskExecutorId, list[AllocationId]] = {}
        for slot in slots:
            by_task_executor.setdefault(slot.task_executor_id, []).append(slot.allocation_id)
        for task_executor_id, allocation_ids in by_task_executor.items():
            self._out.append(
                commands.FreeSlots(
                    task_executor_id=task_executor_id,
                    allocation_ids=tuple(allocation_ids),
                    cause=cause,
                )
            )

    def _report_status(self) -> None:
        status, timestamp_ms = self.graph.timestamps[-1]
        self._out.append(commands.ReportStatus(status=status, timestamp_ms=timestamp_ms))

    def _goodbye(self, task_executor_id: TaskExecutorId) -> commands.DismissTaskExecutor:
        return commands.DismissTaskExecutor(
            task_executor_id=task_executor_id, cause=f"the job is {self.graph.status.name}"
        )

    def _log(
        self,
        level: Literal["info", "warning", "error"],
        text: str,
        execution: Execution | None,
        **fields: str,
    ) -> None:
        about = execution_fields(execution) if execution is not None else {}
        self._out.append(commands.Log(level=level, text=text, fields={**about, **fields}))

    def _error(self, now: float, summary: str) -> ErrorInfo:
        return ErrorInfo(summary=summary, timestamp_ms=self.now_ms(now))
