"""Detects, from their code, which functions of a program set event-time timers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType
from typing import Any

IN_EVENT_TIME, IN_PROCESSING_TIME = (
    "register_event_time_timer",
    "register_processing_time_timer",
)
_WATERMARKS = frozenset({"current_watermark", "getCurrentWatermarkInMs"})
_NOT_THE_PROGRAMS = ("builtins", "firesteel", "pyspark")  # packages of base classes


def names_in(function: Any) -> frozenset[str]:
    """Returns the names and strings in the code of a function, or of the methods of an object.
    Functions that it calls elsewhere are not examined.
    """
    return frozenset(name for code in _codes(function) for name in _names(code))


def _codes(function: Any) -> Iterator[CodeType]:
    if isinstance(function, functools.partial):
        yield from _codes(function.func)
    elif isinstance(code := getattr(function, "__code__", None), CodeType):
        yield code
    else:
        methods: dict[str, Any] = {}
        for base in reversed(type(function).__mro__):
            if base.__module__.partition(".")[0] not in _NOT_THE_PROGRAMS:
                methods |= vars(base)
        for method in methods.values():
            plain = getattr(method, "__func__", method)  # of a class or static method
            if isinstance(code := getattr(plain, "__code__", None), CodeType):
                yield code


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _names(constant)


def reads_watermark(function: Any) -> bool:
    return bool(names_in(function) & _WATERMARKS)
