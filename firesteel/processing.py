"""Checks the arguments of `process`, `broadcast` and `transform_with_state` while the program is
built.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from firesteel.broadcast_functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from firesteel.errors import InvalidProgram
from firesteel.functions import CoProcessFunction, KeyedProcessFunction, ProcessFunction
from firesteel.operators import (
    BroadcastProcessSpec,
    ProcessSpec,
    RowTimeSpec,
    SourceSpec,
    TransformWithStateSpec,
)
from firesteel.plan.stream_graph import StreamGraph, StreamNode


def process_spec(
    function: Any,
    key_columns: tuple[str, ...] | None,
    schema: Any,
    side_outputs: dict[str, Any],
    time: RowTimeSpec | None,
) -> ProcessSpec:
    """`key_columns` is None if the stream is not keyed. Raises InvalidProgram."""
    wanted = ProcessFunction if key_columns is None else KeyedProcessFunction
    if not isinstance(function, wanted):
        raise InvalidProgram(f"process(): {_wrong(function, keyed=key_columns is not None)}")
    if schema is None:
        raise InvalidProgram(
            'process() needs the output schema of the function, such as "id STRING, count INT"'
        )
    return ProcessSpec(
        function=function,
        key_columns=key_columns,
        schema=schema,
        side_outputs=side_outputs,
        time=time,
    )


def _wrong(function: Any, *, keyed: bool) -> str:
    name = type(function).__name__
    match function:
        case KeyedProcessFunction():
            return f"{name} is a KeyedProcessFunction: call key_by(...).process({name}(...), ...)"
        case ProcessFunction():
            return f"{name} takes rows without keys: derive it from KeyedProcessFunction"
        case CoProcessFunction():
            return (
                f"{name} is a CoProcessFunction, which takes two streams: call"
                f" connect(other).key_by(...).co_process({name}(...), ...)"
            )
        case BroadcastProcessFunction():
            return (
                f"{name} takes a broadcast stream as well: call"
                f' connect(rules.broadcast("rules")).process({name}(...), ...)'
            )
        case type():
            return f"it takes an object, not its class: {function.__name__}(...)"
        case _ if hasattr(function, "handleInputRows"):
            return f"{name} is a StatefulProcessor: call transform_with_state(...)"
        case _ if callable(function) and not hasattr(function, "process_element"):
            return (
                f"{getattr(function, '__name__', name)} is a function; pass it to map(...) or"
                " flat_map(...), or derive a class from"
                f" {'KeyedProcessFunction' if keyed else 'ProcessFunction'}"
            )
        case _:
            return (
                f"it takes a {'KeyedProcessFunction' if keyed else 'ProcessFunction'} of"
                f" firesteel, not {name} {function!r:.100}"
            )


# PySpark's spellings ("EventTime") are also accepted.
_TIME_MODES = {"none": "none", "processingtime": "processing_time", "eventtime": "event_time"}
_OUTPUT_MODES = ("append", "update")


_PYSPARK = {
    "statefulProcessor": "processor",
    "outputStructType": "output_schema",
    "outputMode": "output_mode",
    "timeMode": "time_mode",
    "initialState": "initial_state",
}
Method = TypeVar("Method", bound=Callable[..., Any])


def pyspark_arguments(method: Method) -> Method:
    """Lets a method also accept arguments by their PySpark names."""

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        where = method.__name__
        for theirs in _PYSPARK.keys() & named.keys():
            ours = _PYSPARK[theirs]
            if ours in named:
                raise InvalidProgram(f"{where}(): {theirs} is {ours}; pass only one of them")
            named[ours] = named.pop(theirs)
        if column := named.pop("eventTimeColumnName", None):
            raise InvalidProgram(
                f"{where}(): eventTimeColumnName={column!r} is not supported; name the event-time"
                f" column where it is used: Tumbling(..., on={column!r})"
            )
        return method(*arguments, **named)

    return cast(Method, call)


def transform_with_state_spec(
    graph: StreamGraph,
    *,
    processor: Any,
    key_columns: tuple[str, ...],
    output_schema: Any,
    output_mode: str,
    time_mode: str,
    pandas: bool,
    nodes: Sequence[StreamNode],
    late_column: str,
    initial_key_columns: tuple[str, ...] | None,
    initial_nodes: Sequence[StreamNode],
) -> TransformWithStateSpec:
    """`nodes` and `initial_nodes` are the producers of the stream and of its initial state.

    Raises InvalidProgram.
    """
    where = "transform_with_state_in_pandas" if pandas else "transform_with_state"
    _check_processor(where, processor)
    if output_schema is None:
        raise InvalidProgram(
            f'{where}() needs the output schema of the processor, such as "id STRING, count INT"'
        )
    if not isinstance(output_mode, str) or output_mode.lower() not in _OUTPUT_MODES:
        raise InvalidProgram(
            f'{where}(): output_mode is {output_mode!r}; allowed: "append", "update"'
        )
    mode = _TIME_MODES.get(str(time_mode).lower().replace("_", ""))
    if mode is None:
        raise InvalidProgram(
            f"{where}(): time_mode is {time_mode!r};"
            ' allowed: "none", "processing_time", "event_time"'
        )
    upstream = _upstream(graph, nodes)
    if mode == "event_time" and not _has_event_time(upstream):
        raise InvalidProgram(
            f'{where}(): time_mode="event_time" needs watermarks, and the sources have none; '
            "give the source watermarks=Watermarks.bounded(...)"
        )
    if initial_key_columns is not None:
        _check_initial_state(
            where, key_columns, upstream, initial_key_columns, _upstream(graph, initial_nodes)
        )
    return TransformWithStateSpec(
        processor=processor,
        key_columns=key_columns,
        output_schema=output_schema,
        output_mode=output_mode.lower(),
        time_mode=mode,
        pandas=pandas,
        late_column=late_column,
        initial_key_columns=initial_key_columns,
    )


def _check_processor(where: str, processor: Any) -> None:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    if isinstance(processor, type) and issubclass(processor, StatefulProcessor):
        raise InvalidProgram(
            f"{where}() takes a StatefulProcessor, not its class: {processor.__name__}(...)"
        )
    if not isinstance(processor, StatefulProcessor):
        raise InvalidProgram(
            f"{where}() takes a pyspark.sql.streaming.StatefulProcessor,"
            f" not {type(processor).__name__}"
        )


def _check_initial_state(
    where: str,
    key_columns: tuple[str, ...],
    upstream: Iterable[StreamNode],
    initial_key_columns: tuple[str, ...],
    initial_upstream: Sequence[StreamNode],
) -> None:
    if len(initial_key_columns) != len(key_columns):
        raise InvalidProgram(
            f"{where}(): the stream is keyed by {', '.join(key_columns)} and initial_state by"
            f" {', '.join(initial_key_columns)}; key both by the same number of columns"
        )
    shared = [node for node in upstream if node in initial_upstream]
    if shared:
        raise InvalidProgram(
            f"{where}(): initial_state and the stream itself both come from {shared[0]};"
            " the initial state is read to its end before the stream starts,"
            " so it needs a separate source"
        )
    groups = _alignment_groups(upstream) & _alignment_groups(initial_upstream)
    if groups:
        raise InvalidProgram(
            f"{where}(): initial_state and the stream itself have sources in the alignment group"
            f" {min(groups)!r}; the initial state is read to its end before the stream starts,"
            " so they would wait for each other forever"
        )
    for node in initial_upstream:
        if isinstance(node.spec, SourceSpec) and not node.spec.bounded:
            raise InvalidProgram(
                f"{where}(): initial_state must end before the stream starts, and {node} never ends"
            )


def _upstream(graph: StreamGraph, nodes: Sequence[StreamNode]) -> list[StreamNode]:
    """Returns the nodes and all of their producers."""
    upstream: list[StreamNode] = []
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in upstream:
            upstream.append(node)
            waiting += [edge.source for edge in graph.in_edges(node)]
    return upstream


def _has_event_time(nodes: Iterable[StreamNode]) -> bool:
    """Whether there is event time; custom operators may emit watermarks."""
    return any(node.spec.emits_watermarks is not False for node in nodes)


def _alignment_groups(nodes: Iterable[StreamNode]) -> set[str]:
    alignments = (node.spec.watermark_alignment for node in nodes)
    return {alignment.group for alignment in alignments if alignment is not None}


def checked_names(names: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns the names of broadcast states. Raises InvalidProgram if they are invalid."""
    for name in names:
        if not isinstance(name, str) or not name or name.startswith("firesteel."):
            raise InvalidProgram(
                f"broadcast({name!r}): name the states that the rows change with strings that"
                ' do not start with "firesteel.", such as broadcast("rules")'
            )
    if len(set(names)) < len(names):
        raise InvalidProgram(f"broadcast{names!r}: a state is named twice")
    return names


def broadcast_process_spec(
    function: Any,
    key_columns: tuple[str, ...] | None,
    states: tuple[str, ...],
    schema: Any,
    side_outputs: dict[str, Any],
    times: tuple[RowTimeSpec | None, RowTimeSpec | None],
) -> BroadcastProcessSpec:
    """`key_columns` are those of the stream that is not broadcast, or None if it is not keyed.
    Raises InvalidProgram.
    """
    if not isinstance(function, BroadcastProcessFunction):
        raise InvalidProgram(
            "process() takes a BroadcastProcessFunction, or for a keyed stream a"
            f" KeyedBroadcastProcessFunction, not {type(function).__name__} {function!r}"
        )
    if (key_columns is not None) != isinstance(function, KeyedBroadcastProcessFunction):
        problem = (
            "takes the rows of keys: call key_by(...) before connect(...), or derive it from"
            " BroadcastProcessFunction"
            if key_columns is None
            else "takes rows without keys: derive it from KeyedBroadcastProcessFunction, or leave"
            " out key_by(...)"
        )
        raise InvalidProgram(f"process(): {type(function).__name__} {problem}")
    if schema is None:
        raise InvalidProgram(
            'process() needs the output schema of the function, such as "id STRING, count INT"'
        )
    return BroadcastProcessSpec(
        function=function,
        key_columns=key_columns,
        states=states,
        schema=schema,
        side_outputs=side_outputs,
        times=times,
    )
