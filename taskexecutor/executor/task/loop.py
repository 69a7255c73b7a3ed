"""The loop of a task's thread: runs mails and timers first, then one step of the task."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import assert_never

from firesteel.operator import TaskCancelled
from taskexecutor.executor.task.environment import TaskEnvironment
from taskexecutor.executor.task.step import Step
from taskexecutor.executor.timing.clock import TimeKind
from taskexecutor.executor.timing.timers import TaskTimers


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
