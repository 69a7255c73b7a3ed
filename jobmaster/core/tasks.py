"""Applies reports to tasks, cancels them, and fails them with their slots.

Every change of a task's state except scheduling and deployment goes through here, so that the slot
of a sharing group is released exactly when the last of its tasks has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from firesteel.common.ids import AttemptId, TaskExecutorId
from firesteel.common.states import ExecutionState, TaskEvent
from firesteel.errors import ErrorInfo
from jobmaster.core.commands import CancelTasks, Command, log
from jobmaster.core.events import TaskExecutorConnected, TaskUpdate
from jobmaster.core.execution_graph import Execution, ExecutionGraph, ExecutionVertex
from jobmaster.core.execution_graph.vertex import DEPLOYED
from jobmaster.core.slots.pool import SlotPool
from jobmaster.core.slots.slot import Slot, SlotOffer

_S = ExecutionState
# The progress of a deployed task; a report that makes no progress is late or a duplicate.
_PROGRESS = {_S.DEPLOYING: 0, _S.INITIALIZING: 1, _S.RUNNING: 2, _S.FINISHED: 3}
_REPORTED = {
    _S.INITIALIZING: TaskEvent.REPORTED_INITIALIZING,
    _S.RUNNING: TaskEvent.REPORTED_RUNNING,
    _S.FINISHED: TaskEvent.REPORTED_FINISHED,
}


class Tasks:
    def __init__(self, graph: ExecutionGraph, pool: SlotPool) -> None:
        self._graph = graph
        self._pool = pool

    def update(
        self, execution: Execution, update: TaskUpdate, now: float, now_ms: int
    ) -> list[Command]:
        """Applies a report about a live execution, which may fail it."""
        state, old = update.state, execution.state
        if old is _S.RECONCILING and not state.terminal:
            return []  # its slot is being lost, or its TaskExecutor is yet to connect
        if old not in DEPLOYED and old is not _S.RECONCILING:
            text = "report about a task that was not deployed"
            return [_warning(text, execution, state=state.name)]
        match state:
            case _S.INITIALIZING | _S.RUNNING | _S.FINISHED:
                # A cancelled task that reports progress has not read the cancel yet.
                on_its_way = state is _S.FINISHED if old is _S.CANCELING else True
                if on_its_way and _PROGRESS[state] > _PROGRESS.get(old, 0):
                    self._apply(execution, _REPORTED[state], now, now_ms)
            case _S.CANCELED if old is _S.CANCELING:
                self._apply(execution, TaskEvent.REPORTED_CANCELED, now, now_ms)
            case _S.CANCELED:
                summary = "its TaskExecutor cancelled the task without a request"
                error = ErrorInfo(summary=summary, timestamp_ms=now_ms)
                return self._fail(execution, error, now, now_ms)
            case _S.FAILED:
                error = update.error or ErrorInfo(
                    summary="the task failed without a reason", timestamp_ms=now_ms
                )
                return self._fail(execution, error, now, now_ms)
            case _S.CREATED | _S.SCHEDULED | _S.DEPLOYING | _S.CANCELING | _S.RECONCILING:
                pass  # no change
        return []

    def hold(
        self,
        execution: Execution,
        event: TaskExecutorConnected,
        offer: SlotOffer,
        now: float,
    ) -> None:
        """Assigns the slot to the group of an execution that an earlier master deployed in it."""
        group = execution.vertex.group
        assert group is not None
        slot = self._pool.adopt(event.task_executor_id, event.host, offer, group, now)
        if slot is not None:
            group.running += 1
            execution.slot = slot

    def deployed_in(self, slots: Iterable[Slot]) -> list[Execution]:
        """Returns executions that run in these slots, as far as is known here."""
        return [
            vertex.current
            for slot in slots
            if slot.last_group is not None
            for vertex in self._graph.vertices_in(slot.last_group)
            if vertex.current.slot is slot and vertex.current.state in DEPLOYED
        ]

    def lost(
        self, executions: Sequence[Execution], error: ErrorInfo, now: float, now_ms: int
    ) -> list[Command]:
        """Ends dead executions: CANCELED if they were being cancelled, otherwise FAILED."""
        commands: list[Command] = []
        for execution in executions:
            if execution.state is _S.CANCELING:
                self._apply(execution, TaskEvent.REPORTED_CANCELED, now, now_ms)
            else:
                commands += self._fail(execution, error, now, now_ms)
        return commands

    def cancel(self, vertices: Iterable[ExecutionVertex], now: float, now_ms: int) -> list[Command]:
        """Cancels live executions, with one command per TaskExecutor for those deployed."""
        batches: dict[TaskExecutorId, list[AttemptId]] = {}
        for vertex in vertices:
            execution = vertex.current
            if execution.terminal or execution.state is _S.CANCELING:
                continue
            deployed = execution.state in DEPLOYED
            self._apply(execution, TaskEvent.CANCEL, now, now_ms)
            if deployed:
                assert execution.slot is not None, str(execution)
                batches.setdefault(execution.slot.task_executor_id, []).append(execution.attempt_id)
        return [
            CancelTasks(task_executor_id=task_executor_id, attempt_ids=tuple(attempt_ids))
            for task_executor_id, attempt_ids in batches.items()
        ]

    def abandon(self, now: float, now_ms: int) -> None:
        """Ends all tasks for this master: TaskExecutors end them when they read its Goodbye."""
        for execution in self._graph.executions():
            if not execution.terminal and execution.state is not _S.CANCELING:
                self._apply(execution, TaskEvent.CANCEL, now, now_ms)
            if execution.state is _S.CANCELING:
                self._apply(execution, TaskEvent.REPORTED_CANCELED, now, now_ms)

    def cancel_unwanted(
        self, task_executor_id: TaskExecutorId, tasks: Iterable[TaskUpdate]
    ) -> list[Command]:
        """Cancels tasks that must not run, among those that a TaskExecutor has reconnected with.

        To the cancel of an ended task, a TaskExecutor answers by reporting its end again. So failed
        tasks are also cancelled: their report, with the cause, either arrives first or was lost.
        """
        unwanted = []
        for task in tasks:
            execution = self._graph.attempts.get(task.attempt_id)
            live = execution is not None and not execution.terminal
            if task.state is _S.FAILED:
                ask = live
            else:
                ask = not task.state.terminal and (
                    execution is None or not live or execution.state is _S.CANCELING
                )
            if ask:
                unwanted.append(task.attempt_id)
        if not unwanted:
            return []
        return [CancelTasks(task_executor_id=task_executor_id, attempt_ids=tuple(unwanted))]

    def _fail(
        self, execution: Execution, error: ErrorInfo, now: float, now_ms: int
    ) -> list[Command]:
        slot = execution.slot
        place = (
            f"{slot.host}, TaskExecutor {slot.task_executor_id}, slot {slot.slot_index}"
            if slot is not None
            else ""
        )
        execution.error = replace(
            error,
            task_name=error.task_name or execution.name,
            location=error.location or place,
            timestamp_ms=error.timestamp_ms or now_ms,
        )
        self._apply(execution, TaskEvent.FAIL, now, now_ms)
        return [_warning("task failed", execution, cause=error.summary)]

    def _apply(self, execution: Execution, event: TaskEvent, now: float, now_ms: int) -> None:
        was_scheduled = execution.state not in (_S.CREATED, _S.RECONCILING)
        execution.apply(event, now_ms)
        if was_scheduled and execution.terminal:
            group = execution.vertex.group
            assert group is not None
            group.running -= 1
            if group.running == 0:
                self._pool.release(group, now)


def _warning(text: str, execution: Execution, **fields: str) -> Command:
    return log(
        "warning",
        text,
        vertex=execution.vertex.job_vertex.vertex.name,
        subtask=execution.vertex.subtask,
        attempt=execution.attempt,
        **fields,
    )
