"""What happens to tasks: reports are applied, tasks are cancelled, tasks in lost slots are ended.

Every change of a task's state goes through here, so that the slot of a sharing group is freed
exactly when the last of its tasks has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from firesteel.common.ids import AttemptId, TaskExecutorId
from firesteel.common.states import ExecutionState
from firesteel.errors import ErrorInfo
from jobmaster.core.commands import CancelTasks, Command, Log
from jobmaster.core.events import TaskUpdate
from jobmaster.core.execution_graph import Execution, ExecutionGraph
from jobmaster.core.execution_graph.vertex import DEPLOYED
from jobmaster.core.slots.pool import SlotPool
from jobmaster.core.slots.slot import Slot

_S = ExecutionState
# How far a deployed task is; reports that do not lead forward are late or doubled.
_PROGRESS = {_S.DEPLOYING: 0, _S.INITIALIZING: 1, _S.RUNNING: 2, _S.FINISHED: 3}


class Tasks:
    def __init__(self, graph: ExecutionGraph, pool: SlotPool, out: list[Command]) -> None:
        self._graph = graph
        self._pool = pool
        self._out = out  # the core's list of commands, emptied by it

    def update(
        self, execution: Execution, update: TaskUpdate, now: float, now_ms: int
    ) -> ErrorInfo | None:
        """Applies a report about a live execution; returns the error if the task has failed
        thereby.
        """
        state, old = update.state, execution.state
        if old not in DEPLOYED:
            self._log(
                "report about a task that was not deployed dropped", execution, state=state.name
            )
            return None
        match state:
            case _S.INITIALIZING | _S.RUNNING | _S.FINISHED:
                if old is _S.CANCELING:
                    if state is _S.FINISHED:
                        self._end(execution, state, now, now_ms)
                elif _PROGRESS[state] > _PROGRESS[old]:
                    if state is _S.FINISHED:
                        self._end(execution, state, now, now_ms)
                    else:
                        execution.transition(state, now_ms)
            case _S.CANCELED:
                if old is _S.CANCELING:
                    self._end(execution, state, now, now_ms)
                else:
                    summary = (
                        "the task was cancelled by its TaskExecutor, though nobody had asked for it"
                    )
                    return self._failed(
                        execution, ErrorInfo(summary=summary, timestamp_ms=now_ms), now, now_ms
                    )
            case _S.FAILED:
                error = update.error or ErrorInfo(
                    summary="the task failed and gave no reason", timestamp_ms=now_ms
                )
                return self._failed(execution, error, now, now_ms)
            case _S.CREATED | _S.SCHEDULED | _S.DEPLOYING | _S.CANCELING | _S.RECONCILING:
                pass  # nothing that we do not know
        return None

    def deployed_in(self, slots: Iterable[Slot]) -> list[Execution]:
        """Executions that run in these slots, as far as we know."""
        return [
            vertex.current
            for slot in slots
            if slot.last_group is not None
            for vertex in self._graph.vertices_in(slot.last_group)
            if vertex.current.slot is slot and vertex.current.state in DEPLOYED
        ]

    def lost(
        self, executions: Sequence[Execution], error: ErrorInfo, now: float, now_ms: int
    ) -> list[Execution]:
        """These are dead: FAILED, or CANCELED where that was wanted anyway. Returns the failed
        ones.
        """
        failed = []
        for execution in executions:
            if execution.state is _S.CANCELING:
                self._end(execution, _S.CANCELED, now, now_ms)
            else:
                self._failed(execution, error, now, now_ms)
                failed.append(execution)
        return failed

    def cancel_all(self, now: float, now_ms: int) -> None:
        """Every task that lives: CANCELED where nothing runs yet, else CANCELING, with one command
        per TaskExecutor.
        """
        batches: dict[TaskExecutorId, list[AttemptId]] = {}
        for execution in self._graph.executions():
            match execution.state:
                case _S.CREATED | _S.SCHEDULED | _S.RECONCILING:
                    self._end(execution, _S.CANCELED, now, now_ms)
                case _S.DEPLOYING | _S.INITIALIZING | _S.RUNNING:
                    execution.transition(_S.CANCELING, now_ms)
                    assert execution.slot is not None
                    batches.setdefault(execution.slot.task_executor_id, []).append(
                        execution.attempt_id
                    )
                case _S.CANCELING | _S.CANCELED | _S.FINISHED | _S.FAILED:
                    pass
        for task_executor_id, attempt_ids in batches.items():
            self._out.append(
                CancelTasks(task_executor_id=task_executor_id, attempt_ids=tuple(attempt_ids))
            )

    def abandon(self, now: float, now_ms: int) -> None:
        """This master gives up; the TaskExecutors end what they have when it says goodbye."""
        for execution in self._graph.executions():
            if execution.terminal:
                continue
            if execution.state in DEPLOYED and execution.state is not _S.CANCELING:
                execution.transition(_S.CANCELING, now_ms)
            self._end(execution, _S.CANCELED, now, now_ms)

    def cancel_unwanted(
        self, task_executor_id: TaskExecutorId, tasks: Iterable[TaskUpdate]
    ) -> None:
        """A TaskExecutor came back with these: what shall not run (any more) is cancelled, once
        again if need be.

        A cancelled task that has already ended is reported once more. So those that failed are
        cancelled too: their report either is on its way, with its reason, and comes first, or was
        lost.
        """
        unwanted = []
        for task in tasks:
            execution = self._graph.attempts.get(task.attempt_id)
            alive = execution is not None and not execution.terminal
            if task.state is _S.FAILED:
                ask = alive
            else:
                ask = not task.state.terminal and (
                    execution is None or not alive or execution.state is _S.CANCELING
                )
            if ask:
                unwanted.append(task.attempt_id)
        if unwanted:
            self._out.append(
                CancelTasks(task_executor_id=task_executor_id, attempt_ids=tuple(unwanted))
            )

    def _failed(self, execution: Execution, error: ErrorInfo, now: float, now_ms: int) -> ErrorInfo:
        slot = execution.slot
        place = (
            f"{slot.host}, TaskExecutor {slot.task_executor_id}, slot {slot.slot_index}"
            if slot is not None
            else ""
        )
        error = replace(
            error,
            task_name=error.task_name or execution.name,
            location=error.location or place,
            timestamp_ms=error.timestamp_ms or now_ms,
        )
        execution.error = error
        self._end(execution, _S.FAILED, now, now_ms)
        self._log("task failed", execution, cause=error.summary)
        return error

    def _end(self, execution: Execution, state: ExecutionState, now: float, now_ms: int) -> None:
        was_scheduled = execution.state is not _S.CREATED
        execution.transition(state, now_ms)
        if was_scheduled:
            group = execution.vertex.group
            assert group is not None
            group.running -= 1
            if group.running == 0:
                self._pool.release(group, now)

    def _log(self, text: str, execution: Execution, **fields: str) -> None:
        self._out.append(
            Log(level="warning", text=text, fields={**execution_fields(execution), **fields})
        )


def execution_fields(execution: Execution) -> dict[str, str | int]:
    """What a log line about an execution carries."""
    return {
        "vertex": execution.vertex.job_vertex.vertex.name,
        "subtask": execution.vertex.subtask,
        "attempt": execution.attempt,
    }
