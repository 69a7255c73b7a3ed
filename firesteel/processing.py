"""Checks the arguments of `process` while the program is built."""

from __future__ import annotations

from typing import Any

from firesteel.broadcast_functions import BroadcastProcessFunction
from firesteel.errors import InvalidProgram
from firesteel.functions import CoProcessFunction, KeyedProcessFunction, ProcessFunction
from firesteel.operators import ProcessSpec, RowTimeSpec


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
