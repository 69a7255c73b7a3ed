"""A thread of the job that repeats one action.

It counts as the job's thread, not as the process's: if it does not end, the slot's process is
replaced (taskexecutor.executor.job_threads).
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Repeating:
    """Calls `action`, which returns the pause in seconds before the next call."""

    def __init__(self, name: str, action: Callable[[], float]) -> None:
        self._name = name
        self._action = action
        self.stopped = threading.Event()

    def start(self, pause_s: float) -> None:
        """Starts the thread. `pause_s` precedes the first call."""
        threading.Thread(target=self._run, args=(pause_s,), name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Stops the thread without waiting for the current call."""
        self.stopped.set()

    def _run(self, pause_s: float) -> None:
        while not self.stopped.wait(pause_s):
            pause_s = self._action()
