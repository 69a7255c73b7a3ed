"""A job's own thread that does one thing again and again.

It counts as the job's thread, not as the process': one that does not end costs the slot's process
(taskexecutor.executor.job_threads).
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Repeating:
    """Calls `action`, which returns the pause before the next call, in seconds."""

    def __init__(self, name: str, action: Callable[[], float]) -> None:
        self._name = name
        self._action = action
        self.stopped = threading.Event()

    def start(self, pause_s: float) -> None:
        """`pause_s`: before the first call."""
        threading.Thread(target=self._run, args=(pause_s,), name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Without waiting for a call that is under way."""
        self.stopped.set()

    def _run(self, pause_s: float) -> None:
        while not self.stopped.wait(pause_s):
            pause_s = self._action()
