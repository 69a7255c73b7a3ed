"""Measures how long the job has been waiting for slots: shown while it waits, and the cause of its
failure when it has waited too long.
"""

from __future__ import annotations

from jobmaster.core.slots.pool import SlotPool


class SlotWait:
    def __init__(self, pool: SlotPool, *, timeout_s: float) -> None:
        """`timeout_s` is slot.request.timeout."""
        self._pool = pool
        self._timeout_s = timeout_s
        self._since: float | None = None  # None: no slot is missing
        self.shortage = ""  # the ResourceManager's last explanation

    def update(self, now: float, *, missing: bool) -> None:
        """Starts the wait when slots are first missing, and ends it when they are not."""
        if not missing:
            self._since = None
        elif self._since is None:
            self._since = now

    def explain(self, shortage: str) -> None:
        """Records why the ResourceManager cannot provide the slots."""
        self.shortage = shortage

    def deadline(self) -> float | None:
        return None if self._since is None else self._since + self._timeout_s

    def overdue(self, now: float) -> bool:
        deadline = self.deadline()
        return deadline is not None and deadline <= now

    def describe(self, now: float) -> str:
        """Returns what the job waits for, in words for users; empty if it does not wait for
        slots.
        """
        if self._since is None:
            return ""
        missing = self._pool.pending_count
        why = f": {self.shortage}" if self.shortage else ""
        return (
            f"{missing} more slot{'s' if missing != 1 else ''} (for {now - self._since:.0f} s){why}"
        )

    def failure(self) -> str:
        """Returns why a job that has waited too long fails, and the remedy."""
        needed = sum(requirement.count for requirement in self._pool.requirements())
        why = self.shortage or "the ResourceManager gave no reason; check that it is reachable"
        return (
            f"{self._pool.pending_count} of the {needed} slots that the job needs are still "
            f"missing after {self._timeout_s:g} s (slot.request.timeout): {why}. "
            "Lower the job's parallelism, or add slots"
        )
