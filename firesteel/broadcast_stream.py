"""Checks the arguments of broadcast streams while the program is built."""

from __future__ import annotations

from typing import Any

from firesteel.broadcast_functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from firesteel.errors import InvalidProgram
from firesteel.operators import BroadcastProcessSpec, RowTimeSpec


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


def process_spec(
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
