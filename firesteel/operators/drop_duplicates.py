"""Removes duplicates."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.operators.spec import NeededTime, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDuplicatesSpec(Spec):
    """Keeps the first row of each key, or the first within a time: a row is dropped if its event
    time is less than `within_us` from that of a kept row of its key, before or after it.

    With `late_column`, by Spark's rules: rows with a time that is not after the watermark are late,
    and a key is forgotten when the watermark has reached the time of its first row plus
    `expires_after_us`. A row without a time is not late; its key is kept if the time is part of the
    key, and otherwise expires as if the time were the epoch.

    Input and output: the rows.
    """

    key_columns: tuple[str, ...]
    time_column: str = ""  # empty if duplicates have no time
    time_shift_us: int = 0  # added to event time: -1 for the (exclusive) end of a window
    within_us: int = 0  # 0: forever
    late_column: str = ""  # a timestamp; empty: no row is late
    time_is_key: bool = False  # keys expire by a column of theirs, whose time is `late_column`
    expires_after_us: int | None = None  # None: keys are kept forever

    uses_pandas = False
    counts_rows = True
    state_in_columns = True

    @property
    def needed_times(self) -> list[NeededTime]:
        return [NeededTime(0, self.time_column)] if self.within_us else []
