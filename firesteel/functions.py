"""Functions with state, for `ConnectedStreams.co_process`. Names follow PyFlink's; times are in
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import Row

    from firesteel.operator import Counter, TaskInfo


class ValueState(Protocol):
    """One value per key: whatever can be pickled, replaced by `update` and never changed in place."""

    def value(self) -> Any:
        """None if there is none."""

    def update(self, value: Any) -> None: ...

    def clear(self) -> None: ...


class ListState(Protocol):
    """A list per key."""

    def get(self) -> list[Any]:
        """A copy; empty if there is none."""

    def add(self, value: Any) -> None: ...

    def add_all(self, values: Iterable[Any]) -> None: ...

    def update(self, values: Iterable[Any]) -> None: ...

    def clear(self) -> None: ...


class MapState(Protocol):
    """A dictionary per key."""

    def get(self, key: Any) -> Any:
        """None if there is none."""

    def put(self, key: Any, value: Any) -> None: ...

    def contains(self, key: Any) -> bool: ...

    def remove(self, key: Any) -> None: ...

    def items(self) -> Iterator[tuple[Any, Any]]: ...

    def keys(self) -> Iterator[Any]: ...

    def values(self) -> Iterator[Any]: ...

    def is_empty(self) -> bool: ...

    def clear(self) -> None: ...


class FunctionContext(Protocol):
    """What `open` gets. A state belongs to whichever key is being processed when it is used; in
    `open` there is none.
    """

    @property
    def task(self) -> TaskInfo: ...

    def get_state(self, name: str) -> ValueState: ...

    def get_list_state(self, name: str) -> ListState: ...

    def get_map_state(self, name: str) -> MapState: ...

    def counter(self, name: str) -> Counter: ...


class FunctionTimers(Protocol):
    """Timers of the current key, in milliseconds since the epoch. One that is registered twice
    fires once.
    """

    def current_processing_time(self) -> int:
        """Stands still while a batch is processed."""

    def current_watermark(self) -> int: ...

    def register_event_time_timer(self, timestamp_ms: int) -> None: ...

    def register_processing_time_timer(self, timestamp_ms: int) -> None: ...

    def delete_event_time_timer(self, timestamp_ms: int) -> None: ...

    def delete_processing_time_timer(self, timestamp_ms: int) -> None: ...


class ProcessContext(Protocol):
    """What a CoProcessFunction may use while it processes a row or a timer."""

    def get_current_key(self) -> Any:
        """The value of the key column; a tuple if there are several."""

    def timer_service(self) -> FunctionTimers: ...

    def time_domain(self) -> str | None:
        """In `on_timer`: "event_time" or "processing_time"."""

    def output(self, tag: str, row: Row | tuple[Any, ...]) -> None:
        """To the side output `tag`, which `co_process(side_outputs=...)` declares."""


class CoProcessFunction:
    """Two keyed streams, one state per key: what PyFlink calls a KeyedCoProcessFunction.

    Rows come as `pyspark.sql.Row`, as batches bring them: in order for each key of an input; in
    which order inputs and keys come is not promised. Each method may yield Rows (matched by name)
    or tuples (by position) of the declared schema, or return None. Per row it costs a call in
    Python; for streams of many rows per key, `transform_with_state` is called once per key and
    batch.

    One object serves one subtask: it is unpickled there, then `open` is called, and `close` however
    it ends.
    """

    def open(self, context: FunctionContext) -> None:
        """Gets the states and whatever else is needed."""

    def process_element1(
        self, value: Row, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        raise NotImplementedError

    def process_element2(
        self, value: Row, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        raise NotImplementedError

    def on_timer(
        self, timestamp_ms: int, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Event-time timers fire when the watermark reaches them, all that are left when bounded
        input ends; then
        processing-time timers that are left fire no more."""

    def close(self) -> None:
        """Emits nothing."""
