"""How long the job has lacked slots, and what is said about it: to people while it waits, and when
it has waited too long.
"""

from __future__ import annotations

from jobmaster.core.events import ResourcesShort
from jobmaster.core.slot_pool import SlotPool


class SlotWait:
    def __init__(self, pool: SlotPool, *, timeout_s: float) -> None:
        """`timeout_s`: slot.request.timeout."""
        self._pool = pool
        self._timeout_s = timeout_s
        self._since: float | None = None  # None: nothing is lacking
        self._told: ResourcesShort | None = None  # what the ResourceManager said last

    def note(self, lacking: bool, now: float) -> None:
        """Whether slots are lacking now; the wait begins when they first are."""
        if not lacking:
            self._since = None
        elif self._since is None:
            self._since = now

    def told(self, event: ResourcesShort) -> None:
        self._told = event

    def deadline(self) -> float | None:
        return None if self._since is None else self._since + self._timeout_s

    def overdue(self, now: float) -> bool:
        deadline = self.deadline()
        return deadline is not None and deadline <= now

    def for_people(self, now: float) -> str:
        """What the job waits for; empty if for no slot."""
        if self._since is None:
            return ""
        missing = self._pool.pending_count
        why = f": {self._told.explanation}" if self._told and self._told.explanation else ""
        return (
            f"{missing} more slot{'s' if missing != 1 else ''} (for {now - self._since:.0f} s){why}"
        )

    def failure(self) -> str:
        """Why a job that waited for too long has failed, and what to do."""
        needed = sum(requirement.count for requirement in self._pool.requirements())
        why = (
            self._told.explanation
            if self._told
            else "the ResourceManager did not say why; is it reachable?"
        )
        return (
            f"{self._pool.pending_count} of the {needed} slots that the job needs are still missing after "
            f"{self._timeout_s:g} s (slot.request.timeout): {why}. Lower the job's parallelism, or add slots"
        )
