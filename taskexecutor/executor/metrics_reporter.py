"""Reports the metrics of the tasks and of the slot to the TaskExecutor, in a dedicated thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from taskexecutor.executor import convert
from taskexecutor.executor.executor_link import ExecutorLink
from taskexecutor.executor.running_tasks import RunningTasks
from taskexecutor.executor.task import MetricSample, TaskMetrics

log = structlog.get_logger(__name__)

SLOT_INTERVAL_S = 10.0


class MetricsReporter:
    """Reports every `interval_s` while there are tasks, and every SLOT_INTERVAL_S otherwise."""

    def __init__(
        self,
        *,
        link: ExecutorLink,
        tasks: RunningTasks,
        slot_samples: Callable[[], list[MetricSample]],
        interval_s: float,
    ) -> None:
        self._link = link
        self._tasks = tasks
        self._slot_samples = slot_samples
        self._interval_s = interval_s
        self._wake = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def wake(self) -> None:
        """Notifies the thread that there are tasks."""
        self._wake.set()

    def _run(self) -> None:
        slot: list[MetricSample] = []
        slot_due_s = 0.0
        while True:
            self._wake.clear()  # before reading the tasks: a task that starts now wakes this thread
            tasks = self._tasks.alive()
            if time.monotonic() >= slot_due_s:
                slot = self._slot_samples()
                slot_due_s = time.monotonic() + SLOT_INTERVAL_S
            metrics: list[TaskMetrics] = []
            samples = list(slot)
            for task in tasks:
                try:
                    metrics.append(task.metrics())
                    samples.extend(task.samples())
                except Exception:
                    log.exception("the metrics of a task could not be read")
            try:
                self._link.send(convert.metrics_report(metrics, samples))
            except Exception:
                log.exception("metrics could not be reported")
            if tasks:
                time.sleep(self._interval_s)
            else:
                self._wake.wait(SLOT_INTERVAL_S)
