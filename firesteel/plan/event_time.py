"""Checks and adapts operators to the event time of their inputs.

A pair that a join emits has the times of two rows, and the earlier one is behind the watermark by
as much as the join's bounds allow. A downstream operator takes the event time of the pair from one
column: from the one that is never behind, or else the join delays its watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from firesteel.errors import InvalidProgram
from firesteel.operators import AssignWatermarksSpec, SourceSpec
from firesteel.operators.watermarks import MULTIPLE_WATERMARK_POLICY
from firesteel.plan.stream_graph import StreamGraph, StreamNode


def hold_watermarks_back(graph: StreamGraph) -> None:
    """Delays the watermarks of joins if a downstream operator takes event time from a column other
    than the one that is never behind the watermark.
    """
    for node in graph.nodes:
        for needed in node.spec.needed_times:
            for join, times in _joins_before(graph, node, needed.input):
                if not (needed.column in times if needed.column else times):
                    join.spec = join.spec.with_delayed_watermark()


def _joins_before(
    graph: StreamGraph, node: StreamNode, number: int
) -> Iterator[tuple[StreamNode, tuple[str, ...]]]:
    """Yields joins with bounds in event time whose watermarks reach this input of the node, and
    their event-time columns.
    """
    waiting = [edge.source for edge in graph.in_edges(node) if edge.target_input == number]
    seen = set()
    while waiting:
        producer = waiting.pop()
        if producer in seen or producer.spec.begins_event_time:
            continue
        seen.add(producer)
        times = producer.spec.result_times
        if times is not None:
            yield producer, times
        else:
            waiting += [edge.source for edge in graph.in_edges(producer)]


def report_idle_sources(graph: StreamGraph, config: Mapping[str, str]) -> dict[str, str]:
    """Makes all sources report that they have caught up, if an operator needs it. Returns the
    configuration, with the policy that combines the watermarks of several inputs.
    """
    if not any(node.spec.needs_idle_sources for node in graph.nodes):
        return dict(config)
    for node in graph.nodes:
        if isinstance(node.spec, SourceSpec):
            node.spec = replace(node.spec, reports_idle=True)
    return {MULTIPLE_WATERMARK_POLICY: "min", **config}


def growing_states(graph: StreamGraph) -> Iterable[str]:
    """Yields warnings about operators of a stream that keep a growing number of rows."""
    for node in graph.nodes:
        if node.spec.keeps_until_watermark:
            if without := _without_watermarks(graph, node):
                yield (
                    f"{node} keeps rows until the watermarks of both its streams have passed"
                    f" them, and {without[0]}, which {_end_of(without[0])}, has none;"
                    f" {_GIVE_WATERMARKS}"
                )
        elif instead := node.spec.instead_of_growing:
            endless = [source for source in graph.leading_to([node]).nodes if _may_not_end(source)]
            if endless := sorted(endless, key=_may_end):
                yield (
                    f"{node} keeps all rows of its streams forever, and {endless[0]}"
                    f" {_end_of(endless[0])}; bound what it keeps with {instead}"
                )


def late_between_partitions(graph: StreamGraph) -> Iterable[str]:
    """Yields warnings about watermarks that are assigned to the mixed rows of partitions."""
    for node in graph.nodes:
        if not isinstance(node.spec, AssignWatermarksSpec):
            continue
        before = [each for each in graph.leading_to([node]).nodes if each is not node]
        if any(each.spec.emits_watermarks for each in before):
            continue
        for source in before:
            if isinstance(source.spec, SourceSpec) and source.spec.source.has_partitions:
                yield (
                    f"{node} sees the rows of all partitions of {source} mixed: those of one that"
                    " is read later than others are late, and windows drop them. Pass the"
                    " watermarks to the source, which keeps one for each partition:"
                    " from_source(..., watermarks=Watermarks.bounded(...)), with a column of its"
                    " format"
                )


def check_event_times(graph: StreamGraph) -> None:
    """Checks that operators that wait for watermarks get some. Raises InvalidProgram for joins
    whose rows, or those without a match, would never be emitted.
    """
    for node in graph.nodes:
        waiting = node.spec.waits_for_watermarks
        if not waiting:
            continue
        # A watched folder is idle at times, and then does not hold back the other stream's
        # watermarks.
        timed = any(each.spec.emits_watermarks for each in graph.leading_to([node]).nodes)
        for source in _without_watermarks(graph, node):
            assert isinstance(source.spec, SourceSpec)
            if not source.spec.ends_at_run_time and not (timed and source.spec.watched):
                raise InvalidProgram(
                    f"{node}: {waiting} are emitted when the watermarks of both its streams have"
                    f" passed them, and {source}, which {_end_of(source)}, has none, so they would"
                    f" never be emitted; {_GIVE_WATERMARKS}"
                )


_GIVE_WATERMARKS = (
    "assign watermarks: from_source(..., watermarks=Watermarks.bounded(...)), or"
    " assign_timestamps_and_watermarks(...) before the join"
)


def _without_watermarks(graph: StreamGraph, join: StreamNode) -> list[StreamNode]:
    """Returns the sources of a join's streams that have no watermarks and may not end; first those
    that certainly do not end.
    """
    sources: list[StreamNode] = []
    waiting, seen = [edge.source for edge in graph.in_edges(join)], set()
    while waiting:
        node = waiting.pop(0)
        if node in seen or node.spec.emits_watermarks is not False:
            continue
        seen.add(node)
        waiting += [edge.source for edge in graph.in_edges(node)]
        if _may_not_end(node):
            sources.append(node)
    return sorted(sources, key=_may_end)


def _may_not_end(node: StreamNode) -> bool:
    """Whether it is a source that does not or may not end."""
    return isinstance(node.spec, SourceSpec) and (
        node.spec.ends_at_run_time or not node.spec.bounded
    )


def _may_end(source: StreamNode) -> bool:
    """Whether a source that may not end is known to end only at run time."""
    return isinstance(source.spec, SourceSpec) and source.spec.bounded


def _end_of(source: StreamNode) -> str:
    if _may_end(source):
        return "never ends unless its reader has a method isFinished()"
    return "never ends"
