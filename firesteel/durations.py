"""Parses durations of programs: strings such as "1 day" or "90 s", or timedeltas."""

from __future__ import annotations

from datetime import timedelta

from firesteel.common.units import parse_duration_s
from firesteel.errors import InvalidProgram

Duration = str | timedelta


def duration_us(duration: Duration, what: str) -> int:
    """Converts a duration to microseconds. Raises InvalidProgram, naming `what`, if it is
    invalid.
    """
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1)
    try:
        return round(parse_duration_s(duration) * 1_000_000)
    except (ValueError, TypeError, AttributeError):
        raise InvalidProgram(
            f"{what} is {duration!r};"
            " specify a duration such as '1 day', '90 s' or '250 ms', or a timedelta"
        ) from None


def positive_us(duration: Duration, what: str) -> int:
    value_us = duration_us(duration, what)
    if value_us <= 0:
        raise InvalidProgram(f"{what} is {duration!r}; it must be positive")
    return value_us
