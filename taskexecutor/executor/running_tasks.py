"""The tasks in this process, by attempt. Thread-safe."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from firesteel.common.states import ExecutionState
from taskexecutor.executor.task import StreamTask


@dataclass(slots=True)
class RunningTask:
    task: StreamTask
    thread: threading.Thread
    ended: bool = False  # its terminal state has been reported


class RunningTasks:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, RunningTask] = {}

    def add(self, task: StreamTask, thread: threading.Thread) -> None:
        with self._lock:
            self._tasks[task.info.attempt_id] = RunningTask(task, thread)

    def remove(self, task: StreamTask) -> None:
        with self._lock:
            running = self._tasks.get(task.info.attempt_id)
            if running is not None and running.task is task:
                del self._tasks[task.info.attempt_id]

    def get(self, attempt_id: str) -> StreamTask | None:
        with self._lock:
            running = self._tasks.get(attempt_id)
        return None if running is None else running.task

    def may_report(self, attempt_id: str, state: ExecutionState) -> bool:
        """Returns whether the state may be reported: nothing follows an attempt's terminal
        state.
        """
        with self._lock:
            running = self._tasks.get(attempt_id)
            if running is None:
                return True
            if running.ended:
                return False
            running.ended = state.terminal
            return True

    def alive(self) -> list[StreamTask]:
        """Returns the tasks that have not reported a terminal state."""
        with self._lock:
            return [running.task for running in self._tasks.values() if not running.ended]

    def clear(self) -> list[RunningTask]:
        """Removes and returns all tasks."""
        with self._lock:
            left = list(self._tasks.values())
            self._tasks.clear()
        return left
