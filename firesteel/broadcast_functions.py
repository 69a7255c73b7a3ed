"""Functions that have a stream of rows and what a broadcast stream has told, such as rules.

Names are PyFlink's; times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from firesteel.functions import FunctionContext, ProcessContext

if TYPE_CHECKING:
    from pyspark.sql import Row


class BroadcastState(Protocol):
    """A map that all subtasks have alike. Keys and values are picklable; replace a value with
    `put`, and never change it in place.

    `put`, `remove` and `clear` fail the job anywhere but in `process_broadcast_element`: what one
    subtask wrote otherwise, the others would not have.
    """

    def get(self, key: Any) -> Any:
        """None if there is none."""

    def contains(self, key: Any) -> bool:
        """Whether the map has the key."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All pairs of key and value."""

    def keys(self) -> Iterator[Any]:
        """The map's keys."""

    def values(self) -> Iterator[Any]:
        """The map's values."""

    def is_empty(self) -> bool:
        """Whether the map has no key."""

    def put(self, key: Any, value: Any) -> None:
        """Sets the value of a key."""

    def remove(self, key: Any) -> None:
        """Removes a key, if the map has it."""

    def clear(self) -> None:
        """Empties the map."""


class BroadcastReadContext(ProcessContext, Protocol):
    """What a function has at hand while it processes a row or a timer. Without keys, it has no
    timers.
    """

    def get_broadcast_state(self, name: str) -> BroadcastState:
        """The state of this name, to read. `broadcast(...)` declares it."""


class BroadcastWriteContext(BroadcastReadContext, Protocol):
    """What a function has at hand while it processes a row of the broadcast stream: no key."""

    def get_broadcast_state(self, name: str) -> BroadcastState:
        """The state of this name, to read and write."""

    def apply_to_keyed_state(self, state: Any, function: Callable[[Any, Any], None]) -> None:
        """Calls `function(key, state)` for each key of this subtask that has a value of a state
        that `open` got, in no particular order. It may change the state of the key, and register
        timers.
        """


class BroadcastProcessFunction:
    """Processes a stream without keys, and a broadcast stream: PyFlink's BroadcastProcessFunction.

    Each subtask has an object of its own, gets its part of the rows, and all rows of the broadcast
    stream. Those change the broadcast state, in the same way in all subtasks: what
    `process_broadcast_element` writes must follow from the rows alone. They are in order if the
    broadcast stream comes from one subtask; of several, each subtask may get them in another order.

    Rows are `pyspark.sql.Row`. Methods yield Rows (matched by name) or tuples (by position) of the
    declared schema, or return None. What the broadcast stream's method yields, each subtask emits.
    """

    def open(self, context: FunctionContext) -> None:
        """Called once, before any row. There are no states per key."""

    def process_element(
        self, value: Row, ctx: BroadcastReadContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called for each row of the stream; returns or yields rows, or None."""
        raise NotImplementedError

    def process_broadcast_element(
        self, value: Row, ctx: BroadcastWriteContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called in each subtask for each row of the broadcast stream; returns or yields rows, or
        None.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Releases resources; cannot emit."""


class KeyedBroadcastProcessFunction(BroadcastProcessFunction):
    """A BroadcastProcessFunction for a keyed stream, with states and timers per key, as a
    `CoProcessFunction` has them: PyFlink's KeyedBroadcastProcessFunction.
    """

    def on_timer(
        self, timestamp_ms: int, ctx: BroadcastReadContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called when a timer fires, as that of a `CoProcessFunction`."""
