"""Adoption: a JobMaster takes over the tasks that an earlier one has left running (spec 003, "High
Availability"; spec 002, RECONCILING).

            TaskExecutors connect ──▶ their tasks and slots are known ──▶ each task reports
        ──▶ all have reported, or time is up ──▶ the job is RUNNING; missing tasks restart

    A task's report follows all messages of earlier JobMasters, so none of them is still under way.
    Until all have reported, no split is assigned and no checkpoint is triggered:

    * A split that a task holds belongs to that task. A split that was assigned and never arrived
      has no owner and is assigned again. So each split has one owner (invariant 17).
    * The Dispatcher has sent the number of stored chunks of collected rows per attempt. Those
      chunks are not accepted again. A sink may wait for an acknowledgement, and reports only after
      it: so other chunks are accepted as soon as the attempts are known.
    * Without checkpoints, the earlier master has listed the tasks that have started, with the
      splits of those that have finished. TaskExecutors report the same of later tasks; all others
      have not started.
    * A stored checkpoint is complete, whether its tasks were notified or not: they are notified
      now. Any other checkpoint that a task takes part in is abandoned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from firesteel.common.ids import AllocationId, AttemptId, ExecutorId, TaskExecutorId
from firesteel.common.job_graph import ResultPartitionId
from firesteel.common.resources import UNKNOWN
from firesteel.common.states import ExecutionState, TaskEvent
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.commands import log
from jobmaster.core.execution_graph import Execution, ExecutionVertex
from jobmaster.core.execution_graph.vertex import DEPLOYED
from jobmaster.core.job_context import JobContext, TasksFailed
from jobmaster.core.slots.slot import Slot, SlotOffer

_S = ExecutionState
# A process that has not reported yet will do so.
_ADOPTED = {
    _S.DEPLOYING: TaskEvent.REPORTED_INITIALIZING,
    _S.INITIALIZING: TaskEvent.REPORTED_INITIALIZING,
    _S.RUNNING: TaskEvent.REPORTED_RUNNING,
    _S.FINISHED: TaskEvent.REPORTED_FINISHED,
    _S.CANCELED: TaskEvent.REPORTED_CANCELED,
}


@dataclass(frozen=True, slots=True)
class Reconciled:
    commands: list[commands.Command]
    failure: TasksFailed | None  # of tasks that cannot continue, though some of them still run
    begun: bool  # whether any task runs or has failed by itself


def can_adopt(job: JobContext) -> bool:
    """Whether the tasks' reports and the stored data are sufficient to adopt the tasks."""
    # A source whose listing is not stored may list different paths or splits now.
    return adoptable(job) and job.coordinators.ready


def adoptable(job: JobContext) -> bool:
    """Whether a new JobMaster could adopt the tasks, if this one died while they run."""
    return not job.invalid and (job.lists_tasks or not job.has_blocking_results)


class Adoption:
    """The reports of TaskExecutors and tasks so far, and those that are still awaited."""

    def __init__(self, *, deadline: float, timeout_s: float) -> None:
        self.deadline = deadline
        self._timeout_s = timeout_s
        self._holders: set[TaskExecutorId] | None = None  # with slots or results; None: not known
        self._connected: set[TaskExecutorId] = set()
        self._begun: set[AttemptId] = set()  # as far as known
        self._adopted: set[AttemptId] = set()  # of these, those whose place is known
        self._held: dict[AttemptId, events.TaskHeld] = {}
        self._error: ErrorInfo | None = None  # of the first task that failed in the meantime
        self._lost: list[ResultPartitionId] = []  # no longer readable
        self.collecting = False  # chunks of rows are accepted

    # ---- what is heard

    def holders_known(self, task_executor_ids: Iterable[TaskExecutorId]) -> None:
        self._holders = set(task_executor_ids)

    def take_listed(
        self, job: JobContext, tasks: Iterable[events.ListedTask], now: float
    ) -> list[commands.Command]:
        """Takes over the earlier master's list of tasks that had started."""
        taken: list[commands.Command] = []
        for task in tasks:
            vertex = job.graph.subtask(task.vertex_id, task.subtask)
            if vertex is None:
                continue
            execution = job.graph.adopt(vertex, task.attempt_id, task.attempt, job.now_ms(now))
            self._begun.add(task.attempt_id)
            if task.finished is not None:
                self._adopted.add(task.attempt_id)
                taken += self._finished(job, execution, task.finished, now)
        return taken

    def connected(
        self, job: JobContext, event: events.TaskExecutorConnected, now: float
    ) -> list[commands.Command]:
        """Takes over the slots and tasks of this TaskExecutor."""
        self._connected.add(event.task_executor_id)
        offers = {offer.allocation_id: offer for offer in event.slots}
        adopted: list[commands.Command] = []
        for vertex, update in _newest(job, event).items():
            adopted += self._adopt(job, event, vertex, update, offers, now)
        return [*adopted, *self.ask(job, event.task_executor_id)]

    def ask(self, job: JobContext, task_executor_id: TaskExecutorId) -> list[commands.Command]:
        """Requests reports from the tasks of this TaskExecutor that have not reported."""
        asked = tuple(
            execution.attempt_id
            for execution in job.graph.executions()
            if execution.state in DEPLOYED
            and execution.slot is not None
            and execution.slot.task_executor_id == task_executor_id
            and not self._has_answered(job, execution)
        )
        if not asked:
            return []
        return [commands.AdoptTasks(task_executor_id=task_executor_id, attempt_ids=asked)]

    def held(self, event: events.TaskHeld) -> None:
        self._held[event.attempt_id] = event

    def lost(self, task_executor_id: TaskExecutorId) -> None:
        if self._holders is not None:
            self._holders.discard(task_executor_id)

    def failed(self, failure: TasksFailed) -> None:
        self._error = self._error or failure.error
        self._lost += failure.lost

    # ---- what follows

    def all_known(self, job: JobContext, now: float) -> bool:
        """Whether all running tasks of the job are known, or no longer awaited."""
        return now >= self.deadline or self._all_connected(job)

    def over(self, job: JobContext, now: float) -> bool:
        if now >= self.deadline:
            return True
        if not self._all_connected(job):
            return False
        count = job.graph.count
        if not job.lists_tasks and len(self._held) < sum(map(count, DEPLOYED)):
            return False  # checked after every report: tasks are inspected once all are there
        return all(
            self._has_answered(job, execution)
            for execution in job.graph.executions()
            if execution.state in DEPLOYED
        )

    def resume_sinks(self, job: JobContext) -> list[commands.Command]:
        """Lets the tasks that collect rows send them, once the attempts are known."""
        return self._collect(job) if self._all_connected(job) else []

    def waiting_for(self, job: JobContext, now: float) -> str:
        known = sum(e.terminal or e.attempt_id in self._held for e in job.graph.executions())
        return (
            f"its running tasks to report to its new JobMaster: {known} of"
            f" {len(job.graph.attempts)} have (in at most {max(0.0, self.deadline - now):.0f} s)"
        )

    def conclude(self, job: JobContext, now: float) -> Reconciled:
        """Ends the adoption with the tasks that reported. The job is RUNNING."""
        concluded = self._finish_unheard(job, now)
        concluded += self._collect(job)
        unheard = [e for e in job.graph.executions() if e.state is _S.RECONCILING]
        if job.lists_tasks:
            for execution in unheard:
                if execution.attempt_id not in self._begun:
                    execution.apply(TaskEvent.NOT_BEGUN, job.now_ms(now))
            unheard = [e for e in unheard if e.attempt_id in self._begun]
        error = job.error(
            f"no TaskExecutor runs the task, or none reported within"
            f" {self._timeout_s:g} s after the job's JobMaster was replaced",
            now,
        )
        concluded += job.tasks.lost(unheard, error, now, job.now_ms(now))
        failed = [
            execution
            for execution in job.graph.executions()
            if execution.terminal and execution.state is not _S.FINISHED
        ]
        begun = self._error is not None
        for execution in job.graph.executions():
            if execution.state not in DEPLOYED:
                continue
            begun = True
            if problem := self._take_over(job, execution):
                concluded.append(_not_adopted(execution, problem))
                error = job.error(f"the task could not be adopted: {problem}", now)
                failed.append(execution)
        if job.lists_tasks:
            torn = [vertex.current for vertex in job.torn()]
            failed += [execution for execution in torn if execution not in failed]
            self._lost += self._kept_nowhere(job)
        failure = TasksFailed(failed, self._error or error, self._lost)
        return Reconciled(concluded, failure if failed or self._lost else None, begun)

    def notify(self, job: JobContext, now: float) -> list[commands.Command]:
        """Notifies the tasks of the outcome of checkpoints, and resends unanswered requests."""
        live = [e for e in job.graph.executions() if e.state in DEPLOYED]
        heard = {e.attempt_id: self._held[e.attempt_id] for e in live if e.attempt_id in self._held}
        open_checkpoints = {attempt_id: of.open_checkpoints for attempt_id, of in heard.items()}
        stops_with = {of.stops_with for of in heard.values() if of.stops_with is not None}
        stops = next((of.stops for of in heard.values() if of.stops), None)
        asked = None
        stopped = stops is not None and job.completed.latest_is_at(stops.savepoint_path)
        notices: list[commands.Command] = []
        if stops is not None and not stopped:
            notices.append(log("info", "the job is being stopped with a savepoint, as before"))
            # A different directory: the earlier master may still delete the other one.
            path = f"{stops.savepoint_path.rpartition('-')[0]}-{job.ids.next()[:12]}"
            asked = events.CheckpointRequested(
                request="", savepoint_path=path, stops=True, drains=stops.drains
            )
        notices += job.checkpoints.adopted(
            open_checkpoints, stops_with, now, asked=asked, stopped=stopped
        )
        for execution in live:
            held = heard.get(execution.attempt_id)
            if held is not None and held.data_ended:
                notices += job.checkpoints.data_ended(execution, now)
        return [*notices, *job.coordinators.reconnected(live)]

    # ---- inside

    def _all_connected(self, job: JobContext) -> bool:
        # A finished task may have been restarted: only its TaskExecutor knows.
        unsure = job.lists_tasks and job.graph.count(_S.FINISHED) > 0
        none_missing = job.graph.count(_S.RECONCILING) == 0 and not unsure
        return none_missing or (self._holders is not None and self._holders <= self._connected)

    def _has_answered(self, job: JobContext, execution: Execution) -> bool:
        """Whether the task has reported, or has nothing to report."""
        if execution.attempt_id in self._held:
            return True
        return not (job.checkpoints.enabled or job.coordinators.reads_splits(execution))

    def _kept_nowhere(self, job: JobContext) -> list[ResultPartitionId]:
        """Returns results of finished tasks on TaskExecutors that have not connected."""
        slots = (e.slot for e in job.graph.executions() if e.state is _S.FINISHED)
        gone = {slot.task_executor_id for slot in slots if slot is not None} - self._connected
        return [
            each for task_executor_id in gone for each in job.partitions.kept_by(task_executor_id)
        ]

    def _collect(self, job: JobContext) -> list[commands.Command]:
        if self.collecting:
            return []
        self.collecting = True
        live = (e for e in job.graph.executions() if e.state in DEPLOYED)
        return [*job.replace_rows_of_others(), *job.coordinators.resume_collecting(live)]

    def _adopt(
        self,
        job: JobContext,
        event: events.TaskExecutorConnected,
        vertex: ExecutionVertex,
        update: events.TaskUpdate,
        offers: dict[AllocationId, SlotOffer],
        now: float,
    ) -> list[commands.Command]:
        place, current = event.places[update.attempt_id], vertex.current
        if update.attempt_id in self._adopted:
            return []  # the TaskExecutor has reconnected
        if current.attempt_id in self._begun and place.attempt < current.attempt:
            return []  # another TaskExecutor has a later attempt
        adopted: list[commands.Command] = []
        if current.state is not _S.RECONCILING and not current.terminal:
            superseded = job.error("a later attempt of the task runs elsewhere", now)
            assert current.slot is not None
            adopted.append(
                commands.CancelTasks(
                    task_executor_id=current.slot.task_executor_id,
                    attempt_ids=(current.attempt_id,),
                )
            )
            adopted += job.tasks.lost([current], superseded, now, job.now_ms(now))
        if job.lists_tasks and current.state is _S.FINISHED:
            job.coordinators.subtask_starts_over(current)  # its splits are read again
        self._begun.add(update.attempt_id)
        self._adopted.add(update.attempt_id)
        execution = current
        if current.attempt_id != update.attempt_id:
            execution = job.graph.adopt(vertex, update.attempt_id, place.attempt, job.now_ms(now))
        offer = offers.get(place.allocation_id)
        if job.lists_tasks and update.state is _S.FINISHED:
            slot_index = offer.slot_index if offer is not None else -1
            splits = {o: [split.place for split in of] for o, of in place.splits.items()}
            finished = events.FinishedTask(event.task_executor_id, event.host, slot_index, splits)
            return [*adopted, *self._finished(job, execution, finished, now)]
        if not update.state.terminal and offer is not None:
            job.tasks.hold(execution, event, offer, now)
        change = _ADOPTED.get(update.state)
        live_without_slot = not update.state.terminal and execution.slot is None
        if change is not None and not live_without_slot:
            execution.apply(change, job.now_ms(now))
        return adopted

    def _finished(
        self, job: JobContext, execution: Execution, finished: events.FinishedTask, now: float
    ) -> list[commands.Command]:
        """Records that it need not run again, unless its splits are unknown to the coordinator."""
        execution.slot = _former_slot(finished)
        if problem := job.coordinators.adopt_finished(execution, finished.splits):
            return [_not_adopted(execution, problem)]
        execution.apply(TaskEvent.REPORTED_FINISHED, job.now_ms(now))
        return []

    def _finish_unheard(self, job: JobContext, now: float) -> list[commands.Command]:
        """Marks tasks as finished that had finished in the latest checkpoint and are gone."""
        answers: list[commands.Command] = []
        finished = job.completed.finished_vertices(job.graph.by_id.keys())
        for vertex_id in finished:
            for vertex in job.graph.by_id[vertex_id].vertices:
                if vertex.current.state is _S.RECONCILING:
                    vertex.current.apply(TaskEvent.REPORTED_FINISHED, job.now_ms(now))
                    answers += job.coordinators.attempt_finished(
                        vertex.current, now, job.graph.attempts
                    )
        return answers

    def _take_over(self, job: JobContext, execution: Execution) -> str:
        """Takes the task over. Returns why it cannot; empty if it can."""
        held = self._held.get(execution.attempt_id)
        if held is None:
            if self._has_answered(job, execution):
                return ""
            return f"it has not answered within {self._timeout_s:g} s"
        for operator_id, splits in held.splits.items():
            if problem := job.coordinators.adopt(execution, operator_id, splits):
                return problem
        return ""


def _not_adopted(execution: Execution, problem: str) -> commands.Command:
    return log("warning", "a task cannot be adopted", task=execution.name, cause=problem)


def _former_slot(finished: events.FinishedTask) -> Slot:
    """Returns where a task ran; only its results still belong to the job."""
    return Slot(
        allocation_id=AllocationId(""),
        slot_index=finished.slot_index,
        profile=UNKNOWN,
        executor_id=ExecutorId(""),
        data_address="",
        task_executor_id=finished.task_executor_id,
        host=finished.host,
        requirement=UNKNOWN,
    )


def _newest(
    job: JobContext, event: events.TaskExecutorConnected
) -> dict[ExecutionVertex, events.TaskUpdate]:
    """Returns the latest attempt of each subtask that the TaskExecutor reports."""
    newest: dict[ExecutionVertex, events.TaskUpdate] = {}
    for update in event.tasks:
        place = event.places.get(update.attempt_id)
        vertex = None if place is None else job.graph.subtask(place.vertex_id, place.subtask)
        if place is None or vertex is None:
            continue
        known = newest.get(vertex)
        if known is None or event.places[known.attempt_id].attempt < place.attempt:
            newest[vertex] = update
    return newest
