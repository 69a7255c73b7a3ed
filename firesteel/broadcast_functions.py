"""Functions that process a stream of rows together with a broadcast stream, such as one of rules.

Names are those of PyFlink; times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from firesteel.functions import FunctionContext, ProcessContext

if TYPE_CHECKING:
    from pyspark.sql import Row


class BroadcastState(Protocol):
    """A map with the same content in all subtasks. Keys and values are picklable; replace a value
    with `put`, and never change it in place.

    `put`, `remove` and `clear` fail the job outside `process_broadcast_element`, because other
    subtasks would not see the change.
    """

    def get(self, key: Any) -> Any:
        """Returns the value of a key, or None if the map does not have it."""

    def contains(self, key: Any) -> bool:
        """Returns whether the map has the key."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Returns all pairs of key and value."""

    def keys(self) -> Iterator[Any]:
        """Returns the map's keys."""

    def values(self) -> Iterator[Any]:
        """Returns the map's values."""

    def is_empty(self) -> bool:
        """Returns whether the map has no keys."""

    def put(self, key: Any, value: Any) -> None:
        """Sets the value of a key."""

    def remove(self, key: Any) -> None:
        """Removes a key, if the map has it."""

    def clear(self) -> None:
        """Removes all keys."""


class BroadcastReadContext(ProcessContext, Protocol):
    """The context of a function while it processes a row or a timer. In a stream without keys, it
    has no timers.
    """

    def get_broadcast_state(self, name: str) -> BroadcastState:
        """Returns the state of this name, for reading. `broadcast(...)` declares it."""


class BroadcastWriteContext(BroadcastReadContext, Protocol):
    """The context of a function while it processes a row of the broadcast stream; it has no key."""

    def get_broadcast_state(self, name: str) -> BroadcastState:
        """Returns the state of this name, for reading and writing."""

    def apply_to_keyed_state(self, state: Any, function: Callable[[Any, Any], None]) -> None:
        """Calls `function(key, state)` for each key of this subtask that has a value of `state`,
        which `open` obtained, in no particular order. The function may change the key's state and
        register timers.
        """


class BroadcastProcessFunction:
    """Processes a stream without keys and a broadcast stream: PyFlink's BroadcastProcessFunction.

    Each subtask has a separate object, which gets its part of the rows and all rows of the
    broadcast stream. Rows of the broadcast stream change the broadcast state in the same way in all
    subtasks: `process_broadcast_element` must derive its writes from these rows alone. They are in
    order if the broadcast stream comes from one subtask; if it comes from several, their order may
    differ between subtasks.

    Rows are `pyspark.sql.Row`. Methods yield Rows (matched by name) or tuples (by position) of the
    declared schema, or return None. Every subtask emits the rows that its call of
    `process_broadcast_element` yields.
    """

    def open(self, context: FunctionContext) -> None:
        """Called once, before any row. There are no keyed states."""

    def process_element(
        self, value: Row, ctx: BroadcastReadContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called for each row of the stream. Returns or yields rows, or returns None."""
        raise NotImplementedError

    def process_broadcast_element(
        self, value: Row, ctx: BroadcastWriteContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called in each subtask for each row of the broadcast stream. Returns or yields rows, or
        returns None.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Releases resources; cannot emit."""


class KeyedBroadcastProcessFunction(BroadcastProcessFunction):
    """A BroadcastProcessFunction for a keyed stream, with states and timers per key like those of
    `CoProcessFunction`: PyFlink's KeyedBroadcastProcessFunction.
    """

    def on_timer(
        self, timestamp_ms: int, ctx: BroadcastReadContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called when a timer fires, as in `CoProcessFunction`."""
