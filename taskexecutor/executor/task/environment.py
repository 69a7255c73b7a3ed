"""State shared by all operators of one task."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from firesteel.common.operator_messages import FromOperator, OperatorEvent
from firesteel.operator import TaskCancelled, TaskInfo
from taskexecutor.executor.task.interfaces import Engine
from taskexecutor.executor.task.mailbox import Mailbox
from taskexecutor.executor.timing.clock import TaskClock, TimeKind

P = ParamSpec("P")
T = TypeVar("T")


class TaskEnvironment:
    """State shared by all operators of one task."""

    def __init__(
        self,
        *,
        info: TaskInfo,
        config: dict[str, str],
        engine: Engine,
        send_event: Callable[[OperatorEvent], None],
        mailbox: Mailbox,
        clock: TaskClock,
        checkpoints: bool = False,
    ) -> None:
        self.info = info
        self.config = config
        self.engine = engine
        self.send_event = send_event
        self.mailbox = mailbox
        self.clock = clock
        self.checkpoints = checkpoints  # whether the job takes checkpoints
        self.cancelled = False  # set once, by any thread
        # Mails ran during a step and may have produced new input, so the task must not sleep after
        # it.
        self.yielded = False
        self._raised: tuple[BaseException, str] | None = (
            None  # the last error of an operator, its id
        )

    def send_message(self, operator_id: str, message: FromOperator) -> None:
        """Sends a message to the coordinator of one of the task's operators."""
        self.send_event(
            OperatorEvent(
                job_id=self.info.job_id,
                operator_id=operator_id,
                subtask=self.info.subtask,
                attempt_id=self.info.attempt_id,
                message=message,
            )
        )

    def attributed(self, operator_id: str, call: Callable[P, T]) -> Callable[P, T]:
        """Returns `call` such that its errors are attributed to the operator."""

        @functools.wraps(call)
        def attributed(*arguments: P.args, **named: P.kwargs) -> T:
            try:
                return call(*arguments, **named)
            except BaseException as error:
                self.attribute(error, operator_id)
                raise

        return attributed

    def attribute(self, error: BaseException, operator_id: str) -> None:
        """Attributes an error to an operator. The first call for an error counts, because the error
        then passes through the operators upstream.
        """
        if self._raised is None or self._raised[0] is not error:
            self._raised = error, operator_id

    def raised_by(self, error: BaseException) -> str:
        """Returns the id of the operator to which the error is attributed, or an empty string."""
        return self._raised[1] if self._raised is not None and self._raised[0] is error else ""

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise TaskCancelled

    def yield_to_mail(self, timeout_s: float) -> None:
        """Runs the queued mails, waiting at most `timeout_s` for the first. Called on the task's
        thread.
        """
        self.check_cancelled()
        self.yielded = True
        if not len(self.mailbox):
            with self.clock.spans[TimeKind.BLOCKED]:
                self.mailbox.wait(timeout_s, between=False)
        self.process_mails()
        self.check_cancelled()

    def process_mails(self) -> None:
        # Only the mails queued now: mails that queue further mails must not delay data
        # indefinitely.
        for _ in range(len(self.mailbox)):
            mail = self.mailbox.take()
            if mail is not None:
                mail()
