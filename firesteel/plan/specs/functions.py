"""Functions of the program, over DataFrames, batches and state.

A `schema` is a DDL string, a StructType or an Arrow schema; None means the schema of the (first)
input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec:
    """Runs `function(DataFrame) -> DataFrame` on the slot's Spark. It treats each row
    independently, or is meant for each bundle alone (`per_bundle`).
    """

    function: Callable[[Any], Any]
    per_bundle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySpec:
    """Runs `function(DataFrame, ...) -> DataFrame` over all rows of one or two inputs, on the
    slot's Spark: the rows of the subtask's keys or, without key columns, all rows.
    """

    function: Callable[..., Any]
    key_columns: tuple[tuple[str, ...], ...]  # per input
    across_keys: bool = False  # the function may relate rows of different keys


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
    """Calls `function(Row)`, which returns one row or, if `flat` is set, any number of rows."""

    function: Callable[[Any], Any]
    schema: Any = None
    flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MapAsyncSpec:
    """Calls `function`, a coroutine function of a Row, or a firesteel.AsyncFunction. A call returns
    one row, or a list of rows.
    """

    function: Any
    schema: Any = None
    capacity: int = 100  # calls in flight, per subtask
    timeout_s: float | None = None  # per row, including retries; None: unlimited
    # Maps a Row to the result in place of the call's.
    on_timeout: Callable[[Any], Any] | None = None
    retry: Any = None  # a firesteel.AsyncRetryStrategy
    ordered: bool = True  # results keep the order of the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSpec:
    """Calls `function(batch)`, which returns one boolean per row: whether to keep it."""

    function: Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoMapInArrowSpec:
    """Calls one function per input; both yield batches of `schema`."""

    first: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    second: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformWithStateSpec:
    """Runs PySpark's `StatefulProcessor` over Rows or pandas DataFrames."""

    processor: Any
    key_columns: tuple[str, ...]
    output_schema: Any  # never None
    output_mode: str = "append"  # append | update: for sinks, the processor does not see it
    time_mode: str = "none"  # None: no second input (initial state)
    pandas: bool = False
    initial_key_columns: tuple[str, ...] | None = None  # None: no second input (initial state)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSpec:
    """Calls `factory()` once per subtask to create a firesteel.operator.StreamOperator."""

    factory: Callable[[], Any]
    inputs: int = 1
    schema: Any = None
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema
