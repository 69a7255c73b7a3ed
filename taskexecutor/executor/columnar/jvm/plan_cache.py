"""Caches plans from one job to the next.

Making a plan takes Spark a quarter of a second of CPU time, and the JVM's compilers the same. A
slot's process serves one job after another, and often the same program: restarted after a failure,
or submitted again. `reusable_plan.is_still` decides whether a plan is still valid.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

from firesteel.common.logs import get_logger

MOST = 16  # the most recently used plans

log = get_logger(__name__)


class CachedPlan(Protocol):
    @property
    def reusable(self) -> bool:
        """Returns False during a run, and permanently after a run that was not completed."""

    def release_memory(self) -> None:
        """Releases memory that only runs need."""

    def close(self) -> None: ...


class PlanCache:
    """The plan cache of one session. A plan is either here or in one task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # with their keys; most recently used last
        self._plans: list[tuple[object, CachedPlan]] = []
        # Static tables by content, because a plan only works with the same table object.
        self.table_versions: WeakValueDictionary[object, Any] = WeakValueDictionary()

    def take(self, key: object, still: Callable[[Any], bool]) -> Any:
        """Returns the plan with an equal key, if it is `still` the one that would be made; the
        caller owns it. Otherwise, or without a key, returns None.
        """
        if key is None:
            return None
        with self._lock:
            for place in reversed(range(len(self._plans))):
                other, plan = self._plans[place]
                if other == key:
                    del self._plans[place]
                    break
            else:
                return None
        try:
            if still(plan):
                return plan
        except Exception as error:  # of the program: making a plan raises it again
            log.info("a cached plan cannot be reused", error=repr(error))
        plan.close()
        return None

    def put(self, key: object, plan: CachedPlan) -> None:
        """Keeps the plan of a task that has ended, or closes it if it has no key."""
        if key is None or not plan.reusable:
            plan.close()
            return
        plan.release_memory()
        with self._lock:
            self._plans.append((key, plan))
            old = [each for _, each in self._plans[:-MOST]]
            del self._plans[:-MOST]
        for each in old:
            each.close()

    def close(self) -> None:
        with self._lock:
            plans, self._plans = self._plans, []
        for _, plan in plans:
            plan.close()
