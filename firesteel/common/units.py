"""Durations, sizes and counts: how they are read and how they are written.

Configuration and user programs write durations and sizes as Flink does (`parse_duration_s`,
`parse_size_bytes`, `shortest_duration`, `shortest_size`); messages and the command line show them
rounded (`duration`, `mib`, `count`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

KIB = 2**10
MIB = 2**20
GIB = 2**30

_DURATION_UNITS_S = {
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    # As in Flink, a bare number is milliseconds.
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1e-9),
}
_SIZE_UNITS_BYTES = {
    **dict.fromkeys(("", "b", "byte", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib", "kibibytes"), KIB),
    **dict.fromkeys(("m", "mb", "mib", "mebibytes"), MIB),
    **dict.fromkeys(("g", "gb", "gib", "gibibytes"), GIB),
    **dict.fromkeys(("t", "tb", "tib", "tebibytes"), 2**40),
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ]*)")


def parse_duration_s(text: str) -> float:
    """Seconds. A bare number is milliseconds, as in Flink. Raises ValueError."""
    return _parse(text, _DURATION_UNITS_S)


def parse_size_bytes(text: str) -> int:
    """Bytes; every unit is a power of 1024, as in Flink. Raises ValueError."""
    return int(_parse(text, _SIZE_UNITS_BYTES))


def _parse(text: str, units: Mapping[str, float]) -> float:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None or match.group(2) not in units:
        raise ValueError(text)
    return float(match.group(1)) * units[match.group(2)]


def shortest_duration(seconds: float) -> str:
    """As a user would write it: `3 min`, `500 ms`; `parse_duration_s` reads it back."""
    return _shortest(seconds, (("d", 86400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)))


def shortest_size(size_bytes: int) -> str:
    """As a user would write it: `4 mb`; `parse_size_bytes` reads it back."""
    return _shortest(size_bytes, (("gb", GIB), ("mb", MIB), ("kb", KIB), ("b", 1)))


def _shortest(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """In the largest unit that leaves a whole number, else in the smallest."""
    if not value:
        return "0"
    unit, factor = next(
        ((unit, factor) for unit, factor in units if value >= factor and value % factor == 0),
        units[-1],
    )
    return f"{value / factor:g} {unit}"
