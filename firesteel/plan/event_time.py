"""Decides which operators need event time, from which column, and how joins before them provide it.

A pair that a join emits has the times of two rows, and the earlier one is behind the watermark by
as much as the join's bounds allow. A downstream operator takes the event time of the pair from one
column: from the one that is never behind, or else the join delays its watermark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from firesteel.operators import (
    ApplySpec,
    AsOfSpec,
    AssignWatermarksSpec,
    BroadcastProcessSpec,
    CoProcessSpec,
    DropDuplicatesSpec,
    IntervalSpec,
    JoinSpec,
    PartialWindowAggregateSpec,
    ProcessSpec,
    SameWindowSpec,
    SourceSpec,
    Spec,
    TransformWithStateSpec,
    WindowAggregateSpec,
    WindowApplySpec,
    WindowTopNSpec,
)
from firesteel.plan.stream_graph import StreamGraph, StreamNode
from firesteel.plan.timers import depends_on_lateness

_WINDOW_END = "window_end"


class NeededTime(NamedTuple):
    """An input whose rows must not be behind the watermark."""

    input: int
    column: str  # the event-time column; empty: only the program's function knows it


def needed_times(spec: Spec) -> list[NeededTime]:
    match spec:
        case PartialWindowAggregateSpec() if spec.in_event_time:
            return [NeededTime(0, spec.time_column)]
        case WindowApplySpec() | WindowTopNSpec() if not spec.window.processing_time:
            return [NeededTime(0, spec.time_column)]
        case DropDuplicatesSpec() if spec.within_us:
            return [NeededTime(0, spec.time_column)]
        case JoinSpec(within=IntervalSpec() | SameWindowSpec() | AsOfSpec() as within):
            return [NeededTime(side, column) for side, column in enumerate(within.times.columns)]
        case TransformWithStateSpec() | ProcessSpec() | BroadcastProcessSpec() if (
            depends_on_lateness(spec)
        ):
            return [NeededTime(0, "")]
        case CoProcessSpec() if depends_on_lateness(spec):
            return [NeededTime(0, ""), NeededTime(1, "")]
        case _:
            return []


def result_times(spec: JoinSpec) -> tuple[str, ...]:
    """Returns the event-time column of the result of a join with bounds in event time, if there is
    one. For an interval join, this is the column of the stream whose rows are all in the result,
    otherwise the later one of each pair, if that is always the same one.
    """
    if isinstance(spec.within, SameWindowSpec):
        return (_WINDOW_END,)
    assert isinstance(spec.within, IntervalSpec)
    times = spec.within.times
    if any(times.shifts_us) or spec.how == "full":
        return ()
    if any(spec.keeps):
        return times.columns[:1] if spec.how == "left" else times.columns[1:]
    if spec.within.upper_us <= 0:
        return times.columns[:1]
    return times.columns[1:] if spec.within.lower_us >= 0 else ()


def hold_watermarks_back(graph: StreamGraph) -> None:
    """Delays the watermarks of joins if a downstream operator takes event time from a column other
    than the one that is never behind the watermark.
    """
    for node in graph.nodes:
        for needed in needed_times(node.spec):
            for join in _joins_before(graph, node, needed.input):
                assert isinstance(join.spec, JoinSpec)
                times = result_times(join.spec)
                if not (needed.column in times if needed.column else times):
                    join.spec = dataclasses.replace(join.spec, held_us=most_behind_us(join.spec))


def most_behind_us(spec: JoinSpec) -> int:
    """Returns how far the earlier row of a pair may be behind the watermark."""
    if isinstance(spec.within, SameWindowSpec):
        return spec.within.window.size_us
    assert isinstance(spec.within, IntervalSpec)
    return max(spec.within.upper_us, -spec.within.lower_us, 0)


def _joins_before(graph: StreamGraph, node: StreamNode, number: int) -> Iterator[StreamNode]:
    """Yields joins with bounds in event time whose watermarks reach this input of the node."""
    waiting = [edge.source for edge in graph.in_edges(node) if edge.target_input == number]
    seen = set()
    while waiting:
        producer = waiting.pop()
        if producer in seen or _begins_event_time(producer.spec):
            continue
        seen.add(producer)
        match producer.spec:
            case JoinSpec(within=IntervalSpec() | SameWindowSpec()):
                yield producer
            case _:
                waiting += [edge.source for edge in graph.in_edges(producer)]


def _begins_event_time(spec: Spec) -> bool:
    """Whether its watermarks are independent of the times of its input rows."""
    match spec:
        case SourceSpec() | AssignWatermarksSpec() | ApplySpec():
            return True
        case WindowAggregateSpec() | WindowApplySpec() | WindowTopNSpec():
            return not spec.window.processing_time
        case _:
            return False
