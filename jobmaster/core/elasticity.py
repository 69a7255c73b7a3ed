"""Decides when a job follows the slots that there are (`scheduler-mode: reactive`).

A running job uses more slots once their number has not changed for a while, or immediately if they
suffice for its highest parallelism; but not soon after its last change. A job that waits for slots
accepts fewer once their number has not changed for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from firesteel.common.ids import VertexId
from firesteel.common.job_graph import JobGraph
from firesteel.common.resources import ResourceProfile
from jobmaster.core.execution_graph import slot_profiles


class SchedulerMode(Enum):
    """The bounds of the parallelism of a job whose user requests none."""

    DEFAULT = "default"  # the parallelism of the program
    ADAPTIVE = "adaptive"  # between 1 and that
    REACTIVE = "reactive"  # between 1 and the maximum parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticSettings:
    mode: SchedulerMode = SchedulerMode.DEFAULT
    cooldown_s: float = 30.0
    more_after_s: float = 60.0
    fewer_after_s: float = 10.0

    @property
    def enabled(self) -> bool:
        return self.mode is not SchedulerMode.DEFAULT


class Elasticity:
    """`possible`, `current` and `most` are total parallelisms: that which the slots allow, that of
    the tasks, and the highest one.
    """

    def __init__(self, settings: ElasticSettings) -> None:
        self._settings = settings
        self._possible: int | None = None
        self._since = 0.0  # when `possible` changed last
        self._changed_at: float | None = None  # when the job changed last
        self._due: float | None = None

    def deadline(self) -> float | None:
        """Returns when to call `may_change` again, if nothing happens before."""
        return self._due

    def forget(self) -> None:
        """The job does not run, and does not wait for slots."""
        self._possible = self._due = None

    def changed(self, now: float) -> None:
        """The job has a different parallelism."""
        self._changed_at = now
        self.forget()

    def may_change(self, *, possible: int, current: int, most: int, runs: bool, now: float) -> bool:
        if possible != self._possible:
            self._possible, self._since = possible, now
        self._due = None
        if possible == current or (runs and possible < current):
            return False
        settings = self._settings
        due = self._since
        if not runs:
            due += settings.fewer_after_s
        elif possible < most:
            due += settings.more_after_s
        if runs and self._changed_at is not None:
            due = max(due, self._changed_at + settings.cooldown_s)
        if now >= due:
            return True
        self._due = due
        return False


def fitted(
    graph: JobGraph,
    lower: Mapping[VertexId, int],
    upper: Mapping[VertexId, int],
    slots: Counter[ResourceProfile],
) -> dict[VertexId, int] | None:
    """Returns the highest parallelism between the bounds that these slots allow, as equal as
    possible for all vertices; None if they do not suffice for the lower bounds.
    """
    most = min(max(upper.values()), max(slots.total(), 1))
    for level in range(most, 0, -1):
        by_vertex = {v: min(max(level, lower[v]), bound) for v, bound in upper.items()}
        target = graph.with_parallelism(by_vertex)
        needed = Counter(profile for _, profile in slot_profiles(target.vertices))
        if not needed - slots:
            return by_vertex
    return None
