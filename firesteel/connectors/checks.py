"""Checks of a connector's options, made while the program is built: they raise InvalidProgram."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from firesteel.common.globs import printable
from firesteel.common.units import parse_size_bytes
from firesteel.durations import Duration, positive_us
from firesteel.errors import InvalidProgram


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Converts options to Spark's form: strings, with true and false in lower case."""
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


def duration_s(what: str, value: Duration) -> float:
    """Converts a positive duration, such as "1 s" or a timedelta, to seconds."""
    return positive_us(value, what) / 1_000_000


def size_bytes(what: str, value: str | int) -> int:
    """Converts a positive size, such as "128m" or a number of bytes, to bytes."""
    try:
        size = parse_size_bytes(str(value))
    except ValueError:
        raise InvalidProgram(f"{what} is {value!r}; use a size such as '128m', or bytes") from None
    if size <= 0:
        raise InvalidProgram(f"{what} is {value!r}; it must be positive")
    return size


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Resolves a relative path against the program's working directory, not that of the slot that
    opens it. URIs are unchanged. Raises InvalidProgram for a path that is not valid UTF-8.
    """
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str):
        raise InvalidProgram(f"{path!r} is not a path: pass strings, such as 'folder/file.csv'")
    if printable(path) != path:
        raise InvalidProgram(
            f"the path '{printable(path)}' is not valid UTF-8, so Spark cannot open it; rename it"
        )
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))
