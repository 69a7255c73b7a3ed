"""What each kind of operator is asked to do. Built by the API, pickled into the JobGraph, opened in
slots.

`taskexecutor.executor` turns a spec into the operator that does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from firesteel.connectors import MALFORMED_TAG, FileSource


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkSpec:
    """Bounded out-of-orderness over a timestamp column of the source's output."""

    column: str
    max_out_of_orderness_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentSpec:
    """A source stops while it is more than `max_drift_us` ahead of the slowest source of its group."""

    group: str
    max_drift_us: int
    update_interval_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignWatermarksSpec:
    """Watermarks from rows that pass: of a column as in WatermarkSpec, or `function(batch)` gives
    the time before which nothing will follow. `idle_us`: after so long without rows, nobody need
    wait for this stream's watermarks. `held`: event time
    advances not with each batch, but when the stream before says by a watermark of its own that it
    has read what it had."""

    column: str = ""
    max_out_of_orderness_us: int = 0
    function: Callable[[pa.RecordBatch], Any] | None = None
    idle_us: int | None = None
    held: bool = False
    alignment: AlignmentSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """`source` is the connector's description (firesteel.connectors.FileSource, SequenceSource,
    ...).
    """

    source: Any
    watermarks: WatermarkSpec | None = None
    alignment: AlignmentSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec:
    """`function(DataFrame) -> DataFrame`, row by row or at least batch by batch independent; runs
    on the slot's Spark.
    """

    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapInArrowSpec:
    """PySpark's mapInArrow contract: an iterator of batches to an iterator of batches of `schema`.

    `schema` is a DDL string, a StructType or an Arrow schema; None: as the input's.
    """

    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapInPandasSpec:
    """PySpark's mapInPandas contract: an iterator of DataFrames to an iterator of DataFrames of
    `schema`, as above.
    """

    function: Callable[[Iterator[Any]], Iterator[Any]]
    schema: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSpec:
    """`function(batch)` gives one boolean per row: those that stay."""

    function: Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoMapInArrowSpec:
    """Two inputs, one function each; both yield batches of `schema`."""

    first: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    second: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateExpression:
    """One parsed item of `aggregate(...)`: `sql` as written, its output name, and its split (see
    firesteel.plan.aggregates.parse).
    """

    sql: str
    name: str
    # Spark SQL over the rows, giving the partial columns, by partial column name; e.g. {"_p0_sum":
    # "sum(d)", ...}
    partial: dict[str, str]
    # How partial columns merge: column -> "sum", "min", "set", "first:<other column>", ...
    # (firesteel.plan.aggregates.split)
    merge: dict[str, str]
    # SQL over merged partial columns, evaluated when the window fires
    # (firesteel.plan.aggregates.finals)
    final: str
    # Sums of averages, which are of doubles, as they are for decimals and intervals
    exact: dict[str, str] = field(default_factory=dict)
    # Spark SQL over the rows themselves, for what is not split: `sql` without its AS, first and
    # last by time as min_by and max_by
    whole: str = ""

    @property
    def splittable(self) -> bool:
        """False: `partial`, `merge` and `final` are empty, and the rows are kept until the window
        fires.
        """
        return bool(self.final)


@dataclass(frozen=True, slots=True, kw_only=True)
class TumblingSpec:
    size_us: int
    offset_us: int = 0
    processing_time: bool = False

    @property
    def slide_us(self) -> int:
        return self.size_us

    @property
    def pane_us(self) -> int:
        return self.size_us


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingSpec:
    """Windows begin every `slide_us` (aligned to the epoch plus the offset) and last `size_us`."""

    size_us: int
    slide_us: int
    offset_us: int = 0
    processing_time: bool = False

    @property
    def pane_us(self) -> int:
        """Rows are kept in panes, side by side, each wholly inside or outside of any window."""
        return math.gcd(self.size_us, self.slide_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """A key's records that are at most `gap_us` apart; the window lasts until `gap_us` after the
    last of them.
    """

    gap_us: int
    processing_time: bool = False


WindowSpec = TumblingSpec | SlidingSpec | SessionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialWindowAggregateSpec:
    """Upstream half of a keyed aggregation: assigns panes or sessions, groups, aggregates within a
    bundle; runs on Spark.

    Output: key columns, `window_start`, `window_end` (timestamp[us, UTC]; only if there is a window
    in event time), the partial columns, `_rows` (int64).
    """

    key_columns: tuple[str, ...]
    window: WindowSpec | None  # None: a running aggregation
    time_column: str  # "" where event time plays no part
    aggregates: tuple[AggregateExpression, ...]
    time_shift_us: int = 0  # added to event time: -1 where it is the end of a window, which is that window's no longer

    @property
    def in_event_time(self) -> bool:
        return self.window is not None and not self.window.processing_time


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregateSpec:
    """Keyed half: merges partials into state per key and window, fires at the watermark, or at the
    clock's time.

    Output: key columns, `window_start`, `window_end`, one column per aggregate.
    """

    key_columns: tuple[str, ...]
    window: WindowSpec
    aggregates: tuple[AggregateExpression, ...]
    allowed_lateness_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAggregateSpec:
    """Keyed half of an aggregation without windows: emits the changed keys' new values, an upsert
    stream.

    Output: key columns, one column per aggregate.
    """

    key_columns: tuple[str, ...]
    aggregates: tuple[AggregateExpression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowApplySpec:
    """Keeps the rows of each window and runs Spark on them when it fires: `function`, or else the
    aggregates as SQL.

    Input: the rows. Output: of `function`, whatever it returns; of aggregates, as
    WindowAggregateSpec. `late_tag`: the side output that gets records which came too late, as they
    were.
    """

    key_columns: tuple[str, ...]
    window: WindowSpec
    time_column: str
    time_shift_us: int = 0
    allowed_lateness_us: int = 0
    function: Callable[[Any], Any] | None = None
    aggregates: tuple[AggregateExpression, ...] = ()
    late_tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """`sink` is the connector's description (firesteel.connectors.FileSink, CollectSink, PrintSink,
    ...).
    """

    sink: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformWithStateSpec:
    """PySpark's `StatefulProcessor`, over Rows or over pandas DataFrames; `output_schema` as in
    MapInArrowSpec, never None.

    `initial_key_columns` None: there is no second input with the initial state.
    """

    processor: Any
    key_columns: tuple[str, ...]
    output_schema: Any
    output_mode: str = "append"  # append | update: told to sinks, not to the processor
    time_mode: str = "none"  # none | processing_time | event_time
    pandas: bool = False
    initial_key_columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoProcessSpec:
    """`function`: a firesteel.functions.CoProcessFunction over two keyed inputs; schemas as in
    MapInArrowSpec.
    """

    function: Any
    first_key_columns: tuple[str, ...]
    second_key_columns: tuple[str, ...]
    schema: Any
    side_outputs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSpec:
    """`factory() -> firesteel.operator.StreamOperator`, called once per subtask; `schema` of its
    output, if it has one.
    """

    factory: Callable[[], Any]
    inputs: int = 1
    schema: Any = None  # None: as the first input's
    side_outputs: dict[str, Any] = field(default_factory=dict)  # tag -> schema, as above


Spec = (
    SourceSpec
    | TransformSpec
    | MapInArrowSpec
    | AssignWatermarksSpec
    | MapInPandasSpec
    | FilterSpec
    | CoMapInArrowSpec
    | CoProcessSpec
    | PartialWindowAggregateSpec
    | WindowAggregateSpec
    | TransformWithStateSpec
    | RunningAggregateSpec
    | WindowApplySpec
    | SinkSpec
    | CustomSpec
)


def side_output_tags(spec: Spec) -> frozenset[str]:
    """The tags that an operator may use with `Output.emit_side`."""
    match spec:
        case SourceSpec(source=FileSource(malformed="side_output")):
            return frozenset({MALFORMED_TAG})
        case CustomSpec() | CoProcessSpec():
            return frozenset(spec.side_outputs)
        case _:
            late_tag = getattr(spec, "late_tag", "")
            return frozenset({late_tag} if late_tag else ())
