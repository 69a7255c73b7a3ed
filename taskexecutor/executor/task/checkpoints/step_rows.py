"""Limits the rows of a step where checkpoints may overtake. A snapshot waits until the current step
has ended, so a step should not take long, however slow the operators are.
"""

from __future__ import annotations

TARGET_S = 0.1
FIRST_ROWS = 1000
_MAX_ROWS = 2**20


class StepRows:
    """Starts small and doubles, so that it recovers quickly from one slow step, such as the first
    run of a plan.
    """

    def __init__(self) -> None:
        self.limit = FIRST_ROWS

    def on_step(self, rows: int, took_s: float) -> bool:
        """Adjusts the limit to a step. Returns True if the limit changed."""
        before = self.limit
        if took_s > 2 * TARGET_S:
            self.limit = max(1, min(rows // 2, int(rows * TARGET_S / took_s)))
        elif rows >= before and took_s < TARGET_S / 2:
            self.limit = min(before * 2, _MAX_ROWS)
        return self.limit != before
