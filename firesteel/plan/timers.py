"""Detects, from their code, which functions of a program set event-time timers, and when these are
due in a batch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any, TypeAlias

from firesteel.broadcast_functions import KeyedBroadcastProcessFunction
from firesteel.common.config import options
from firesteel.common.job_graph import ResultType
from firesteel.functions import CoProcessFunction, KeyedProcessFunction
from firesteel.operators import (
    BroadcastProcessSpec,
    CoProcessSpec,
    ProcessSpec,
    Spec,
    TransformWithStateSpec,
)
from firesteel.plan.stream_graph import StreamGraph

_IN_EVENT_TIME, _IN_PROCESSING_TIME = (
    "register_event_time_timer",
    "register_processing_time_timer",
)
_WATERMARKS = frozenset({"current_watermark", "getCurrentWatermarkInMs"})
_WithFunction: TypeAlias = ProcessSpec | CoProcessSpec | BroadcastProcessSpec
_NOT_THE_PROGRAMS = ("builtins", "firesteel", "pyspark")  # packages of base classes


def due_at_the_end(graph: StreamGraph, result_type: ResultType) -> Iterable[str]:
    """Yields warnings about operators of a batch whose timers are due after all rows, because
    blocking results have no watermarks. `result_type` applies to edges for which the program sets
    none.
    """
    for node in graph.nodes:
        if not may_set_event_timers(node.spec):
            continue
        types = [edge.result_type or result_type for edge in graph.in_edges(node)]
        if ResultType.BLOCKING in types:
            yield (
                f"{node} may set timers in event time: in a batch, they are due when all rows have"
                " been processed, not between them, so its rows may differ from those of a stream;"
                f" make sure that they do not, or run it as a stream ({options.RUNTIME_MODE.key}:"
                " STREAMING)"
            )


def may_set_event_timers(spec: Spec) -> bool:
    """Whether its function may set event-time timers, directly or in a function that it calls."""
    if isinstance(spec, TransformWithStateSpec):
        return spec.time_mode == "event_time"
    if not isinstance(spec, _WithFunction) or not _has_timers(spec):
        return False
    names = names_in(spec.function)
    return _IN_EVENT_TIME in names or _IN_PROCESSING_TIME not in names


def depends_on_lateness(spec: TransformWithStateSpec | _WithFunction) -> bool:
    """Whether its function sets event-time timers without reading the watermark: so it treats rows
    as late as the timers are early.
    """
    if isinstance(spec, TransformWithStateSpec):
        sets, names = spec.time_mode == "event_time", names_in(spec.processor)
    else:
        names = names_in(spec.function)
        sets = _has_timers(spec) and _IN_EVENT_TIME in names
    return sets and not names & _WATERMARKS


def _has_timers(spec: _WithFunction) -> bool:
    if not isinstance(spec, CoProcessSpec) and spec.key_columns is None:
        return False
    bases = KeyedProcessFunction, CoProcessFunction, KeyedBroadcastProcessFunction
    return all(type(spec.function).on_timer is not base.on_timer for base in bases)


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
