"""Converts arrays and structs used as keys, which Arrow neither hashes nor compares, to Python
values that are equal where Spark considers the keys equal.
"""

from __future__ import annotations

from typing import Any


def comparable(value: Any, nan: Any = "NaN") -> Any:
    """Returns a hashable value: arrays and structs as tuples, -0.0 as 0.0, and `nan` for every NaN.
    Nulls in arrays and structs are equal.
    """
    if isinstance(value, dict):
        return tuple(comparable(part, nan) for part in value.values())
    if isinstance(value, list | tuple):
        return tuple(comparable(part, nan) for part in value)
    if isinstance(value, float):
        return nan if value != value else value + 0.0  # -0.0 + 0.0 is 0.0
    return value
