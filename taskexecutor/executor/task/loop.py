"""The loop of a task's thread: runs mails and timers first, then one step of the task. The steps
of tasks with and without inputs differ.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol, assert_never

from firesteel.elements import CheckpointBarrier
from firesteel.operator import TaskCancelled
from taskexecutor.executor.task.environment import TaskEnvironment
from taskexecutor.executor.task.interfaces import ResultPartition
from taskexecutor.executor.task.mailbox import Mailbox
from taskexecutor.executor.timing.clock import TimeKind
from taskexecutor.executor.timing.timers import TaskTimers


class Step(Enum):
    """The outcome of one iteration of the task's loop."""

    MORE = 0  # an element was processed; take the next step immediately
    DRY = 1  # nothing to do until a mail or new input
    END = 2  # there is no more input
    BLOCKED = 3  # no credit: nothing to do until a mail or new credit
    FULL = 4  # an operator holds its maximum of rows: nothing to do until a mail


class TaskKind(Protocol):
    """The behavior of a task with or without inputs. Called on the task's thread."""

    def init(self) -> None:
        """Acquires task-wide resources."""

    def when_initialized(self, action: Callable[[], None]) -> None:
        """Calls `action` once no operator is reading its initial state: now, or after a step. Until
        then the task takes part in no checkpoint.
        """

    def step(self) -> Step:
        """Processes the next element."""

    def step_after_data(self) -> Step:
        """Returns END once nothing can follow on the inputs."""

    def trigger_checkpoint(self, barrier: CheckpointBarrier, splits: int, *, stops: bool) -> None:
        """Handles the JobMaster's trigger: no running producer will send the barrier. A source
        waits until it has received `splits` splits. If `stops`, it produces nothing afterwards,
        unless the checkpoint is aborted.
        """

    def drain(self) -> None:
        """Ends a source as if it had reached its end."""

    def stop(self) -> None:
        """Ends the data here: the checkpoint after which nothing was produced is complete."""

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Stops waiting for the barriers of a checkpoint that was aborted."""

    @property
    def open_checkpoints(self) -> list[int]:
        """Returns the checkpoints that were triggered here and have not started."""

    @property
    def stops_with(self) -> int | None:
        """Returns the savepoint after which nothing is produced, until its outcome is known."""

    @property
    def caught_up(self) -> int:
        """Returns how often a source has emitted everything that was available."""

    @property
    def drained(self) -> bool:
        """Returns whether the data has really ended, rather than stopped with a savepoint."""

    @property
    def max_wait_s(self) -> float | None:
        """Returns how long to wait for a mail after a step that found nothing; None for no
        limit.
        """

    def watermark_us(self) -> int: ...

    def cleanup(self) -> None:
        """Frees what `init` acquired. Also called if `init` was not."""


class MailboxLoop:
    def __init__(self, environment: TaskEnvironment, timers: TaskTimers) -> None:
        self._environment = environment
        self._mailbox = environment.mailbox
        self._timers = timers

    def run(
        self,
        step: Callable[[], Step],
        *,
        on_dry: Callable[[], None],
        max_wait_s: Callable[[], float | None],
    ) -> None:
        """Returns when `step` has ended. Raises TaskCancelled when the task is cancelled.

        When a step finds nothing to do, calls `on_dry` and sleeps until there is a mail, a timer is
        due, or `max_wait_s` has passed.
        """
        environment, mailbox, timers = self._environment, self._mailbox, self._timers
        while True:
            if environment.cancelled:
                raise TaskCancelled
            if len(mailbox):
                environment.process_mails()
            while (mail := mailbox.take_between()) is not None:
                mail()
            if timers.next_due_ms is not None:
                timers.fire_processing_time(time.time_ns() // 1_000_000)
            match step():
                case Step.MORE:
                    pass
                case Step.DRY:
                    on_dry()
                    self._sleep(max_wait_s(), TimeKind.IDLE)
                case Step.FULL:
                    self._sleep(max_wait_s(), TimeKind.PYTHON)
                case Step.BLOCKED:
                    self._sleep(max_wait_s(), TimeKind.BLOCKED)
                case Step.END:
                    return
                case unknown:
                    assert_never(unknown)

    def _sleep(self, max_wait_s: float | None, kind: TimeKind) -> None:
        if self._environment.yielded:
            self._environment.yielded = False
            return
        if self._timers.next_due_ms is not None:
            until_timer_s = max(0.0, self._timers.next_due_ms / 1000 - time.time())
            max_wait_s = until_timer_s if max_wait_s is None else min(max_wait_s, until_timer_s)
        with self._environment.clock.spans[kind]:
            self._mailbox.wait(max_wait_s)


class Acknowledgement:
    """Waits until the consumers have taken everything, in a separate thread, because waiting for a
    partition blocks; the outcome arrives as a mail. Without partitions it is acknowledged from the
    start.
    """

    def __init__(
        self, partitions: Sequence[ResultPartition], mailbox: Mailbox, attempt_id: str
    ) -> None:
        self.acknowledged = not partitions
        self.failure: BaseException | None = None
        self._partitions = partitions
        self._mailbox = mailbox
        self._thread = threading.Thread(
            target=self._wait, name=f"acks {attempt_id[:8]}", daemon=True
        )

    def start(self) -> None:
        if not self.acknowledged:
            self._thread.start()

    @property
    def waiting(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        """Returns when the thread has ended, which it does once the partitions are aborted."""
        if self._thread.ident is not None:
            self._thread.join()

    def _wait(self) -> None:
        error: BaseException | None = None
        try:
            for partition in self._partitions:
                partition.await_acknowledged()
        except BaseException as raised:
            error = raised
        self._mailbox.put(functools.partial(self._on_outcome, error))

    def _on_outcome(self, error: BaseException | None) -> None:
        self.acknowledged, self.failure = True, error
