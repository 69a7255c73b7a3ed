"""State shared by all operators of one task."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.common.operator_messages import FromOperator, OperatorEvent
from firesteel.operator import TaskCancelled, TaskInfo
from taskexecutor.executor.task.interfaces import Engine
from taskexecutor.executor.task.mailbox import Mailbox
from taskexecutor.executor.timing.clock import TaskClock, TimeKind


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
