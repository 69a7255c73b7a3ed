"""Waits until the consumers have taken everything, without blocking the task's loop."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence

from taskexecutor.executor.task.interfaces import ResultPartition
from taskexecutor.executor.task.mailbox import Mailbox


class Acknowledgement:
    """Waits in a separate thread, because waiting for a partition blocks; the outcome arrives as a
    mail. Without partitions it is acknowledged from the start.
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
