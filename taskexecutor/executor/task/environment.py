"""What all operators of one task share."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.common.operator_messages import FromOperator, OperatorEvent
from firesteel.operator import TaskCancelled, TaskInfo
from taskexecutor.executor.task.interfaces import Engine
from taskexecutor.executor.task.mailbox import Mailbox
from taskexecutor.executor.timing.clock import TaskClock, TimeKind


class TaskEnvironment:
    """What all operators of one task share."""

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
        self.checkpoints = checkpoints  # whether the job takes them
        self.cancelled = False  # set once, by any thread
        # Mails ran in the middle of a step and may have changed what it found: no sleep after it.
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
        """On the task's thread: runs the queued mails, waiting at most `timeout_s` for the
        first.
        """
        self.check_cancelled()
        self.yielded = True
        if not len(self.mailbox):
            with self.clock.spans[TimeKind.BLOCKED]:
                self.mailbox.wait(timeout_s, between=False)
        self.process_mails()
        self.check_cancelled()

    def process_mails(self) -> None:
        # Those that are queued now: mails that put mails must not keep data waiting for ever.
        for _ in range(len(self.mailbox)):
            mail = self.mailbox.take()
            if mail is not None:
                mail()
