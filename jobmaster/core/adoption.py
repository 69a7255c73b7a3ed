"""Adoption: a JobMaster takes over the tasks that an earlier one has left running (spec 003, "High
Availability"; spec 002, RECONCILING).

    TaskExecutors connect ──▶ their tasks and slots are known ──▶ each task is asked what it holds
    ──▶ all have answered, or time is up ──▶ the job is RUNNING; what was not found restarts

A task's answer comes behind all messages of earlier JobMasters, so nothing is on its way to it any
more. Until all have answered, no split is assigned and no checkpoint begins:

* A split that a task holds is that task's. One that was assigned and never arrived is nobody's, and
  is assigned again. So each split has one owner (invariant 17).
* Of rows that are collected, the Dispatcher has told how many chunks of each attempt are kept.
  These are not taken again. A sink may wait for an acknowledgement, and answers only after it: so
  others are taken as soon as it is known which attempts there are.
* A checkpoint that is stored is complete, whether its tasks were notified or not: they are now. Any
  other one that a task takes part in is given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from firesteel.common.ids import AllocationId, AttemptId, TaskExecutorId
from firesteel.common.job_graph import ResultType
from firesteel.common.states import ExecutionState, TaskEvent
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.checkpoints.checkpoint import Kind
from jobmaster.core.checkpoints.coordinator import Request
from jobmaster.core.execution_graph import Execution, ExecutionVertex
from jobmaster.core.execution_graph.vertex import DEPLOYED
from jobmaster.core.job import Job
from jobmaster.core.slots.slot import SlotOffer

_S = ExecutionState
# A process that has not reported yet will.
_ADOPTED = {
    _S.DEPLOYING: TaskEvent.REPORTED_INITIALIZING,
    _S.INITIALIZING: TaskEvent.REPORTED_INITIALIZING,
    _S.RUNNING: TaskEvent.REPORTED_RUNNING,
    _S.FINISHED: TaskEvent.REPORTED_FINISHED,
    _S.CANCELED: TaskEvent.REPORTED_CANCELED,
}


@dataclass(frozen=True, slots=True)
class Reconciled:
    failed: list[Execution]  # they cannot go on, though some of them still run
    error: ErrorInfo | None  # why, of the first of them
    found: bool  # whether any task runs, or has failed of its own


def can_adopt(job: Job) -> bool:
    """Whether what the tasks tell, and what is stored, is all that there is to know."""
    # A source of which it is not known what it had found may find something else.
    return _streams(job) and job.coordinators.ready


def adoptable(job: Job) -> bool:
    """The same without a checkpoint, whenever the JobMaster dies while the tasks run."""
    return _streams(job) and not job.divides


def _streams(job: Job) -> bool:
    graph = job.graph.job_graph
    blocking = any(edge.result_type is ResultType.BLOCKING for edge in graph.edges)
    return not (job.invalid or graph.batch or blocking)


class Adoption:
    """What has been heard, and what is waited for."""

    def __init__(self, *, deadline: float, timeout_s: float) -> None:
        self.deadline = deadline
        self._timeout_s = timeout_s
        self._holders: set[TaskExecutorId] | None = None  # of slots; None: not known
        self._connected: set[TaskExecutorId] = set()
        self._adopted: set[AttemptId] = set()
        self._held: dict[AttemptId, events.TaskHeld] = {}
        self._error: ErrorInfo | None = None  # of the first task that failed meanwhile
        self.collecting = False  # chunks of rows are taken

    # ---- what is heard

    def holders_known(self, task_executor_ids: Iterable[TaskExecutorId]) -> None:
        self._holders = set(task_executor_ids)

    def connected(self, job: Job, event: events.TaskExecutorConnected, now: float) -> None:
        """Takes over the slots and tasks of this TaskExecutor."""
        self._connected.add(event.task_executor_id)
        offers = {offer.allocation_id: offer for offer in event.slots}
        for vertex, update in _newest(job, event).items():
            self._adopt(job, event, vertex, update, offers, now)
        self.ask(job, event.task_executor_id)

    def ask(self, job: Job, task_executor_id: TaskExecutorId) -> None:
        """The tasks of this TaskExecutor that have not answered."""
        asked = tuple(
            execution.attempt_id
            for execution in job.graph.executions()
            if execution.state in DEPLOYED
            and execution.slot is not None
            and execution.slot.task_executor_id == task_executor_id
            and execution.attempt_id not in self._held
        )
        if asked:
            job.out.append(
                commands.AdoptTasks(task_executor_id=task_executor_id, attempt_ids=asked)
            )

    def held(self, event: events.TaskHeld) -> None:
        self._held[event.attempt_id] = event

    def lost(self, task_executor_id: TaskExecutorId) -> None:
        if self._holders is not None:
            self._holders.discard(task_executor_id)

    def failed(self, error: ErrorInfo) -> None:
        self._error = self._error or error

    # ---- what follows

    def all_known(self, job: Job, now: float) -> bool:
        """Whether it is known which of the job's tasks run, or no longer waited for."""
        return now >= self.deadline or self._all_connected(job)

    def over(self, job: Job, now: float) -> bool:
        if now >= self.deadline:
            return True
        if not self._all_connected(job):
            return False
        count = job.graph.count
        if len(self._held) < sum(map(count, DEPLOYED)):
            return False  # asked after every answer: the tasks are looked at once all have come
        return all(
            execution.attempt_id in self._held
            for execution in job.graph.executions()
            if execution.state in DEPLOYED
        )

    def let_sinks_go_on(self, job: Job) -> None:
        """Once the attempts are known, those that collect rows may send them."""
        if not self.collecting and self._all_connected(job):
            self._collect(job)

    def waiting_for(self, job: Job, now: float) -> str:
        known = sum(e.terminal or e.attempt_id in self._held for e in job.graph.executions())
        return (
            f"its tasks, which go on, to report to its new JobMaster: {known} of"
            f" {len(job.graph.attempts)} have (in at most {max(0.0, self.deadline - now):.0f} s)"
        )

    def conclude(self, job: Job, now: float) -> Reconciled:
        """Goes on with what was found. The job is RUNNING."""
        self._finish_unheard(job, now)
        self._collect(job)
        unheard = [e for e in job.graph.executions() if e.state is _S.RECONCILING]
        error = job.error(
            f"no TaskExecutor has the task any more, or none was heard of within"
            f" {self._timeout_s:g} s after the job's JobMaster was replaced",
            now,
        )
        job.tasks.lost(unheard, error, now, job.now_ms(now))
        failed = [
            execution
            for execution in job.graph.executions()
            if execution.terminal and execution.state is not _S.FINISHED
        ]
        found = self._error is not None
        for execution in job.graph.executions():
            if execution.state not in DEPLOYED:
                continue
            found = True
            if problem := self._take_over(job, execution):
                job.log("warning", "a task cannot be adopted", task=execution.name, cause=problem)
                error = job.error(f"the task could not be adopted: {problem}", now)
                failed.append(execution)
        return Reconciled(failed, (self._error or error) if failed else None, found)

    def notify(self, job: Job, now: float) -> None:
        """Tells the tasks what has become of checkpoints, and asks for what is unanswered."""
        live = [e for e in job.graph.executions() if e.state in DEPLOYED]
        heard = {e.attempt_id: self._held[e.attempt_id] for e in live if e.attempt_id in self._held}
        open_checkpoints = {attempt_id: of.open_checkpoints for attempt_id, of in heard.items()}
        stops_with = {of.stops_with for of in heard.values() if of.stops_with is not None}
        stops = next((of.stops for of in heard.values() if of.stops), None)
        asked = None
        stopped = stops is not None and job.checkpoints.latest_is_at(stops.path)
        if stops is not None and not stopped:
            job.log("info", "the job is being stopped with a savepoint, as before")
            # A directory of its own: the earlier master may still delete the other one.
            path = f"{stops.path.rpartition('-')[0]}-{job.ids.next()[:12]}"
            asked = Request(
                request="", kind=Kind.SAVEPOINT, path=path, stops=True, drains=stops.drains
            )
        job.out += job.checkpoints.adopted(
            open_checkpoints, stops_with, now, asked=asked, stopped=stopped
        )
        for execution in live:
            held = heard.get(execution.attempt_id)
            if held is not None and held.data_ended:
                job.out += job.checkpoints.data_ended(execution, now)
        job.out += job.coordinators.reconnected(live)

    # ---- inside

    def _all_connected(self, job: Job) -> bool:
        return job.graph.count(_S.RECONCILING) == 0 or (
            self._holders is not None and self._holders <= self._connected
        )

    def _collect(self, job: Job) -> None:
        if self.collecting:
            return
        self.collecting = True
        job.replace_rows_of_others()
        job.out += job.coordinators.resume_collecting(
            e for e in job.graph.executions() if e.state in DEPLOYED
        )

    def _adopt(
        self,
        job: Job,
        event: events.TaskExecutorConnected,
        vertex: ExecutionVertex,
        update: events.TaskUpdate,
        offers: dict[AllocationId, SlotOffer],
        now: float,
    ) -> None:
        place, current = event.places[update.attempt_id], vertex.current
        if update.attempt_id in self._adopted:
            return  # the TaskExecutor has connected again
        if current.attempt_id in self._adopted and place.attempt < current.attempt:
            return  # an earlier attempt than another TaskExecutor has
        if current.state is not _S.RECONCILING and not current.terminal:
            superseded = job.error("a later attempt of the task runs elsewhere", now)
            assert current.slot is not None
            job.out.append(
                commands.CancelTasks(
                    task_executor_id=current.slot.task_executor_id,
                    attempt_ids=(current.attempt_id,),
                )
            )
            job.tasks.lost([current], superseded, now, job.now_ms(now))
        self._adopted.add(update.attempt_id)
        execution = job.graph.adopt(vertex, update.attempt_id, place.attempt, job.now_ms(now))
        offer = offers.get(place.allocation_id)
        if not update.state.terminal and offer is not None:
            job.tasks.hold(execution, event, offer, now)
        change = _ADOPTED.get(update.state)
        live_without_slot = not update.state.terminal and execution.slot is None
        if change is not None and not live_without_slot:
            execution.apply(change, job.now_ms(now))

    def _finish_unheard(self, job: Job, now: float) -> None:
        """Tasks that had finished in the latest checkpoint are gone because they have."""
        finished = job.checkpoints.finished_vertices(job.graph.by_id.keys())
        for vertex_id in finished:
            for vertex in job.graph.by_id[vertex_id].vertices:
                if vertex.current.state is _S.RECONCILING:
                    vertex.current.apply(TaskEvent.REPORTED_FINISHED, job.now_ms(now))
                    job.out += job.coordinators.attempt_finished(
                        vertex.current, now, job.graph.attempts
                    )

    def _finished_beside(self, job: Job, execution: Execution) -> Execution | None:
        if job.checkpoints.latest is not None:
            return None  # which has the splits that are not read
        beside = (vertex.current for vertex in execution.vertex.job_vertex.vertices)
        return next((other for other in beside if other.state is _S.FINISHED), None)

    def _take_over(self, job: Job, execution: Execution) -> str:
        """Returns why that is not possible; empty: it is done."""
        held = self._held.get(execution.attempt_id)
        if held is None:
            return f"it has not answered within {self._timeout_s:g} s"
        if held.splits and (other := self._finished_beside(job, execution)) is not None:
            return (
                f"{other.name} has finished, and without a checkpoint nobody knows which splits of"
                " the source it has read"
            )
        for operator_id, splits in held.splits.items():
            if problem := job.coordinators.adopt(execution, operator_id, splits):
                return problem
        return ""


def _newest(
    job: Job, event: events.TaskExecutorConnected
) -> dict[ExecutionVertex, events.TaskUpdate]:
    """Of each subtask that the TaskExecutor names, the latest attempt."""
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
