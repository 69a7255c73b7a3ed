"""Event time: watermarks, and the alignment of sources by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa

from firesteel.connectors.source import CoordinatorOptions
from firesteel.operators.spec import Spec, WatermarkAlignmentSpec

# Spark's setting: "min" or "max" of the watermarks of all inputs, whether or not they are idle.
# Without it, the minimum of those that are not idle.
MULTIPLE_WATERMARK_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkSpec:
    """Bounded out-of-orderness over a timestamp column of the source's output."""

    column: str
    max_out_of_orderness_us: int
    idle_us: int | None = None  # for sources with partitions; others know when they are idle


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignWatermarksSpec(Spec):
    """Emits watermarks for the rows that pass through.

    The time comes from a column, as in WatermarkSpec, or from `function(batch)`, which returns the
    time before which no more rows follow. After `idle_us` without rows the stream is idle and does
    not hold back watermarks of consumers. With `held`, event time does not advance with each batch
    but when a watermark of the upstream operator confirms that it has emitted all rows that it had
    read.
    """

    column: str = ""
    max_out_of_orderness_us: int = 0
    function: Callable[[pa.RecordBatch], Any] | None = None
    idle_us: int | None = None
    held: bool = False
    watermark_alignment: WatermarkAlignmentSpec | None = None

    uses_pandas = False
    sets_times = True
    begins_event_time = True
    emits_watermarks = True

    def time_advances(self, before: bool) -> bool:
        return True

    def in_batch(self) -> Self:
        return replace(self, watermark_alignment=None)

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> CoordinatorOptions | None:
        return CoordinatorOptions("alignment") if self.watermark_alignment is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """A column by which rows of a key are grouped before their sessions are known.

    Rows of a key with equal values are in one session, and either all of them or none are late.
    """

    column: str  # int64
    gap_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeWatermarkSpec(Spec):
    """Spark's `withWatermark`: the watermark is the maximum event time minus `delay_us`, rounded
    down to milliseconds. Rows with a time that is not after it are late.

    It advances when the sources have caught up, which their idleness shows: then every row that was
    available has been seen. With `eagerly`, it also advances with each batch. Upstream watermarks
    are not forwarded, nor does the end of the input end event time. A consumer with several inputs
    is connected to all subtasks of each, for example by `rebalance()`: a subtask may have no rows.
    """

    column: str = ""  # a timestamp; empty: the rows never hold back the watermarks of other inputs
    delay_us: int = 0
    eagerly: bool = False
    # Whether an upstream operator of this kind also has a watermark: the policy of the job combines
    # both.
    combined: bool = False
    drops_column: bool = False  # the rows are emitted without `column`
    parts: SessionParts | None = None  # added to rows; those without a time are dropped

    uses_pandas = False
    sets_times = True
    begins_event_time = True
    emits_watermarks = True
    needs_idle_sources = True

    def time_advances(self, before: bool) -> bool:
        return True
