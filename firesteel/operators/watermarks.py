"""Event time: watermarks, and the alignment of sources by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa

from firesteel.connectors.source import CoordinatorOptions
from firesteel.operators.spec import Spec, WatermarkAlignmentSpec


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
