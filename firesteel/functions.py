"""Functions of rows with side outputs and, per key, states and timers: for `process` and
`ConnectedStreams.co_process`.

Names are those of PyFlink; times are in milliseconds.
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
    """Holds one picklable value per key. Replace it with `update`; never change it in place."""

    def value(self) -> Any:
        """Returns the value, or None if there is none."""

    def update(self, value: Any) -> None:
        """Replaces the value."""

    def clear(self) -> None:
        """Removes the value."""


class ListState(Protocol):
    """Holds a list per key."""

    def get(self) -> list[Any]:
        """Returns a copy of the list; empty if there is none."""

    def __iter__(self) -> Iterator[Any]: ...

    def add(self, value: Any) -> None:
        """Appends one value."""

    def add_all(self, values: Iterable[Any]) -> None:
        """Appends several values."""

    def update(self, values: Iterable[Any]) -> None:
        """Replaces the list."""

    def clear(self) -> None:
        """Removes all elements."""


class MapState(Protocol):
    """Holds a dictionary per key. Supports a dictionary's operators, such as `state[key] =
    value`.
    """

    def get(self, key: Any) -> Any:
        """Returns the value of a map's key, or None if there is none."""

    def put(self, key: Any, value: Any) -> None:
        """Sets the value of a map's key."""

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        """Sets the values of several keys."""

    def contains(self, key: Any) -> bool:
        """Returns whether the map has the key."""

    def remove(self, key: Any) -> None:
        """Removes a key, if the map has it."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Returns all pairs of key and value."""

    def keys(self) -> Iterator[Any]:
        """Returns the map's own keys."""

    def values(self) -> Iterator[Any]:
        """Returns the map's values."""

    def is_empty(self) -> bool:
        """Returns whether the map has no keys."""

    def clear(self) -> None:
        """Removes all keys."""

    def __getitem__(self, key: Any) -> Any: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __delitem__(self, key: Any) -> None: ...

    def __contains__(self, key: Any) -> bool: ...

    def __iter__(self) -> Iterator[Any]: ...


class ReducingState(Protocol):
    """Holds one value per key and combines added values into it."""

    def get(self) -> Any:
        """Returns the value, or None if nothing was added."""

    def add(self, value: Any) -> None:
        """Combines the value with the stored one."""

    def clear(self) -> None:
        """Removes the value."""


class AggregatingState(Protocol):
    """Holds one accumulator per key."""

    def get(self) -> Any:
        """Returns the result of the added values, or None if there are none."""

    def add(self, value: Any) -> None:
        """Adds the value to the accumulator."""

    def clear(self) -> None:
        """Removes the accumulator."""


class FunctionContext(Protocol):
    """The argument of `open`: PyFlink's RuntimeContext. A state belongs to the key being processed;
    in `open` there is no key.

    States are described by descriptors (see `firesteel.state`), or by a name and a schema.
    """

    @property
    def task(self) -> TaskInfo:
        """The task that runs the function."""

    def get_state(
        self, state: ValueStateDescriptor | str, schema: str | DataType | None = None
    ) -> ValueState:
        """Returns the value state of this name, which is created on first use.

        `schema`, allowed only in `open`, is the type of its values, such as "BIGINT", or their
        columns, if values are tuples: "pieces BIGINT, at DATE". With a schema, other values are
        refused, a savepoint shows columns, and a later program may add columns or widen types.
        """

    def get_list_state(
        self, state: ListStateDescriptor | str, schema: str | DataType | None = None
    ) -> ListState:
        """Returns the list state of this name, which is created on first use. `schema` describes
        its elements.
        """

    def get_map_state(
        self,
        state: MapStateDescriptor | str,
        schema: str | DataType | None = None,
        key_schema: str | DataType | None = None,
    ) -> MapState:
        """Returns the map state of this name, which is created on first use. `schema` describes its
        values, `key_schema` its keys.
        """

    def get_reducing_state(self, state: ReducingStateDescriptor) -> ReducingState:
        """Returns the reducing state of this descriptor, which is created on first use."""

    def get_aggregating_state(self, state: AggregatingStateDescriptor) -> AggregatingState:
        """Returns the aggregating state of this descriptor, which is created on first use."""

    def get_task_name(self) -> str:
        """Returns the name of the task's vertex."""

    def get_task_name_with_subtasks(self) -> str:
        """Returns the name with the subtask, the parallelism and the attempt."""

    def get_index_of_this_subtask(self) -> int:
        """Returns the index of the subtask, starting at 0."""

    def get_number_of_parallel_subtasks(self) -> int:
        """Returns the parallelism."""

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Returns the number of key groups."""

    def get_attempt_number(self) -> int:
        """Returns the attempt of the task, starting at 0."""

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """Returns the value of this key in the job's configuration, or the default."""

    def counter(self, name: str) -> Counter:
        """Returns a counter, exposed as flink_taskmanager_job_task_operator_<name>."""


class FunctionTimers(Protocol):
    """Timers of the current key, in milliseconds since the epoch.

    A timer that is registered twice fires once.
    """

    def current_processing_time(self) -> int:
        """Returns the processing time, which does not advance while a batch is processed."""

    def current_watermark(self) -> int:
        """Returns the event time that all inputs have reached."""

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Calls `on_timer` when the watermark reaches this time."""

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Calls `on_timer` at this time of the machine's clock."""

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Deletes the timer, if it is registered and has not fired."""

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Deletes the timer, if it is registered and has not fired."""


class ProcessContext(Protocol):
    """The context of a function while it processes a row or a timer."""

    def get_current_key(self) -> Any:
        """Returns the value of the key column, or a tuple if there are several."""

    def timer_service(self) -> FunctionTimers:
        """Returns the timers of the current key."""

    def timestamp(self) -> int | None:
        """Returns the row's event time in milliseconds, from the column of the stream's watermarks;
        in `on_timer`, the time of the timer. Returns None if the stream has no event time, or if
        its sources have several such columns.
        """

    def time_domain(self) -> str | None:
        """Returns "event_time" or "processing_time" in `on_timer`."""

    def output(self, tag: str, row: Row | tuple[Any, ...] | dict[str, Any]) -> None:
        """Emits to the side output `tag`, which `process(side_outputs=...)` declares."""


class ProcessFunction:
    """Processes the rows of a stream one by one, with side outputs: PyFlink's ProcessFunction.

    It has neither states nor timers: these belong to keys, which a `KeyedProcessFunction` has.
    Otherwise it works like a `KeyedProcessFunction`.
    """

    def open(self, runtime_context: FunctionContext) -> None:
        """Called once, before any row."""

    def process_element(
        self, value: Row, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...] | dict[str, Any]] | None:
        """Called for each row. Returns or yields rows, or returns None."""
        raise NotImplementedError

    def close(self) -> None:
        """Releases resources; cannot emit."""


class KeyedProcessFunction:
    """Processes the rows of a keyed stream one by one, with states and timers per key: PyFlink's
    KeyedProcessFunction.

    Rows are `pyspark.sql.Row`: `value.pieces`, `value["pieces"]` and `value[1]` work. Rows of one
    key are processed in order; there is no order among keys. `process_element` and `on_timer` yield
    Rows or dictionaries (matched by name) or tuples (by position) of the declared schema, return a
    list of them, or return None. Every row is a call in Python; for many rows per key,
    `transform_with_state` is called only once per key and batch.

    Each subtask has a separate object: it is unpickled there, then `open` is called, and `close` at
    the end, also after a failure. Before data flows, both are also called on another object, so
    that an invalid type of a state is found early.
    """

    def open(self, runtime_context: FunctionContext) -> None:
        """Called once, before any row, to obtain the states."""

    def process_element(
        self, value: Row, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...] | dict[str, Any]] | None:
        """Called for each row. Returns or yields rows, or returns None."""
        raise NotImplementedError

    def on_timer(
        self, timestamp: int, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...] | dict[str, Any]] | None:
        """Called when a timer fires. `timestamp` is in milliseconds since the epoch.

        Event-time timers fire when the watermark reaches them, the remaining ones when bounded
        input ends: in batch mode all of them, because there are no earlier watermarks.
        Processing-time timers that remain at the end do not fire.
        """

    def close(self) -> None:
        """Releases resources; cannot emit."""


class CoProcessFunction:
    """Processes two keyed streams with one state per key: PyFlink's KeyedCoProcessFunction.

    Rows are `pyspark.sql.Row`. Rows of one key and input are processed in order; there is no order
    among inputs and keys. Each method yields Rows (matched by name) or tuples (by position) of the
    declared schema, or returns None. Every row is a call in Python; for many rows per key,
    `transform_with_state` is called only once per key and batch.

    Each subtask has a separate object: it is unpickled there, then `open` is called, and `close` at
    the end, also after a failure. Before data flows, both are also called on another object, so
    that an invalid schema of a state is found early.
    """

    def open(self, context: FunctionContext) -> None:
        """Called once, before any row, to obtain the states."""

    def process_element1(
        self, value: Row, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called for each row of the first stream. Returns or yields rows, or returns None."""
        raise NotImplementedError

    def process_element2(
        self, value: Row, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called for each row of the second stream. Returns or yields rows, or returns None."""
        raise NotImplementedError

    def on_timer(
        self, timestamp_ms: int, ctx: ProcessContext
    ) -> Iterable[Row | tuple[Any, ...]] | None:
        """Called when a timer fires.

        Event-time timers fire when the watermark reaches them, the remaining ones when bounded
        input ends: in batch mode all of them, because there are no earlier watermarks.
        Processing-time timers that remain at the end do not fire.
        """

    def close(self) -> None:
        """Releases resources; cannot emit."""
