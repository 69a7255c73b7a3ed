"""The mailbox: the way to a task's thread.

A task is single-threaded: operators, timers, checkpoints and coordinator events all run on its own
thread. Other threads put mails, or `wake` it because something can be polled again; one condition
serves both, so a hand-over costs one thread switch, and nothing is polled in a loop.

Rules: any thread may `put`, `wake` and `close`; only the task's thread may `take` and `wait`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Mail: TypeAlias = Callable[[], None]


class Mailbox:
    """A queue of mails with one sleeper."""

    __slots__ = ("_closed", "_condition", "_mails", "_signalled")

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._mails: deque[Mail] = deque()
        self._signalled = False  # `wake` was called since the last wait
        self._closed = False

    def put(self, mail: Mail) -> None:
        """Queues `mail` to run on the task's thread; dropped when the task is over."""
        with self._condition:
            if self._closed:
                return
            self._mails.append(mail)
            self._condition.notify()

    def wake(self) -> None:
        """Ends the current or the next `wait`."""
        # Reading it without the lock is safe: the sleeper clears it before it checks again what it
        # waits for.
        if self._signalled:
            return
        with self._condition:
            self._signalled = True
            self._condition.notify()

    def __len__(self) -> int:
        return len(self._mails)

    def take(self) -> Mail | None:
        """The oldest mail, or None; never blocks."""
        return self._mails.popleft() if self._mails else None

    def wait(self, timeout_s: float | None) -> None:
        """Sleeps until there is a mail or a wake, at most `timeout_s` (None: as long as it
        takes).
        """
        with self._condition:
            if not self._mails and not self._signalled and not self._closed:
                self._condition.wait(timeout_s)
            self._signalled = False

    def close(self) -> None:
        """The task is over: drops all mails, queued and future ones."""
        with self._condition:
            self._closed = True
            self._mails.clear()
            self._condition.notify()
