"""Removes duplicates: keeps the first row of each key, for ever or within a time."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.elements import Watermark
from firesteel.operator import Output, RuntimeContext, StreamOperator
from firesteel.plan.specs import DropDuplicatesSpec
from taskexecutor.executor.aggregation.grouping import Ints
from taskexecutor.executor.aggregation.key_index import hashable
from taskexecutor.executor.operators.windows.contents import event_times

# Kept rows are forgotten in groups, so many for each stretch of `within`.
_GROUPS = 16


class DropDuplicates(StreamOperator):
    """Remembers when each key had rows that were kept, as long as rows that are not late can be
    near them. The rows of a batch are decided in the order of event time.
    """

    not_checkpointed = "the rows that it has seen are not part of checkpoints"

    def __init__(self, spec: DropDuplicatesSpec) -> None:
        self._spec = spec
        # Without a time, all rows of a key are near each other.
        self._within_us = spec.within_us or 1
        self._kept: dict[Any, tuple[int, ...]] = {}  # event times, ascending
        self._group_us = max(1, spec.within_us // _GROUPS)
        self._ending: dict[int, list[Any]] = {}  # the keys of kept rows, by group
        self._groups: list[int] = []  # heap

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._late = context.counter("numLateRecordsDropped")

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        times: Ints = np.zeros(batch.num_rows, np.int64)
        if self._spec.within_us:
            times = event_times(batch, self._spec.time_column, self.context.operator_name)
            times = times + self._spec.time_shift_us
            late = times <= self.context.timers.current_watermark_us
            if late.any():
                self._late.inc(int(late.sum()))
                batch, times = batch.filter(pa.array(~late)), times[~late]
        first = self._first_rows(batch, times)
        if first.all():
            self.output.emit(batch)
        elif first.any():
            self.output.emit(batch.filter(pa.array(first)))

    def _first_rows(
        self, batch: pa.RecordBatch, times: Ints
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows to keep. Remembers them."""
        places = [column_index(batch.schema, name) for name in self._spec.key_columns]
        keys = list(hashable([batch.column(place) for place in places]))
        first = np.zeros(len(keys), np.bool_)
        kept, within_us = self._kept, self._within_us
        instants = times.tolist()
        for row in np.argsort(times, kind="stable").tolist():
            key, time_us = keys[row], instants[row]
            earlier = kept.get(key)
            if earlier is None:
                kept[key] = (time_us,)
            elif time_us - earlier[-1] >= within_us:
                kept[key] = (*earlier, time_us)
            elif any(abs(time_us - other_us) < within_us for other_us in reversed(earlier)):
                continue
            else:
                kept[key] = tuple(sorted((*earlier, time_us)))
            first[row] = True
        if self._spec.within_us:
            chosen = np.flatnonzero(first)
            groups = (times[chosen] + within_us) // self._group_us + 1
            for row, group in zip(chosen.tolist(), groups.tolist(), strict=True):
                if group not in self._ending:
                    self._ending[group] = []
                    heapq.heappush(self._groups, group)
                self._ending[group].append(keys[row])
        return first

    def process_watermark(self, watermark: Watermark) -> None:
        """Forgets rows that are too old to be near those to come, which are after the watermark."""
        next_us = watermark.timestamp_us + 1
        while self._groups and self._groups[0] * self._group_us <= next_us:
            for key in self._ending.pop(heapq.heappop(self._groups)):
                times = self._kept.pop(key, ())
                times = tuple(time_us for time_us in times if time_us + self._within_us > next_us)
                if times:
                    self._kept[key] = times
        self.output.emit_watermark(watermark)

    def close(self) -> None:
        self._kept.clear()
        self._ending.clear()
