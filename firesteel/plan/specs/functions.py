"""Functions of the program: over DataFrames, batches and state.

A `schema` is a DDL string, a StructType or an Arrow schema; None means that of the (first) input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec:
    """`function(DataFrame) -> DataFrame`, on the slot's Spark. It treats each row independently, or
    is meant for each bundle on its own (`per_bundle`).
    """

    function: Callable[[Any], Any]
    per_bundle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySpec:
    """`function(DataFrame, ...) -> DataFrame` over all rows of one or two inputs, on the slot's
    Spark: those of the keys that the subtask has, or of all, without key columns.
    """

    function: Callable[..., Any]
    key_columns: tuple[tuple[str, ...], ...]  # of each input
    across_keys: bool = False  # it may relate rows of different keys


@dataclass(frozen=True, slots=True, kw_only=True)
class MapInArrowSpec:
    """PySpark's mapInArrow contract: an iterator of batches to an iterator of batches."""

    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapInPandasSpec:
    """PySpark's mapInPandas contract: an iterator of DataFrames to an iterator of DataFrames."""

    function: Callable[[Iterator[Any]], Iterator[Any]]
    schema: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRowsSpec:
    """`function(Row)` returns one row or, if it is `flat`, any number of them."""

    function: Callable[[Any], Any]
    schema: Any = None
    flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MapAsyncSpec:
    """`function`: a coroutine function of a Row, or a firesteel.AsyncFunction. Its calls return one
    row, or a list of rows.
    """

    function: Any
    schema: Any = None
    capacity: int = 100  # calls in flight, of each subtask
    timeout_s: float | None = None  # of a row, with its retries; None: it has none
    on_timeout: Callable[[Any], Any] | None = None  # of a Row: the result in place of the call's
    retry: Any = None  # a firesteel.AsyncRetryStrategy
    ordered: bool = True  # results keep the order of the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSpec:
    """`function(batch)` returns one boolean per row: whether to keep it."""

    function: Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoMapInArrowSpec:
    """Two inputs, one function each; both yield batches of `schema`."""

    first: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    second: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformWithStateSpec:
    """PySpark's `StatefulProcessor`, over Rows or over pandas DataFrames."""

    processor: Any
    key_columns: tuple[str, ...]
    output_schema: Any  # never None
    output_mode: str = "append"  # append | update: for sinks, the processor does not see it
    time_mode: str = "none"  # none | processing_time | event_time
    pandas: bool = False
    initial_key_columns: tuple[str, ...] | None = None  # None: no second input (initial state)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimeSpec:
    """The event-time column of an input, and the offset that is added to its values (see
    PartialWindowAggregateSpec).
    """

    column: str
    shift_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """`function`: a firesteel.functions.ProcessFunction, or with key columns a
    KeyedProcessFunction.
    """

    function: Any
    key_columns: tuple[str, ...] | None
    schema: Any
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
    time: RowTimeSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoProcessSpec:
    """`function`: a firesteel.functions.CoProcessFunction over two keyed inputs."""

    function: Any
    first_key_columns: tuple[str, ...]
    second_key_columns: tuple[str, ...]
    schema: Any
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
    times: tuple[RowTimeSpec | None, RowTimeSpec | None] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastProcessSpec:
    """`function`: a firesteel.BroadcastProcessFunction over an input and a second one that is
    broadcast; with key columns, a KeyedBroadcastProcessFunction.
    """

    function: Any
    key_columns: tuple[str, ...] | None  # of the first input
    states: tuple[str, ...]  # names of the broadcast states
    schema: Any
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
    broadcast_first: bool = False  # in a batch: it is read to its end before the first input is
    times: tuple[RowTimeSpec | None, RowTimeSpec | None] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSpec:
    """`factory()` makes a firesteel.operator.StreamOperator; it is called once per subtask."""

    factory: Callable[[], Any]
    inputs: int = 1
    schema: Any = None
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
