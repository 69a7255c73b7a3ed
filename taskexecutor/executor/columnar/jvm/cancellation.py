"""Cancels the Spark work of tasks that block inside Spark and cannot check their own flag."""

from __future__ import annotations

import threading
from collections.abc import Callable

_INTERVAL_S = 0.05
_LONGEST_PAUSE = 40  # intervals
_QUIET_INTERVALS = 20  # intervals without groups, after which the thread sleeps until there is one


class CancellationWatch:
    """Calls `cancel(group)` for every watched group whose task has been cancelled.

    One thread per engine, started with the first group. It checks in every interval and is not
    woken in between: many groups are bundles of a millisecond, and waking a thread for each of them
    would take the interpreter from the task.
    """

    def __init__(self, cancel: Callable[[str], None]) -> None:
        self._cancel = cancel
        self._condition = threading.Condition()
        # A task whose operators call each other enters its group more than once.
        self._groups: dict[str, list[Callable[[], bool]]] = {}
        self._thread: threading.Thread | None = None
        self._asleep = False  # until there is a group
        self._stopped = False

    def add(self, group: str, cancelled: Callable[[], bool]) -> None:
        with self._condition:
            self._groups.setdefault(group, []).append(cancelled)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="spark-cancellation", daemon=True
                )
                self._thread.start()
            if self._asleep:
                self._condition.notify()

    def remove(self, group: str) -> None:
        with self._condition:
            self._groups[group].pop()
            if not self._groups[group]:
                del self._groups[group]

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(1.0)

    def _watch(self) -> None:
        # A group is cancelled repeatedly, at growing intervals, because its job may not have
        # started yet: group -> (intervals to wait, number of cancellations).
        rounds: dict[str, tuple[int, int]] = {}
        quiet = 0
        while True:
            with self._condition:
                if quiet > _QUIET_INTERVALS:
                    self._asleep = True
                    self._condition.wait_for(lambda: self._groups or self._stopped)
                    self._asleep = False
                if self._stopped:
                    return
                groups = [(group, flags[-1]) for group, flags in self._groups.items()]
            quiet = 0 if groups else quiet + 1
            rounds = {group: rounds[group] for group, _ in groups if group in rounds}
            for group, cancelled in groups:
                if not cancelled():
                    continue
                skip, times = rounds.get(group, (0, 0))
                if skip == 0:
                    self._cancel(group)
                    skip, times = min(2**times, _LONGEST_PAUSE), times + 1
                rounds[group] = (skip - 1, times)
            with self._condition:
                self._condition.wait_for(lambda: self._stopped, _INTERVAL_S)
