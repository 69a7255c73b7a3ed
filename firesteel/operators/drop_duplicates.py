"""Removes duplicates."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.operators.spec import NeededTime, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDuplicatesSpec(Spec):
    """Keeps the first row of each key, or the first within a time: a row is dropped if its event
    time is less than `within_us` from that of a kept row of its key, before or after it.

    Input and output: the rows.
    """

    key_columns: tuple[str, ...]
    time_column: str = ""  # empty if duplicates have no time
    time_shift_us: int = 0  # added to event time: -1 for the (exclusive) end of a window
    within_us: int = 0  # 0: forever

    uses_pandas = False
    counts_rows = True
    state_in_columns = True

    @property
    def needed_times(self) -> list[NeededTime]:
        return [NeededTime(0, self.time_column)] if self.within_us else []
