"""A task without inputs: its first operator is a source, which is polled (spec 001, life of source
tasks).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from firesteel.elements import CheckpointBarrier
from firesteel.operator import SourceOperator
from taskexecutor.executor.task.chain import OperatorChain
from taskexecutor.executor.task.checkpoints.task_checkpoints import TaskCheckpoints
from taskexecutor.executor.task.loop import Step

# The least time between two marks of idleness: each makes downstream operators emit their rows and
# watermarks, also those that would soon be replaced.
IDLE_S = 0.1


class _Triggered(NamedTuple):
    barrier: CheckpointBarrier
    splits: int  # number of splits to receive before the checkpoint
    stops: bool


class SourceTask:
    """See `step.TaskKind`."""

    def __init__(
        self,
        chain: OperatorChain,
        checkpoints: TaskCheckpoints | None,
        report_metrics: Callable[[], None],
    ) -> None:
        """`report_metrics` is called when the source has caught up for the first time."""
        self._chain = chain
        self._checkpoints = checkpoints
        self._report_metrics = report_metrics
        head = chain.nodes[0]
        if not isinstance(head.operator, SourceOperator):
            kind = type(head.operator).__name__
            raise TypeError(
                f"a task without inputs must start with a source, not with {head.name} ({kind})"
            )
        self._head = head
        self._source = head.operator
        # Checkpoints that wait for assigned splits to arrive, with their number.
        self._triggered: list[_Triggered] = []
        self._stopping: int | None = None  # the savepoint after which the source produces nothing
        self._draining = False
        self._is_caught_up = False  # it is to be marked as idle
        self._idle_due_s = 0.0  # when it may be marked
        self.caught_up = 0
        self.drained = True  # False: stopped with a savepoint
        self.max_wait_s: float | None = None

    def init(self) -> None:
        """Does nothing: a source task has no resources besides its operators."""

    def when_initialized(self, action: Callable[[], None]) -> None:
        action()

    def step(self) -> Step:
        if self._triggered:
            self._take_triggered()
        if self._head.finished_before or self._draining or not self.drained:
            self.max_wait_s = None
            return Step.END
        if self._chain.stopped or self._stopping is not None:
            self.max_wait_s = None  # a mail raises the limit
            return Step.DRY
        if self._chain.overdrawn:
            self.max_wait_s = None
            return Step.BLOCKED
        if self._chain.full:
            self.max_wait_s = None
            return Step.FULL
        if not self._head.poll():
            self.max_wait_s = None
            return Step.END
        self._is_caught_up = self._source.caught_up
        if self._is_caught_up:
            if not self._source.limit_reached:
                self.caught_up += 1
                if self.caught_up == 1:
                    self._report_metrics()
            if time.monotonic() >= self._idle_due_s:
                self._report_idle()
        if not self._source.waiting:
            return Step.MORE
        self.max_wait_s = self._source.poll_interval_s
        if self._is_caught_up and self._source.reports_idle:
            left_s = max(0.0, self._idle_due_s - time.monotonic())
            self.max_wait_s = left_s if self.max_wait_s is None else min(left_s, self.max_wait_s)
        return Step.DRY

    def _report_idle(self) -> None:
        """Marks the output as idle if the source has caught up: at the latest before a barrier, so
        that the checkpoint includes what the mark causes.
        """
        if self._is_caught_up and self._source.reports_idle:
            self._head.report_idle()
            self._idle_due_s = time.monotonic() + IDLE_S
        self._is_caught_up = False

    def step_after_data(self) -> Step:
        return Step.END

    def trigger_checkpoint(self, barrier: CheckpointBarrier, splits: int, *, stops: bool) -> None:
        self._triggered.append(_Triggered(barrier, splits, stops))
        self._take_triggered()

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        self._triggered = [t for t in self._triggered if t.barrier.checkpoint_id != checkpoint_id]
        if self._stopping == checkpoint_id:
            self._stopping = None

    @property
    def open_checkpoints(self) -> list[int]:
        return [triggered.barrier.checkpoint_id for triggered in self._triggered]

    @property
    def stops_with(self) -> int | None:
        return self._stopping

    def drain(self) -> None:
        self._draining = True

    def stop(self) -> None:
        self.drained = False

    def _take_triggered(self) -> None:
        while self._triggered and self._source.splits_received >= self._triggered[0].splits:
            barrier, _, stops = self._triggered.pop(0)
            assert self._checkpoints is not None
            self._report_idle()
            self._checkpoints.take(barrier)
            if stops:
                self._stopping = barrier.checkpoint_id

    def watermark_us(self) -> int:
        return self._head.watermark_us

    def cleanup(self) -> None:
        """Does nothing: there is nothing to free."""
