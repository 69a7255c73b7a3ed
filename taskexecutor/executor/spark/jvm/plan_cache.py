"""Plans that one job leaves to the next ones of its slot.

Making a plan takes Spark a quarter of a second of CPU time, and the JVM's compilers as much. A
slot's process serves one job after another, and often the same program: restarted after a failure,
or submitted again. Whether a plan is still what would be made, `plans.kept.is_still` says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

import structlog

MOST = 8  # plans; those that were used last

log = structlog.get_logger(__name__)


class CachedPlan(Protocol):
    @property
    def reusable(self) -> bool:
        """False during a run, and for ever after one that has not come to its end."""

    def release_memory(self) -> None:
        """Gives back what only runs need."""

    def close(self) -> None: ...


class PlanCache:
    """Of one session. A plan is here, or in one task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: list[tuple[object, CachedPlan]] = []  # with their keys; the last used is last
        # Of static tables, by what is in them: a plan is for one that is the same object.
        self.table_versions: WeakValueDictionary[object, Any] = WeakValueDictionary()

    def take(self, key: object, still: Callable[[Any], bool]) -> Any:
        """The plan that was put here with an equal key, if it is `still` what would be made; the
        caller owns it. Otherwise None, also without a key.
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
            log.info("a plan is not used again", error=repr(error))
        plan.close()
        return None

    def put(self, key: object, plan: CachedPlan) -> None:
        """Keeps the plan of a task that has ended, or closes it: without a key it is of no use."""
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
