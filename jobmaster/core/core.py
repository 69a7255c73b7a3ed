"""JobMasterCore: decides everything about one job. Events in, commands out; no I/O, clock or
randomness.

Life cycle of a job: JobStarted -> slots are required and source paths listed -> all slots of a unit
are available -> the plan is analysed in one of them -> the unit is deployed, one command per
TaskExecutor (the unit of a stream is the whole job) -> tasks report their states, and tasks that
wait for them start -> all tasks are terminal -> the job is terminal: requirements drop to zero,
slots are freed, the status is reported to the Dispatcher, TaskExecutors are dismissed.

If the region of a failed task is not the whole job, the region restarts while the job stays
RUNNING. Otherwise the job goes through FAILING (all tasks cancelled) to FAILED, or to RESTARTING if
the restart strategy allows. A restarting job waits for its slots in RESTARTING, and then goes
through CREATED to RUNNING again.

Each phase of a job (`phases.py`, `start.py`) handles the events that depend on the job's progress.
This class dispatches to the current phase and handles what all phases share: slots, TaskExecutors
and task states.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Never, assert_never

from firesteel.common.ids import AllocationId, AttemptId, IdSource, OperatorId, TaskExecutorId
from firesteel.common.job_graph import JobGraph, ResultPartitionId
from firesteel.common.service.core import Effects, Tick
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import events
from jobmaster.core.adoption import adoptable
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.commands import (
    AnswerSlots,
    Command,
    DismissTaskExecutor,
    ProbeTaskExecutor,
    ReportProgress,
    ReportTaskExecutorLost,
    log,
)
from jobmaster.core.coordinators.base import Json
from jobmaster.core.execution_graph import Execution
from jobmaster.core.execution_graph.vertex import DEPLOYED
from jobmaster.core.failover.restart_strategy import Verdict
from jobmaster.core.inspections import Inspections
from jobmaster.core.invariants import validate
from jobmaster.core.job_context import JobContext, TasksFailed
from jobmaster.core.phases import Ended, Phase, Step
from jobmaster.core.rescaling import Rescaling
from jobmaster.core.settings import JobSettings
from jobmaster.core.slots.slot import Slot, SlotOffer
from jobmaster.core.start import Created
from jobmaster.core.vacating import Vacating


class JobMasterCore:
    def __init__(
        self,
        job_graph: JobGraph,
        settings: JobSettings,
        *,
        ids: IdSource,
        now: float,
        now_ms: int,
        recovery: Recovery | None = None,
    ) -> None:
        """`now` (monotonic seconds) and `now_ms` (wall clock) denote the same instant; from then on
        only `now` is used. `recovery` is the state that earlier masters of the job left.
        """
        recovery = recovery or Recovery()
        self.job = job = JobContext(
            job_graph,
            settings,
            ids=ids,
            now=now,
            now_ms=now_ms,
            recovery=recovery,
        )
        self.graph = job.graph
        self.pool = job.pool
        self.coordinators = job.coordinators
        self.task_executors = job.task_executors
        self.exceptions = job.exceptions
        self.phase: Phase = Created(
            verdict_before=recovery.verdict, adoption_timeout_s=settings.adoption_timeout_s
        )
        self._vacating = Vacating(job)
        self._rescaling = Rescaling(job, settings.elastic, settings.slot_request_timeout_s)
        self._inspections = Inspections(job.graph)
        self._hosts: dict[TaskExecutorId, str] = {}
        self._reported: tuple[object, object] = (
            (JobStatus.INITIALIZING, None),
            (self.graph.version, len(job.warnings), 0),
        )

    # ---- the core's interface

    def handle(self, event: events.Event | Tick, now: float) -> Effects[Never, Command]:
        commands = self.phase.handle_late(self.job, event)
        if commands is None:
            commands = self._advance(self._handle(event, now), now)
            commands += self._inspections.advance(now)
        return Effects(commands=commands)

    def next_deadline(self) -> float | None:
        if self.graph.status.terminal:
            return None
        deadlines = [
            self.task_executors.next_deadline(),
            self.pool.next_deadline(),
            self.coordinators.next_deadline(),
            self.job.checkpoints.next_deadline(),
            self._inspections.next_deadline(),
            self.job.slot_wait.deadline(),
            self._rescaling.next_deadline(),
            self.phase.deadline(),
        ]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def now_ms(self, now: float) -> int:
        return self.job.now_ms(now)

    @property
    def adoptable(self) -> bool:
        """Whether another JobMaster can adopt its tasks without a checkpoint."""
        return adoptable(self.job)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the job's current failure, for another JobMaster; None: it is not
        failing.
        """
        return self.phase.verdict(self.job)

    @property
    def found_version(self) -> int | None:
        """Increases with what `found` returns; None: nothing yet that another JobMaster can use."""
        job = self.job
        recovers = job.checkpoints.enabled or adoptable(job)
        if job.schemas is None or not recovers or not job.coordinators.ready:
            return None
        return job.coordinators.found_version

    @property
    def listed_version(self) -> tuple[int, ...]:
        """Changes with what `listed` returns."""
        if not self.job.lists_tasks:
            return ()
        count = self.graph.count
        return count(ExecutionState.FINISHED), sum(map(count, DEPLOYED)), self.job.restarts

    @property
    def listed(self) -> Iterable[events.ListedTask]:
        """Tasks that have started, for another JobMaster."""
        return self.job.listed() if self.job.lists_tasks else ()

    @property
    def found(self) -> dict[OperatorId, Json]:
        """The listings of sources since the latest checkpoint, for another JobMaster."""
        latest = self.job.completed.latest
        operators = latest.operators if latest is not None else ()
        return self.coordinators.found({o.operator_id: o.coordinator for o in operators})

    def waiting_for(self, now: float) -> str:
        """Returns what the job waits for, in words for users; empty if it does not wait."""
        return self.phase.waiting_for(self.job, now)

    @property
    def restarts(self) -> int:
        return self.job.restarts

    @property
    def stale_messages(self) -> int:
        return self.job.stale_messages

    # ---- events

    def _handle(self, event: events.Event | Tick, now: float) -> list[Command]:
        job = self.job
        match event:
            case Tick():
                return self._tick(now)
            case events.TaskStatesReported():
                self.task_executors.seen(event.task_executor_id, now)
                return self._tasks_updated(event.updates, now)
            case events.TaskExecutorSeen():
                self.task_executors.seen(event.task_executor_id, now)
            case events.OperatorMessageReceived():
                return self._operator_message(event, now)
            case events.SlotsOffered():
                self.task_executors.seen(event.task_executor_id, now)
                host = self._hosts.get(event.task_executor_id, "")
                return self._slots_offered(event.task_executor_id, host, event.slots, now)
            case events.TaskExecutorConnected():
                return self._task_executor_connected(event, now)
            case events.TaskExecutorDisconnected():
                return self._task_executor_disconnected(event, now)
            case events.TaskExecutorGone():
                if self.task_executors.is_broken(event.task_executor_id, event.connection):
                    self.task_executors.gone(event.task_executor_id, now)
            case events.TaskExecutorLost():
                return self._task_executor_lost(event.task_executor_id, event.cause, now)
            case events.LossExplained():
                job.explain_loss(event)
                return [job.report_status()]
            case events.SlotLost():
                return self._slots_lost((event.allocation_id,), event.error, now)
            case events.JobAnalyzed():
                # Reported before deployment: tasks can be adopted only with it.
                status = job.report_status()
                return [status, *self._enter(self.phase.analyzed(job, event, now))]
            case events.AnalysisFailed():
                if self.phase.analyzes_on(event.task_executor_id):
                    return self._fail(event.error, now, restartable=False)
            case events.PathsListed():
                attempts = self.graph.attempts
                answers = self.coordinators.paths_listed(
                    event.operator_id, event.files, now, attempts
                )
                source = job.graph.job_graph.operator(event.operator_id)
                skipped = (job.warn(source.says(f"{t}; it is skipped")) for t in event.skipped)
                return [*answers, *itertools.chain.from_iterable(skipped)]
            case events.PathsMissing():
                source = job.graph.job_graph.operator(event.operator_id)
                problem = source.says(event.problem)
                return self._fail(job.error(problem, now), now, restartable=False)
            case events.ChunkSpooled():
                return self._spooled(event, "")
            case events.ChunkNotSpooled():
                return self._spooled(event, event.problem)
            case events.CheckpointAcknowledged():
                self.task_executors.seen(event.task_executor_id, now)
                return job.checkpoints.acknowledged(
                    event.attempt_id, event.checkpoint_id, event.snapshot, now
                )
            case events.CheckpointDeclined():
                self.task_executors.seen(event.task_executor_id, now)
                return job.checkpoints.declined(
                    event.attempt_id, event.checkpoint_id, event.cause, now
                )
            case events.TaskDataEnded():
                self.task_executors.seen(event.task_executor_id, now)
                if (execution := self._live(event.attempt_id)) is not None:
                    return job.checkpoints.data_ended(execution, now)
            case events.CheckpointStored():
                return job.checkpoints.stored(event.checkpoint_id, now)
            case events.CheckpointNotStored():
                return job.checkpoints.not_stored(
                    event.checkpoint_id, event.problem, now, counts=not event.store_away
                )
            case events.CheckpointRequested():
                return job.checkpoints.request(event, now)
            case events.RescaleRequested():
                return self._rescaling.requested(event, self.phase, now)
            case events.ParallelismStored():
                self._rescaling.stored()
            case events.ParallelismNotStored():
                self._rescaling.not_stored(event.problem)
            case events.InspectionRequested():
                return self._inspections.request(event, now)
            case events.InspectionEnded():
                self.task_executors.seen(event.task_executor_id, now)
                return self._inspections.ended(event)
            case events.ResourceManagerConnected():
                self._vacating.forget()
                return job.declare(force=True)
            case events.ResourcesShort():
                if event.sequence == job.declared:
                    job.slot_wait.explain(event.explanation)
            case events.JobStarted():
                return self._enter(self.phase.start(job, event, now))
            case events.TaskHeld():
                self.task_executors.seen(event.task_executor_id, now)
                if self.phase.adoption is not None:
                    self.phase.adoption.held(event)
            case events.SlotHoldersKnown():
                if self.phase.adoption is not None:
                    self.phase.adoption.holders_known(event.task_executor_ids)
            case events.VacateRequested():
                given_way = self._rescaling.give_way(now)
                self._vacating.asked(event, now)
                return given_way
            case events.VacateWithdrawn():
                self._vacating.ended(event.task_executor_id)
            case events.CancelRequested():
                return self._enter(self.phase.cancel(job, now))
            case events.Superseded():
                return self._enter(Ended.suspend(job, now))
            case events.TerminalStatusStored():
                pass  # refers to an earlier job of this process; nothing is terminal yet
            case _:
                assert_never(event)
        return []

    def _enter(self, step: Step) -> list[Command]:
        self.phase, commands = step
        return commands

    def _tick(self, now: float) -> list[Command]:
        job = self.job
        commands = self.coordinators.tick(now, self.graph.attempts)
        commands += job.checkpoints.tick(now)
        for task_executor_id, cause in self.task_executors.dead(now):
            commands += self._task_executor_dead(task_executor_id, cause, now)
        if expired := self.pool.release_idle(now):
            # Lowered first, so that the ResourceManager does not replace the slots.
            commands += job.declare()
            commands += job.free(expired, "idle")
        commands += self._enter(self.phase.tick(job, now))
        if job.slot_wait.overdue(now):
            commands += self._fail(job.error(job.slot_wait.failure(), now), now, restartable=False)
        return commands

    def _advance(self, commands: list[Command], now: float) -> list[Command]:
        """Takes the steps that current facts allow, after every event. `commands` are those of the
        event.
        """
        job = self.job
        if cause := job.checkpoints.failure:
            job.checkpoints.failure = ""
            commands += self._fail(job.error(cause, now), now, restartable=True)
        while True:
            before = self.phase
            commands += self._enter(before.advance(job, now))
            if self.phase is not before:
                continue
            commands = self._vacating.take_answers(commands + before.follow(job, now))
            commands = self._rescaling.take_answers(commands)
            commands += self._enter(self._vacating.advance(before, now))
            if self.phase is before:
                commands += self._enter(self._rescaling.advance(before, now))
            if self.phase is before:
                break
        if self.graph.status.terminal:
            return commands
        job.slot_wait.update(now, missing=job.lacks_slots)
        commands += job.declare()
        commands += job.free(self.pool.take_left(), "its TaskExecutor is to stop")
        reported = (
            (self.graph.status, self.found_version),
            (self.graph.version, len(job.warnings), job.rescales.version),
        )
        if reported[0] != self._reported[0]:
            commands.append(job.report_status())
        elif reported[1] != self._reported[1]:
            commands.append(ReportProgress())
        self._reported = reported
        return commands

    def _fail(self, error: ErrorInfo, now: float, *, restartable: bool) -> list[Command]:
        return self._enter(self.phase.fail(self.job, error, now, restartable=restartable))

    # ---- slots and TaskExecutors

    def _slots_offered(
        self,
        task_executor_id: TaskExecutorId,
        host: str,
        offers: tuple[SlotOffer, ...],
        now: float,
    ) -> list[Command]:
        answer = self.pool.offer(task_executor_id, host, offers, now)
        error = self.job.error("its slot's process was replaced", now)
        commands = self._slots_gone(answer.replaced, error, now)
        if offers:
            commands.append(
                AnswerSlots(
                    task_executor_id=task_executor_id,
                    accepted=answer.accepted,
                    rejected=answer.rejected,
                )
            )
        return commands

    def _task_executor_connected(
        self, event: events.TaskExecutorConnected, now: float
    ) -> list[Command]:
        """Compares the complete list of what a TaskExecutor holds for the job with the core's view.
        Missing slots and tasks are lost; unexpected tasks are cancelled.
        """
        job, task_executor_id = self.job, event.task_executor_id
        returning = task_executor_id in self.task_executors
        if not self.task_executors.connect(task_executor_id, event.connection, event.address, now):
            return []
        self._hosts[task_executor_id] = event.host
        job.stores[task_executor_id] = event.data_address
        offered = {slot.allocation_id for slot in event.slots}
        cause = "its TaskExecutor came back without the slot"
        gone = [slot for slot in self.pool.slots_of(task_executor_id) if slot not in offered]
        lost = [slot for each in gone if (slot := self.pool.lose(each, now, cause)) is not None]
        held = [self.pool.slots[slot] for slot in self.pool.slots_of(task_executor_id)]
        commands = self.phase.connected(job, event, now)
        taken = self._taken(event)
        if taken:
            commands.append(
                AnswerSlots(task_executor_id=task_executor_id, accepted=(), rejected=tuple(taken))
            )
        usable = tuple(slot for slot in event.slots if slot.allocation_id not in taken)
        commands += self._slots_offered(task_executor_id, event.host, usable, now)
        # FAILED tasks are requested below to resend their report: the cause is still on its way.
        updates = (u for u in event.tasks if u.state is not ExecutionState.FAILED)
        commands += self._tasks_updated(updates, now)
        commands += self._compare_tasks(event, held, lost, now)
        if returning:
            commands += self.phase.reconnected(job, task_executor_id)
            commands += job.checkpoints.lost_messages(now)
        return commands

    def _taken(self, event: events.TaskExecutorConnected) -> set[AllocationId]:
        """Returns its slots that run tasks of an earlier master that were not adopted."""
        return {
            place.allocation_id
            for update in event.tasks
            if not update.state.terminal
            and update.attempt_id not in self.graph.attempts
            and (place := event.places.get(update.attempt_id)) is not None
        } - self.pool.slots.keys()

    def _compare_tasks(
        self,
        event: events.TaskExecutorConnected,
        held: list[Slot],
        gone: list[Slot],
        now: float,
    ) -> list[Command]:
        """Compares the tasks that a reconnected TaskExecutor runs with those expected in the slots
        that it held before. `gone` has the slots that it no longer holds. All missing tasks are
        lost from one cause.
        """
        job, task_executor_id = self.job, event.task_executor_id
        known = {update.attempt_id for update in event.tasks}
        missing = [e for e in job.tasks.deployed_in(held) if e.attempt_id not in known]
        unheard = [e for e in missing if e.state is ExecutionState.DEPLOYING]
        commands: list[Command] = []
        if unheard and job.schemas is not None:
            commands += job.scheduler.deployments(unheard, job.schemas)
        lost = job.tasks.deployed_in(gone)
        lost += (e for e in missing if e.state is not ExecutionState.DEPLOYING)
        what = "the slot" if gone else "the task" if lost else "results that it kept"
        stored = frozenset(event.partitions)
        commands += job.partitions.release_read_at(
            task_executor_id, stored, self.phase.restarts_soon
        )
        expected = job.partitions.kept_by(task_executor_id)
        partitions = [partition for partition in expected if partition not in stored]
        error = job.error(f"its TaskExecutor came back without {what}", now)
        commands += self._executions_lost(lost, error, now, partitions=partitions)
        if self.phase.analyzes_in(gone):
            commands += self._fail(error, now, restartable=True)
        commands += job.tasks.cancel_unwanted(task_executor_id, event.tasks)
        running = (e for e in job.tasks.deployed_in(held) if e.attempt_id in known)
        return [*commands, *self.coordinators.reconnected(running)]

    def _task_executor_disconnected(
        self, event: events.TaskExecutorDisconnected, now: float
    ) -> list[Command]:
        address = self.task_executors.disconnect(event.task_executor_id, event.connection, now)
        if not address:
            return []
        return [
            ProbeTaskExecutor(
                task_executor_id=event.task_executor_id,
                connection=event.connection,
                address=address,
            )
        ]

    def _task_executor_dead(
        self, task_executor_id: TaskExecutorId, cause: str, now: float
    ) -> list[Command]:
        """Reports the death to the ResourceManager, which may not know it yet."""
        report = ReportTaskExecutorLost(task_executor_id=task_executor_id, cause=cause)
        return [report, *self._task_executor_lost(task_executor_id, cause, now)]

    def _task_executor_lost(
        self, task_executor_id: TaskExecutorId, cause: str, now: float
    ) -> list[Command]:
        job = self.job
        if self.phase.adoption is not None:
            self.phase.adoption.lost(task_executor_id)
        self._vacating.ended(task_executor_id)
        known = task_executor_id in self.task_executors
        self.task_executors.remove(task_executor_id)
        partitions = job.partitions.kept_by(task_executor_id)
        slots = self.pool.lose_task_executor(task_executor_id, now, cause)
        if not known and not slots and not partitions:
            return []
        summary = f"TaskExecutor {task_executor_id} is lost: {cause}"
        error = replace(job.error(summary, now), lost_task_executor=task_executor_id)
        return [
            log("warning", "TaskExecutor lost", tm_id=task_executor_id, cause=cause),
            *self._slots_gone(slots, error, now, partitions=partitions),
            DismissTaskExecutor(task_executor_id=task_executor_id, cause=f"declared dead: {cause}"),
        ]

    def _slots_lost(
        self, allocation_ids: Iterable[AllocationId], error: ErrorInfo, now: float
    ) -> list[Command]:
        lost = [self.pool.lose(each, now, error.summary) for each in allocation_ids]
        self.job.stale_messages += lost.count(None)
        return self._slots_gone((slot for slot in lost if slot is not None), error, now)

    def _slots_gone(
        self,
        slots: Iterable[Slot],
        error: ErrorInfo,
        now: float,
        *,
        partitions: Sequence[ResultPartitionId] = (),
    ) -> list[Command]:
        """Handles the loss of slots that have already left the pool: their tasks are dead.
        `partitions` are lost with them.
        """
        slots = tuple(slots)
        executions = self.job.tasks.deployed_in(slots)
        commands = self._executions_lost(executions, error, now, partitions=partitions)
        if self.phase.analyzes_in(slots):
            commands += self._fail(error, now, restartable=True)
        return commands

    # ---- tasks and their operators

    def _executions_lost(
        self,
        executions: list[Execution],
        error: ErrorInfo,
        now: float,
        *,
        partitions: Sequence[ResultPartitionId] = (),
    ) -> list[Command]:
        commands = self.job.tasks.lost(executions, error, now, self.job.now_ms(now))
        failed = [e for e in executions if e.state is ExecutionState.FAILED]
        if failed or partitions:
            cause = (failed[0].error if failed else None) or error
            failure = TasksFailed(failed, cause, partitions)
            commands += self._enter(self.phase.tasks_failed(self.job, failure, now))
        return commands

    def _tasks_updated(self, updates: Iterable[events.TaskUpdate], now: float) -> list[Command]:
        """Handles one message's updates: tasks that fail in it have failed from one cause."""
        job = self.job
        commands: list[Command] = []
        failed, unreadable = [], []
        for update in updates:
            execution = self._live(update.attempt_id)
            if execution is None:
                continue
            commands += job.tasks.update(execution, update, now, job.now_ms(now))
            if execution.state is ExecutionState.FAILED:
                failed.append(execution)
                if update.unreadable is not None:
                    unreadable.append(update.unreadable)
            if execution.terminal:
                commands += self._task_ended(execution, now)
        if failed and failed[0].error is not None:
            failure = TasksFailed(failed, failed[0].error, unreadable)
            commands += self._enter(self.phase.tasks_failed(job, failure, now))
        return commands

    def _task_ended(self, execution: Execution, now: float) -> list[Command]:
        if execution.state is not ExecutionState.FINISHED:
            self.coordinators.attempt_ended(execution)
            return []
        return [
            *self.phase.task_finished(self.job, execution, now),
            *self.coordinators.attempt_finished(execution, now, self.graph.attempts),
            *self.job.checkpoints.finished(execution, now),
        ]

    def _operator_message(self, event: events.OperatorMessageReceived, now: float) -> list[Command]:
        self.task_executors.seen(event.task_executor_id, now)
        execution = self._live(event.attempt_id)
        if execution is None or not self.phase.receives(self.job, event.operator_id):
            return []
        return self.coordinators.receive(
            execution, event.operator_id, event.message, now, self.graph.attempts
        )

    def _spooled(
        self, event: events.ChunkSpooled | events.ChunkNotSpooled, problem: str
    ) -> list[Command]:
        execution = self._live(event.attempt_id)
        if execution is None:
            return []
        return self.coordinators.spooled(execution, event.operator_id, event.sequence, problem)

    def _live(self, attempt_id: AttemptId) -> Execution | None:
        """Returns the execution unless it has ended; messages about any other are stale."""
        execution = self.graph.attempts.get(attempt_id)
        if execution is None or execution.terminal:
            self.job.stale_messages += 1
            return None
        return execution

    # ---- for checks and errors

    def validate(self) -> None:
        """Raises AssertionError with the story of the violation unless all invariants hold."""
        validate(self.job, self.phase)

    def story(self, of: str) -> list[str]:
        """Returns how the task with this attempt id, the slot with this allocation id, or else the
        job, came to its state.
        """
        for vertex in self.graph.execution_vertices():
            for execution in vertex.attempts:
                if execution.attempt_id == of:
                    return execution.story()
        return self.pool.story(AllocationId(of)) or self.graph.story()
