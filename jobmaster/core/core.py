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

The types in `phases/` handle everything that depends on the job's progress. This class dispatches
to the current phase and handles what all phases share: slots, TaskExecutors and task states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Never, assert_never

from firesteel.common.ids import AllocationId, AttemptId, IdSource, OperatorId, TaskExecutorId
from firesteel.common.job_graph import JobGraph
from firesteel.common.results import ResultPartitionId
from firesteel.common.service.core import Effects, Tick
from firesteel.common.states import ExecutionState, JobEvent, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.adoption import Adoption, adoptable, can_adopt
from jobmaster.core.checkpoints.checkpoint import Kind
from jobmaster.core.checkpoints.coordinator import Request
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.coordinators.base import Json
from jobmaster.core.execution_graph import Execution
from jobmaster.core.execution_graph.vertex import DEPLOYED
from jobmaster.core.failover.restart_strategy import Verdict
from jobmaster.core.invariants import validate
from jobmaster.core.job import Job
from jobmaster.core.phases import (
    Cancelling,
    Created,
    Ended,
    Ending,
    Failing,
    Phase,
    Reconciling,
    Running,
    WaitingForSlots,
)
from jobmaster.core.settings import JobSettings
from jobmaster.core.slots.slot import Slot, SlotOffer
from jobmaster.core.task_executors import PROCESS_ENDED
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
        self.job = job = Job(
            job_graph,
            settings,
            ids=ids,
            now=now,
            now_ms=now_ms,
            recovery=recovery or Recovery(),
        )
        self.graph = job.graph
        self.pool = job.pool
        self.coordinators = job.coordinators
        self.task_executors = job.task_executors
        self.exceptions = job.exceptions
        self.phase: Phase = Created()
        self._vacating = Vacating(job)
        self._adoption_timeout_s = settings.adoption_timeout_s
        self._earlier_verdict = recovery.verdict if recovery is not None else None
        self._hosts: dict[TaskExecutorId, str] = {}
        self._reported: tuple[object, object] = (
            (JobStatus.INITIALIZING, None),
            (self.graph.version, len(job.warnings)),
        )

    # ---- the core's interface

    def handle(self, event: events.Event | Tick, now: float) -> Effects[Never, commands.Command]:
        if isinstance(self.phase, Ended):
            self.phase.handle(self.job, event)
        else:
            self._handle(event, now)
            self._advance(now)
        out = tuple(self.job.out)
        self.job.out.clear()
        return Effects(commands=out)

    def next_deadline(self) -> float | None:
        if isinstance(self.phase, Ended):
            return None
        deadlines = [
            self.task_executors.next_deadline(),
            self.pool.next_deadline(),
            self.coordinators.next_deadline(),
            self.job.checkpoints.next_deadline(),
            self.job.slot_wait.deadline(),
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
        if not isinstance(self.phase, Failing):
            return None
        return Verdict(error=self.exceptions.latest, delay_s=self.phase.restart_delay_s)

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
        latest = self.job.checkpoints.latest
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

    def _handle(self, event: events.Event | Tick, now: float) -> None:
        job = self.job
        match event:
            case Tick():
                self._tick(now)
            case events.TaskStatesReported():
                self.task_executors.seen(event.task_executor_id, now)
                self._tasks_updated(event.updates, now)
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
                self._task_executor_disconnected(event, now)
            case events.TaskExecutorGone():
                if self.task_executors.is_broken(event.task_executor_id, event.connection):
                    self._task_executor_found_dead(event.task_executor_id, PROCESS_ENDED, now)
            case events.TaskExecutorLost():
                self._task_executor_lost(event.task_executor_id, event.cause, now)
            case events.SlotLost():
                self._slots_lost((event.allocation_id,), event.error, now)
            case events.JobAnalyzed():
                job.report_status()  # before deployment: tasks can be adopted only with it
                self.phase = self.phase.analyzed(job, event)
                self._check_analysis(now)
            case events.AnalysisFailed():
                if self.phase.analyzes_on(event.task_executor_id):
                    self._fail(event.error, now, restartable=False)
            case events.PathsListed():
                job.out.extend(
                    self.coordinators.paths_listed(
                        event.operator_id, event.files, now, self.graph.attempts
                    )
                )
                source = job.graph.job_graph.operator(event.operator_id)
                for text in event.skipped:
                    job.warn(source.says(f"{text}; it is skipped"))
            case events.PathsMissing():
                source = job.graph.job_graph.operator(event.operator_id)
                problem = source.says(event.problem)
                self._fail(job.error(problem, now), now, restartable=False)
            case events.ChunkSpooled() | events.ChunkNotSpooled():
                self._spooled(event)
            case events.CheckpointAcknowledged():
                self.task_executors.seen(event.task_executor_id, now)
                job.out += job.checkpoints.acknowledged(
                    event.attempt_id, event.checkpoint_id, event.snapshot, now
                )
            case events.CheckpointDeclined():
                self.task_executors.seen(event.task_executor_id, now)
                job.out += job.checkpoints.declined(
                    event.attempt_id, event.checkpoint_id, event.cause, now
                )
            case events.TaskDataEnded():
                self.task_executors.seen(event.task_executor_id, now)
                if (execution := self._live(event.attempt_id)) is not None:
                    job.out += job.checkpoints.data_ended(execution, now)
            case events.CheckpointStored():
                job.out += job.checkpoints.stored(event.checkpoint_id, now)
            case events.CheckpointNotStored():
                job.out += job.checkpoints.not_stored(
                    event.checkpoint_id, event.problem, now, counts=not event.store_away
                )
            case events.CheckpointRequested():
                asked = Request(
                    request=event.request,
                    kind=Kind.SAVEPOINT if event.savepoint_path else Kind.CHECKPOINT,
                    savepoint_path=event.savepoint_path,
                    stops=event.stops,
                    drains=event.drains,
                    full=event.full,
                )
                job.out += job.checkpoints.requested(asked, now)
            case events.ResourceManagerConnected():
                self._vacating.forget()
                job.declare(force=True)
            case events.ResourcesShort():
                if event.sequence == job.declared:
                    job.slot_wait.explain(event.explanation)
            case events.JobStarted():
                self._started(event, now)
            case events.TaskHeld():
                self.task_executors.seen(event.task_executor_id, now)
                if self._adoption is not None:
                    self._adoption.held(event)
            case events.SlotHoldersKnown():
                if self._adoption is not None:
                    self._adoption.holders_known(event.task_executor_ids)
            case events.VacateRequested():
                self._vacating.asked(event, now)
            case events.VacateWithdrawn():
                self._vacating.ended(event.task_executor_id)
            case events.CancelRequested():
                if not isinstance(self.phase, Cancelling):
                    self.phase = Cancelling.enter(job, now, self._adoption)
            case events.Superseded():
                self.phase = Ended.suspend(job, now)
            case events.TerminalStatusStored():
                pass  # refers to an earlier job of this process; nothing is terminal yet
            case _:
                assert_never(event)

    def _started(self, event: events.JobStarted, now: float) -> None:
        job = self.job
        cancels = event.cancels and not job.invalid
        verdict = None if cancels or job.invalid else self._earlier_verdict
        if event.adopts is not None:
            self.coordinators.take_found(event.found)
        if event.adopts is None or not (cancels or verdict is not None or can_adopt(job)):
            begins_anew = job.checkpoints.enabled or job.lists_tasks
            assert event.adopts is None or begins_anew, "its tasks were to be adopted"
            if verdict is not None and verdict.delay_s is None:
                self._fail_as(verdict, now)
            else:
                self.phase = self.phase.start(job, now)
            return
        self.phase = Reconciling.enter(
            job, event.adopts, event.listed, self._adoption_timeout_s, now
        )
        if cancels:
            self.phase = Cancelling.enter(job, now, self._adoption)
        elif verdict is not None:
            self._fail_as(verdict, now)
        else:
            self._check_analysis(now)

    def _fail_as(self, verdict: Verdict, now: float) -> None:
        """Continues to fail the job, as under its earlier master."""
        if verdict.error is not None and self.exceptions.latest is None:
            self.exceptions.failed(verdict.error)
        self._end_tasks(verdict.delay_s, now, "under its earlier JobMaster")

    def _end_tasks(self, restart_delay_s: float | None, now: float, cause: str) -> None:
        """Ends all tasks because of a failure; then the job restarts or is FAILED."""
        if isinstance(self.phase, Reconciling):
            self.job.out.extend(self.coordinators.listings())  # needed for a restart
        self.phase = Failing.enter(
            self.job, restart_delay_s, now, cause=cause, adoption=self._adoption
        )

    @property
    def _adoption(self) -> Adoption | None:
        """The adoption, while tasks of an earlier master are being taken over."""
        return self.phase.adoption if isinstance(self.phase, Reconciling | Ending) else None

    def _check_analysis(self, now: float) -> None:
        job = self.job
        if job.schemas is not None and (
            why := job.checkpoints.analyzed(job.schemas, job.states) or job.other_source()
        ):
            self._fail(job.error(why, now), now, restartable=False)

    def _reconciled(self, adoption: Adoption, now: float) -> None:
        """Ends the adoption once the tasks have reported or time is up."""
        job = self.job
        found = adoption.conclude(job, now)
        begun = len(self.graph.attempts) - self.graph.count(ExecutionState.CREATED)
        job.log(
            "info",
            "tasks were adopted",
            tasks=begun - len(found.failed),
            restarted=len(found.failed),
        )
        job.out.extend(self.coordinators.listings())
        if not found.found and found.failed and job.checkpoints.enabled:
            self.graph.apply(JobEvent.NOT_FOUND, job.now_ms(now))
            job.start_over(now)
            self.phase = WaitingForSlots.enter(job, now)
            return
        self.graph.apply(JobEvent.RECONCILED, job.now_ms(now))
        self.phase = Running()
        self._follow(now)
        adoption.notify(job, now)
        self._tasks_failed(found.failed, found.error, now, lost=found.lost)
        if job.lists_tasks and isinstance(self.phase, Running):
            job.begin_others(now)
            job.partitions.release_read(self.phase.restarts_soon)

    def _tick(self, now: float) -> None:
        job = self.job
        job.out.extend(self.coordinators.tick(now, self.graph.attempts))
        job.out.extend(job.checkpoints.tick(now))
        for task_executor_id, cause in self.task_executors.dead(now):
            self._task_executor_found_dead(task_executor_id, cause, now)
        expired = self.pool.release_idle(now)
        if expired:
            job.declare()  # lowered first, so that the ResourceManager does not replace the slots
            job.free(expired, "idle")
        self.phase = self.phase.tick(job, now)
        if job.slot_wait.overdue(now):
            self._fail(job.error(job.slot_wait.failure(), now), now, restartable=False)

    def _advance(self, now: float) -> None:
        """Takes the steps that current facts allow. Runs after every event."""
        job = self.job
        if cause := job.checkpoints.failure:
            job.checkpoints.failure = ""
            self._fail(job.error(cause, now), now, restartable=True)
        if isinstance(self.phase, Reconciling):
            self.phase.adoption.let_sinks_go_on(job)
            if self.phase.adoption.over(job, now):
                self._reconciled(self.phase.adoption, now)
        while True:
            while (following := self.phase.advance(job, now)) is not self.phase:
                self.phase = following
            self._follow(now)
            following = self._vacating.advance(self.phase, now)
            if following is self.phase:
                break
            self.phase = following
        if isinstance(self.phase, Ended):
            return
        job.slot_wait.update(now, missing=job.lacks_slots)
        job.declare()
        job.free(self.pool.take_left(), "its TaskExecutor is to stop")
        reported = (
            (self.graph.status, self.found_version),
            (self.graph.version, len(job.warnings)),
        )
        if reported[0] != self._reported[0]:
            job.report_status()
        elif reported[1] != self._reported[1]:
            job.out.append(commands.ReportProgress())
        self._reported = reported

    def _follow(self, now: float) -> None:
        running = isinstance(self.phase, Running) and self.job.all_run
        otherwise = (
            "some of the job's tasks are being restarted"
            if isinstance(self.phase, Running)
            else "the job is no longer running"
        )
        self.job.out += self.job.checkpoints.follow(running, now, otherwise=otherwise)

    def _fail(self, error: ErrorInfo, now: float, *, restartable: bool) -> None:
        job = self.job
        if not self.phase.record_failure(job, error):
            return
        job.log("error", "job fails", cause=error.summary, task=error.task_name)
        delay_s = job.restart_strategy.delay_s(job.now_ms(now) / 1000) if restartable else None
        self._end_tasks(delay_s, now, error.summary)

    def _tasks_failed(
        self,
        failed: Sequence[Execution],
        error: ErrorInfo | None,
        now: float,
        *,
        lost: Sequence[ResultPartitionId] = (),
    ) -> None:
        """Handles tasks that failed, and partitions that cannot be read, from one cause: regions
        restart, or the whole job fails. `error` belongs to the first of them.
        """
        job, phase = self.job, self.phase
        if error is None:
            return
        if isinstance(phase, Reconciling):
            phase.adoption.failed(error, lost)  # it restarts once the other tasks are known
            return
        if not isinstance(phase, Running):
            job.partitions.lose(lost)
            if failed:
                self._fail(error, now, restartable=True)
            return
        vertices = job.tasks_to_restart(
            [execution.vertex for execution in failed], lost, phase.restarting
        )
        job.partitions.lose(lost)
        if not vertices:
            return  # no task needs the lost partitions
        if all(map(phase.restarts_soon, vertices)):
            # A consequence of the failure that already restarts them.
            job.exceptions.also_failed(error)
            return
        if job.restarts_as_a_whole(vertices):
            self._fail(error, now, restartable=True)
            return
        delay_s = job.restart_strategy.delay_s(job.now_ms(now) / 1000)
        if delay_s is None:
            self._fail(error, now, restartable=False)
            return
        job.exceptions.failed(error)
        job.log(
            "error",
            "tasks are restarted",
            cause=error.summary,
            task=error.task_name,
            tasks=len(vertices),
        )
        self.phase = phase.restart(job, vertices, now + delay_s, now)

    # ---- slots and TaskExecutors

    def _slots_offered(
        self,
        task_executor_id: TaskExecutorId,
        offers: tuple[SlotOffer, ...],
        now: float,
        host: str = "",
    ) -> None:
        host = host or self._hosts.get(task_executor_id, "")
        answer = self.pool.offer(task_executor_id, host, offers, now)
        error = self.job.error("its slot's process was replaced", now)
        self._slots_gone(answer.replaced, error, now)
        if offers:
            self.job.out.append(
                commands.AnswerSlots(
                    task_executor_id=task_executor_id,
                    accepted=answer.accepted,
                    rejected=answer.rejected,
                )
            )

    def _task_executor_connected(self, event: events.TaskExecutorConnected, now: float) -> None:
        """Compares the complete list of what a TaskExecutor holds for the job with the core's view.
        Missing slots and tasks are lost; unexpected tasks are cancelled.
        """
        job, task_executor_id = self.job, event.task_executor_id
        returning = task_executor_id in self.task_executors
        if not self.task_executors.connect(task_executor_id, event.connection, event.address, now):
            return
        self._hosts[task_executor_id] = event.host
        job.stores[task_executor_id] = event.data_address
        offered = {slot.allocation_id for slot in event.slots}
        cause = "its TaskExecutor came back without the slot"
        gone = [slot for slot in self.pool.slots_of(task_executor_id) if slot not in offered]
        lost = [slot for each in gone if (slot := self.pool.lose(each, now, cause)) is not None]
        held = [self.pool.slots[slot] for slot in self.pool.slots_of(task_executor_id)]
        self.phase.connected(job, event, now)
        self._slots_offered(task_executor_id, self._usable(event), now, event.host)
        # FAILED tasks are requested below to resend their report: the cause is still on its way.
        self._tasks_updated((u for u in event.tasks if u.state is not ExecutionState.FAILED), now)
        self._compare_tasks(event, held, lost, now)
        if returning:
            self.phase.reconnected(job, task_executor_id)
            job.out += job.checkpoints.reconnected(now)

    def _usable(self, event: events.TaskExecutorConnected) -> tuple[SlotOffer, ...]:
        """Returns its slots, except those that run tasks of an earlier master that were not
        adopted.
        """
        taken = {
            place.allocation_id
            for update in event.tasks
            if not update.state.terminal
            and update.attempt_id not in self.graph.attempts
            and (place := event.places.get(update.attempt_id)) is not None
        } - self.pool.slots.keys()
        if taken:
            self.job.out.append(
                commands.AnswerSlots(
                    task_executor_id=event.task_executor_id, accepted=(), rejected=tuple(taken)
                )
            )
        return tuple(slot for slot in event.slots if slot.allocation_id not in taken)

    def _compare_tasks(
        self,
        event: events.TaskExecutorConnected,
        held: list[Slot],
        gone: list[Slot],
        now: float,
    ) -> None:
        """Compares the tasks that a reconnected TaskExecutor runs with those expected in the slots
        that it held before. `gone` has the slots that it no longer holds. All missing tasks are
        lost from one cause.
        """
        job = self.job
        known = {update.attempt_id for update in event.tasks}
        missing = [e for e in job.tasks.deployed_in(held) if e.attempt_id not in known]
        unheard = [e for e in missing if e.state is ExecutionState.DEPLOYING]
        if unheard and job.schemas is not None:
            job.out.extend(job.scheduler.deployments(unheard, job.schemas))
        lost = job.tasks.deployed_in(gone)
        lost += (e for e in missing if e.state is not ExecutionState.DEPLOYING)
        what = "the slot" if gone else "the task" if lost else "results that it kept"
        partitions = job.partitions.reported(
            event.task_executor_id, event.partitions, self.phase.restarts_soon
        )
        error = job.error(f"its TaskExecutor came back without {what}", now)
        self._executions_lost(lost, error, now, partitions=partitions)
        if self.phase.analyzes_in(gone):
            self._fail(error, now, restartable=True)
        job.tasks.cancel_unwanted(event.task_executor_id, event.tasks)
        job.out.extend(
            self.coordinators.reconnected(
                e for e in job.tasks.deployed_in(held) if e.attempt_id in known
            )
        )

    def _task_executor_disconnected(
        self, event: events.TaskExecutorDisconnected, now: float
    ) -> None:
        address = self.task_executors.disconnect(event.task_executor_id, event.connection, now)
        if address:
            self.job.out.append(
                commands.ProbeTaskExecutor(
                    task_executor_id=event.task_executor_id,
                    connection=event.connection,
                    address=address,
                )
            )

    def _task_executor_found_dead(
        self, task_executor_id: TaskExecutorId, cause: str, now: float
    ) -> None:
        """Reports the death to the ResourceManager, which may not know it yet."""
        self.job.out.append(
            commands.ReportTaskExecutorLost(task_executor_id=task_executor_id, cause=cause)
        )
        self._task_executor_lost(task_executor_id, cause, now)

    def _task_executor_lost(self, task_executor_id: TaskExecutorId, cause: str, now: float) -> None:
        job = self.job
        if self._adoption is not None:
            self._adoption.lost(task_executor_id)
        self._vacating.ended(task_executor_id)
        known = task_executor_id in self.task_executors
        self.task_executors.remove(task_executor_id)
        partitions = job.partitions.kept_by(task_executor_id)
        slots = self.pool.lose_task_executor(task_executor_id, now, cause)
        if not known and not slots and not partitions:
            return
        job.log("warning", "TaskExecutor lost", tm_id=task_executor_id, cause=cause)
        error = job.error(f"TaskExecutor {task_executor_id} is lost: {cause}", now)
        self._slots_gone(slots, error, now, partitions=partitions)
        job.dismiss(task_executor_id, f"declared dead: {cause}")

    def _slots_lost(
        self, allocation_ids: Iterable[AllocationId], error: ErrorInfo, now: float
    ) -> None:
        lost = [self.pool.lose(each, now, error.summary) for each in allocation_ids]
        self.job.stale_messages += lost.count(None)
        self._slots_gone((slot for slot in lost if slot is not None), error, now)

    def _slots_gone(
        self,
        slots: Iterable[Slot],
        error: ErrorInfo,
        now: float,
        *,
        partitions: Sequence[ResultPartitionId] = (),
    ) -> None:
        """Handles the loss of slots that have already left the pool: their tasks are dead.
        `partitions` are lost with them.
        """
        slots = tuple(slots)
        executions = self.job.tasks.deployed_in(slots)
        self._executions_lost(executions, error, now, partitions=partitions)
        if self.phase.analyzes_in(slots):
            self._fail(error, now, restartable=True)

    # ---- tasks and their operators

    def _executions_lost(
        self,
        executions: list[Execution],
        error: ErrorInfo,
        now: float,
        *,
        partitions: Sequence[ResultPartitionId] = (),
    ) -> None:
        failed = self.job.tasks.lost(executions, error, now, self.job.now_ms(now))
        first = failed[0].error if failed else (error if partitions else None)
        self._tasks_failed(failed, first, now, lost=partitions)

    def _tasks_updated(self, updates: Iterable[events.TaskUpdate], now: float) -> None:
        """Handles one message's updates: tasks that fail in it have failed from one cause."""
        job = self.job
        failed, unreadable = [], []
        for update in updates:
            execution = self._live(update.attempt_id)
            if execution is None:
                continue
            if job.tasks.update(execution, update, now, job.now_ms(now)) is not None:
                failed.append(execution)
                if update.unreadable is not None:
                    unreadable.append(update.unreadable)
            if execution.terminal:
                self._task_ended(execution, now)
        self._tasks_failed(failed, failed[0].error if failed else None, now, lost=unreadable)

    def _task_ended(self, execution: Execution, now: float) -> None:
        job = self.job
        if execution.state is not ExecutionState.FINISHED:
            self.coordinators.attempt_ended(execution)
            return
        if isinstance(self.phase, Running):
            job.partitions.read_by(execution, self.phase.restarts_soon)
            job.scheduler.schedule(job.strategy.after(execution.vertex), now, job.now_ms(now))
        job.out.extend(self.coordinators.attempt_finished(execution, now, self.graph.attempts))
        job.out.extend(job.checkpoints.finished(execution, now))

    def _operator_message(self, event: events.OperatorMessageReceived, now: float) -> None:
        self.task_executors.seen(event.task_executor_id, now)
        execution = self._live(event.attempt_id)
        if isinstance(self.phase, Reconciling) and not (
            self.phase.adoption.collecting and self.coordinators.collects(event.operator_id)
        ):
            return  # it is resent once all splits have owners
        if execution is not None:
            self.job.out.extend(
                self.coordinators.receive(
                    execution, event.operator_id, event.message, now, self.graph.attempts
                )
            )

    def _spooled(self, event: events.ChunkSpooled | events.ChunkNotSpooled) -> None:
        execution = self._live(event.attempt_id)
        if execution is not None:
            problem = event.problem if isinstance(event, events.ChunkNotSpooled) else ""
            self.job.out.extend(
                self.coordinators.spooled(execution, event.operator_id, event.sequence, problem)
            )

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
