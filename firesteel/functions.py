"""Functions of rows that have side outputs and, per key, states and timers: for `process` and
`ConnectedStreams.co_process`.

Names are PyFlink's; times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.types import DataType

    from firesteel.operator import Counter, TaskInfo
    from firesteel.state import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )


class ValueState(Protocol):
    """One picklable value per key. Replace it with `update`; never change it in place."""

    def value(self) -> Any:
        """None if there is none."""

    def update(self, value: Any) -> None:
        """Replaces the value."""

    def clear(self) -> None:
        """Removes the value."""


class ListState(Protocol):
    """A list per key."""

    def get(self) -> list[Any]:
        """A copy; empty if there is none."""

    def __iter__(self) -> Iterator[Any]: ...

    def add(self, value: Any) -> None:
        """Appends one value."""

    def add_all(self, values: Iterable[Any]) -> None:
        """Appends several values."""

    def update(self, values: Iterable[Any]) -> None:
        """Replaces the list."""

    def clear(self) -> None:
        """Empties the list."""


class MapState(Protocol):
    """A dictionary per key. It also has a dictionary's operators, such as `state[key] = value`."""

    def get(self, key: Any) -> Any:
        """None if there is none."""

    def put(self, key: Any, value: Any) -> None:
        """Sets the value of a map's key."""

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        """Sets the values of several keys."""

    def contains(self, key: Any) -> bool:
        """Whether the map has the key."""

    def remove(self, key: Any) -> None:
        """Removes a key, if the map has it."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All pairs of key and value."""

    def keys(self) -> Iterator[Any]:
        """The map's own keys."""

    def values(self) -> Iterator[Any]:
        """The map's values."""

    def is_empty(self) -> bool:
        """Whether the map has no key."""

    def clear(self) -> None:
        """Empties the map."""

    def __getitem__(self, key: Any) -> Any: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __delitem__(self, key: Any) -> None: ...

    def __contains__(self, key: Any) -> bool: ...

    def __iter__(self) -> Iterator[Any]: ...


class ReducingState(Protocol):
    """One value per key, into which those that are added are combined."""

    def get(self) -> Any:
        """None if nothing was added."""

    def add(self, value: Any) -> None:
        """Combines the value with the one that is kept."""

    def clear(self) -> None:
        """Removes the value."""


class AggregatingState(Protocol):
    """One accumulator per key."""

    def get(self) -> Any:
        """The result of the values that were added; None if there are none."""

    def add(self, value: Any) -> None:
        """Adds the value to the accumulator."""

    def clear(self) -> None:
        """Removes the accumulator."""


class FunctionContext(Protocol):
    """The argument of `open`: PyFlink's RuntimeContext. A state is that of the key being processed;
    `open` has none.

    States are described by descriptors (see `firesteel.state`), or by a name and a schema.
    """

    @property
    def task(self) -> TaskInfo:
        """The task that the function runs in."""

    def get_state(
        self, state: ValueStateDescriptor | str, schema: str | DataType | None = None
    ) -> ValueState:
        """The value state of this name; created on first use.

        `schema`, in `open` only: the type of its values, such as "BIGINT", or columns, of which
        values are tuples: "pieces BIGINT, at DATE". Then other values are refused, a savepoint
        shows columns, and a later program may add columns or widen types.
        """

    def get_list_state(
        self, state: ListStateDescriptor | str, schema: str | DataType | None = None
    ) -> ListState:
        """The list state of this name; created on first use. `schema`: of its elements."""

    def get_map_state(
        self,
        state: MapStateDescriptor | str,
        schema: str | DataType | None = None,
        key_schema: str | DataType | None = None,
    ) -> MapState:
        """The map state of this name; created on first use. `schema`: of its values; `key_schema`:
        of its keys.
        """

    def get_reducing_state(self, state: ReducingStateDescriptor) -> ReducingState:
        """The reducing state of this descriptor; created on first use."""

    def get_aggregating_state(self, state: AggregatingStateDescriptor) -> AggregatingState:
        """The aggregating state of this descriptor; created on first use."""

    def get_task_name(self) -> str:
        """The name of the task's vertex."""

    def get_task_name_with_subtasks(self) -> str:
        """The name with the subtask, the parallelism and the attempt."""

    def get_index_of_this_subtask(self) -> int:
        """The index of the subtask, from 0 on."""

    def get_number_of_parallel_subtasks(self) -> int:
        """The parallelism."""

    def get_max_number_of_parallel_subtasks(self) -> int:
        """The number of key groups."""

    def get_attempt_number(self) -> int:
        """The attempt of the task, from 0 on."""

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """The job's configuration value under this key, or the default."""

    def counter(self, name: str) -> Counter:
        """A counter, exposed as flink_taskmanager_job_task_operator_<name>."""


class FunctionTimers(Protocol):
    """Timers of the current key, in milliseconds since the epoch.

    A timer that is registered twice fires once.
    """

    def current_processing_time(self) -> int:
        """Does not advance while a batch is processed."""

    def current_watermark(self) -> int:
        """The event time that all inputs have reached."""

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Calls `on_timer` when the watermark reaches this time."""

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Calls `on_timer` at this time of the machine's clock."""

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Deletes the timer, if it has been registered and has not fired."""

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Deletes the timer, if it has been registered and has not fired."""


class ProcessContext(Protocol):
    """The context of a function while it processes a row or a timer."""

    def get_current_key(self) -> Any:
        """The value of the key column; a tuple if there are several."""

    def timer_service(self) -> FunctionTimers:
        """Timers of the current key."""

    def timestamp(self) -> int | None:
        """The row's event time in milliseconds, from the column that the stream's watermarks are
        of; in `on_timer`, the time of the timer. None if the stream has no event time, or if its
        sources have several such columns.
        """

    def time_domain(self) -> str | None:
        """In `on_timer`: "event_time" or "processing_time"."""

    def output(self, tag: str, row: Row | tuple[Any, ...] | dict[str, Any]) -> None:
        """Emits to the side output `tag`, which `process(side_outputs=...)` declares."""


class ProcessFunction:
    """Processes the rows of a stream one by one, with side outputs: PyFlink's ProcessFunction.

    It has neither states nor timers: those belong to keys, which a `KeyedProcessFunction` has.
    Otherwise as there.
    """

    def open(self, runtime_context: FunctionContext) -> None:
        """Called once, before any row."""

    def process_element(
        self, value: Row, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...] | dict[str, Any]] | None:
        """Called for each row; returns or yields rows, or None."""
        raise NotImplementedError

    def close(self) -> None:
        """Releases resources; cannot emit."""


class KeyedProcessFunction:
    """Processes the rows of a keyed stream one by one, with states and timers per key: PyFlink's
    KeyedProcessFunction.

    Rows are `pyspark.sql.Row`: `value.pieces`, `value["pieces"]` and `value[1]` work. Those of one
    key are processed in order; there is no order among keys. `process_element` and `on_timer` yield
    Rows or dictionaries (matched by name) or tuples (by position) of the declared schema, return a
    list of them, or return None. Every row is a call in Python; for many rows per key,
    `transform_with_state` is called only once per key and batch.

    Each subtask has a separate object: it is unpickled there, `open` is called, and `close` at the
    end, also after a failure. Before data flows, both are called on a different object as well:
    so a wrong type of a state is found early.
    """

    def open(self, runtime_context: FunctionContext) -> None:
        """Called once, before any row: gets the states."""

    def process_element(
        self, value: Row, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...] | dict[str, Any]] | None:
        """Called for each row; returns or yields rows, or None."""
        raise NotImplementedError

    def on_timer(
        self, timestamp: int, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...] | dict[str, Any]] | None:
        """Called when a timer fires, in milliseconds since the epoch.

        Event-time timers fire when the watermark reaches them, the remaining ones when bounded
        input ends: in a batch all of them, since it has no watermarks before. Processing-time
        timers that remain then do not fire.
        """

    def close(self) -> None:
        """Releases resources; cannot emit."""


class CoProcessFunction:
    """Processes two keyed streams with one state per key: PyFlink's KeyedCoProcessFunction.

    Rows are `pyspark.sql.Row`. Those of one key and input are processed in order; there is no order
    among inputs and keys. Each method yields Rows (matched by name) or tuples (by position) of the
    declared schema, or returns None. Every row is a call in Python; for many rows per key,
    `transform_with_state` is called only once per key and batch.

    Each subtask has an object of its own: it is unpickled there, `open` is called, and `close` in
    the end, also after a failure. Both are called once more before data flows, on another object:
    so a wrong schema of a state is found early.
    """

    def open(self, context: FunctionContext) -> None:
        """Called once, before any row: gets the states."""

    def process_element1(
        self, value: Row, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called for each row of the first stream; returns or yields rows, or None."""
        raise NotImplementedError

    def process_element2(
        self, value: Row, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called for each row of the second stream; returns or yields rows, or None."""
        raise NotImplementedError

    def on_timer(
        self, timestamp_ms: int, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called when a timer fires.

        Event-time timers fire when the watermark reaches them, the remaining ones when bounded
        input ends: in a batch all of them, since it has no watermarks before. Processing-time
        timers that remain then do not fire.
        """

    def close(self) -> None:
        """Releases resources; cannot emit."""
