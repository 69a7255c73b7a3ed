"""Reads and writes durations, sizes and counts.

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
    """Parses seconds. A bare number is milliseconds, as in Flink. Raises ValueError."""
    return _parse(text, _DURATION_UNITS_S)


def parse_size_bytes(text: str) -> int:
    """Parses bytes; every unit is a power of 1024, as in Flink. Raises ValueError."""
    return int(_parse(text, _SIZE_UNITS_BYTES))


def _parse(text: str, units: Mapping[str, float]) -> float:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None or match.group(2) not in units:
        raise ValueError(text)
    return float(match.group(1)) * units[match.group(2)]


def shortest_duration(seconds: float) -> str:
    """Formats a duration as a user writes it: `3 min`, `500 ms`; `parse_duration_s` reads it
    back.
    """
    return _shortest(seconds, (("d", 86400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)))


def shortest_size(size_bytes: int) -> str:
    """Formats a size as a user writes it: `4 mb`; `parse_size_bytes` reads it back."""
    return _shortest(size_bytes, (("gb", GIB), ("mb", MIB), ("kb", KIB), ("b", 1)))


def _shortest(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """Formats a value in the largest unit with a whole number, else in the smallest unit."""
    if not value:
        return "0"
    unit, factor = next(
        ((unit, factor) for unit, factor in units if value >= factor and value % factor == 0),
        units[-1],
    )
    return f"{value / factor:g} {unit}"


def duration(seconds: float) -> str:
    """Formats a duration: `250 ms`, `12.3 s`, `4 min 05 s`, `2 h 30 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(size_bytes: int) -> str:
    """Formats a size: `100 B`, `1.5 MiB`."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def mib(size_bytes: float) -> str:
    """Formats a size in MiB, `1,408 MiB`: sizes that are compared share one unit."""
    return f"{size_bytes / MIB:,.0f} MiB"


def count(number: float) -> str:
    """Formats a count: `1,131`, `12.3 M`; at most nine characters."""
    if number < 10_000_000:
        return f"{number:,.0f}"
    for unit in ("M", "G", "T"):
        number /= 1000_000 if unit == "M" else 1000
        if number < 1000:
            break
    return f"{number:.1f} {unit}"


def short_count(number: float) -> str:
    """Formats a count: `1,131`, `65.5 k`, `4.0 M`; at most seven characters."""
    if number < 10_000:
        return f"{number:,.0f}"
    return f"{number / 1e3:.1f} k" if number < 999_950 else f"{number / 1e6:.1f} M"


def rate(per_s: float) -> str:
    """Formats a rate: `980/s`, `35 k/s`, `1.2 M/s`."""
    if per_s < 10_000:
        return f"{per_s:,.0f}/s"
    return f"{per_s / 1e6:.1f} M/s" if per_s >= 1e6 else f"{per_s / 1e3:.0f} k/s"


def counted(number: int, one: str, many: str = "") -> str:
    """Formats a number with its noun: `1 slot`, `2 slots`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
