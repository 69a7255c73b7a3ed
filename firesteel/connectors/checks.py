"""Checks of a connector's options, made when the program names it: they raise InvalidProgram."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from datetime import timedelta

from firesteel.common.units import parse_duration_s, parse_size_bytes
from firesteel.errors import InvalidProgram


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Options as Spark takes them: texts, with true and false in lower case."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def check_choice(what: str, value: object, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise InvalidProgram(f"{what} is {value!r}; allowed: {', '.join(allowed)}")


def check_at_least_one(what: str, value: int) -> None:
    if value < 1:
        raise InvalidProgram(f"{what} is {value!r}; it must be at least 1")


def duration_s(what: str, value: str | timedelta) -> float:
    """A positive duration, such as "1 s" or a timedelta, in seconds."""
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else parse_duration_s(value)
    except (ValueError, TypeError, AttributeError):
        raise InvalidProgram(
            f"{what} is {value!r}; give a duration such as '1 day', '90 s' or '250 ms', "
            "or a timedelta"
        ) from None
    _check_positive(what, value, seconds)
    return seconds


def size_bytes(what: str, value: str | int) -> int:
    """A positive size, such as "128m" or bytes."""
    try:
        size = parse_size_bytes(str(value))
    except ValueError:
        raise InvalidProgram(f"{what} is {value!r}; give a size such as '128m', or bytes") from None
    _check_positive(what, value, size)
    return size


def _check_positive(what: str, value: object, number: float) -> None:
    if number <= 0:
        raise InvalidProgram(f"{what} is {value!r}; it must be positive")


def absolute_path(path: str) -> str:
    """Relative paths mean the folder that the program runs in, not that of the slot that opens
    them. URIs stay as they are.
    """
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))
