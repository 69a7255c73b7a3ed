"""PySpark's stateful processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firesteel.operators.code_names import reads_watermark
from firesteel.operators.spec import NeededTime, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformWithStateSpec(Spec):
    """Runs PySpark's `StatefulProcessor` over Rows or pandas DataFrames."""

    processor: Any
    key_columns: tuple[str, ...]
    output_schema: Any  # never None
    output_mode: str = "append"  # append | update: for sinks, the processor does not see it
    time_mode: str = "none"  # none | processing_time | event_time
    pandas: bool = False
    # Event times, as in Spark: rows that the watermark has reached are left out; empty: none are.
    late_column: str = ""
    initial_key_columns: tuple[str, ...] | None = None  # None: no second input (initial state)

    sees_each_update = True

    @property
    def sets_event_timers(self) -> bool:
        return self.time_mode == "event_time"

    @property
    def needed_times(self) -> list[NeededTime]:
        # Without reading the watermark, it treats rows as late as its timers are early.
        late = (
            self.sets_event_timers and not self.late_column and not reads_watermark(self.processor)
        )
        return [NeededTime(0, "")] if late else []
