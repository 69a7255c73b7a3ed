"""Event time, as a program states it: watermarks and windows. Durations are texts such as "1 day", "90 s", or timedeltas."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from firesteel.config import parse_duration_s
from firesteel.errors import InvalidProgram
from firesteel.plan.specs import TumblingSpec, WatermarkSpec

Duration = str | timedelta


def duration_us(duration: Duration, what: str) -> int:
    """A duration in microseconds; InvalidProgram names `what` if it is none."""
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1)
    try:
        return round(parse_duration_s(duration) * 1_000_000)
    except (ValueError, TypeError):
        raise InvalidProgram(
            f"{what} is {duration!r}; give a duration such as '1 day', '90 s' or '250 ms', or a timedelta"
        ) from None


@dataclass(frozen=True, slots=True)
class Watermarks:
    """How a source tells how far event time has come."""

    column: str
    max_out_of_orderness_us: int

    @classmethod
    def bounded(cls, column: str, *, max_out_of_orderness: Duration = "0 s") -> Watermarks:
        """Records are at most `max_out_of_orderness` behind the latest `column` (a timestamp) seen by their subtask."""
        delay_us = duration_us(max_out_of_orderness, "max_out_of_orderness")
        if delay_us < 0:
            raise InvalidProgram(f"max_out_of_orderness is {max_out_of_orderness!r}; it cannot be negative")
        return cls(column, delay_us)

    def spec(self) -> WatermarkSpec:
        return WatermarkSpec(column=self.column, max_out_of_orderness_us=self.max_out_of_orderness_us)


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of a fixed size, side by side, aligned to the epoch (UTC) plus `offset`.

    `on` names the timestamp column; without it, the column of the source's watermarks.
    """

    size: Duration
    offset: Duration = "0 s"
    on: str | None = None

    def spec(self) -> TumblingSpec:
        size_us = duration_us(self.size, "the size of a Tumbling window")
        if size_us <= 0:
            raise InvalidProgram(f"the size of a Tumbling window is {self.size!r}; it must be positive")
        return TumblingSpec(size_us=size_us, offset_us=duration_us(self.offset, "the offset of a Tumbling window") % size_us)
