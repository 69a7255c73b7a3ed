"""The tasks in this process, by attempt, and the reports of their metrics. Thread-safe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from firesteel.common.logs import get_logger
from firesteel.common.states import ExecutionState
from firesteel.common.task_metrics import TaskMetrics
from taskexecutor.executor import convert
from taskexecutor.executor.executor_link import ExecutorLink
from taskexecutor.executor.task import MetricSample, StreamTask


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
        running = self.find(attempt_id)
        return None if running is None else running.task

    def find(self, attempt_id: str) -> RunningTask | None:
        with self._lock:
            return self._tasks.get(attempt_id)

    def threads(self) -> list[threading.Thread]:
        with self._lock:
            return [running.thread for running in self._tasks.values()]

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


log = get_logger(__name__)

SLOT_INTERVAL_S = 10.0


class MetricsReporter:
    """Reports the metrics of the tasks and of the slot to the TaskExecutor, in a dedicated thread:
    every `interval_s` while there are tasks, every SLOT_INTERVAL_S otherwise, and on request."""

    def __init__(
        self,
        *,
        link: ExecutorLink,
        tasks: RunningTasks,
        slot_samples: Callable[[], list[MetricSample]],
        gc_ms: Callable[[], float],
        interval_s: float,
    ) -> None:
        self._link = link
        self._tasks = tasks
        self._slot_samples = slot_samples
        self._gc_ms = gc_ms
        self._interval_s = interval_s
        self._wake = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def wake(self) -> None:
        """Requests a report now."""
        self._wake.set()

    def _run(self) -> None:
        slot: list[MetricSample] = []
        slot_due_s = 0.0
        while True:
            self._wake.clear()  # before reading the tasks: a request refers to what follows
            tasks = self._tasks.alive()
            if time.monotonic() >= slot_due_s:
                slot = self._slot_samples()
                slot_due_s = time.monotonic() + SLOT_INTERVAL_S
            metrics: list[TaskMetrics] = []
            samples = list(slot)
            gc_ms = self._gc_ms() if tasks else 0.0
            for task in tasks:
                try:
                    task.collected(gc_ms)
                    metrics.append(task.metrics())
                    samples.extend(task.samples())
                except Exception:
                    log.exception("the metrics of a task could not be read")
            try:
                self._link.send(convert.metrics_report(metrics, samples))
            except Exception:
                log.exception("metrics could not be reported")
            self._wake.wait(self._interval_s if tasks else SLOT_INTERVAL_S)
