"""Process functions of the program, with states and timers per key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimeSpec:
    """The event-time column of an input, and the offset to add to its values (see
    PartialWindowAggregateSpec).
    """

    column: str
    shift_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """Calls `function`, a firesteel.functions.ProcessFunction or, with key columns, a
    KeyedProcessFunction.
    """

    function: Any
    key_columns: tuple[str, ...] | None
    schema: Any
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
    time: RowTimeSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoProcessSpec:
    """Calls `function`, a firesteel.functions.CoProcessFunction, over two keyed inputs."""

    function: Any
    first_key_columns: tuple[str, ...]
    second_key_columns: tuple[str, ...]
    schema: Any
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
    times: tuple[RowTimeSpec | None, RowTimeSpec | None] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastProcessSpec:
    """Calls `function`, a firesteel.BroadcastProcessFunction, over an input and a second one that
    is broadcast; with key columns, a KeyedBroadcastProcessFunction.
    """

    function: Any
    key_columns: tuple[str, ...] | None  # of the first input
    states: tuple[str, ...]  # names of the broadcast states
    schema: Any
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
    broadcast_first: bool = False  # in batch mode: it is read to its end before the first input
    times: tuple[RowTimeSpec | None, RowTimeSpec | None] = (None, None)
