"""The mailbox: passes work to a task's thread.

A task is single-threaded: operators, timers, checkpoints and coordinator events all run on its
thread. Other threads put mails, or `wake` it because there is something to poll. One condition
serves both, so passing work costs one thread switch, and nothing polls in a loop.

A mail that must not run in the middle of an element, such as a checkpoint trigger, is put with
`put_between`: an operator that waits for a mail does not run it.

Rules: any thread may `put`, `put_between`, `wake` and `close`; only the task's thread may take and
`wait`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Mail: TypeAlias = Callable[[], None]


class Mailbox:
    """Queues of mails with one waiting thread."""

    __slots__ = ("_between", "_closed", "_condition", "_mails", "_signalled")

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._mails: deque[Mail] = deque()
        self._between: deque[Mail] = deque()
        self._signalled = False  # `wake` was called since the last wait
        self._closed = False

    def put(self, mail: Mail) -> None:
        """Queues `mail` to run on the task's thread. Drops it if the task has ended."""
        self._put(self._mails, mail)

    def put_between(self, mail: Mail) -> None:
        """Queues a mail that only runs between two elements."""
        self._put(self._between, mail)

    def wake(self) -> None:
        """Ends the current or the next `wait`."""
        # Reading it without the lock is safe: the waiting thread clears it before it rechecks its
        # condition.
        if self._signalled:
            return
        with self._condition:
            self._signalled = True
            self._condition.notify()

    def __len__(self) -> int:
        return len(self._mails)

    def take(self) -> Mail | None:
        """Returns the oldest mail, or None; never blocks."""
        return self._mails.popleft() if self._mails else None

    def take_between(self) -> Mail | None:
        """Returns the oldest mail that only runs between two elements, or None; never blocks."""
        return self._between.popleft() if self._between else None

    def wait(self, timeout_s: float | None, *, between: bool = True) -> None:
        """Sleeps until there is a mail or a wake, at most `timeout_s` (None: indefinitely).
        `between`: mails that only run between two elements count.
        """
        with self._condition:
            mails = self._mails or (between and self._between)
            if not (mails or self._signalled or self._closed):
                self._condition.wait(timeout_s)
            self._signalled = False

    def close(self) -> None:
        """Drops all queued and future mails, because the task has ended."""
        with self._condition:
            self._closed = True
            self._mails.clear()
            self._between.clear()
            self._condition.notify()

    def _put(self, queue: deque[Mail], mail: Mail) -> None:
        with self._condition:
            if self._closed:
                return
            queue.append(mail)
            self._condition.notify()
