"""A function per batch and a StatefulProcessor of PySpark, which run unchanged on Spark and on
Firesteel; and a function per row, as on PyFlink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.peers.work import TIMER_MS
from firesteel import KeyedProcessFunction, ValueStateDescriptor
from firesteel.functions import FunctionContext, ProcessContext


def with_key(keys: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            value = batch.column("value")
            key = pc.subtract(value, pc.multiply(pc.divide(value, keys), keys))
            yield pa.RecordBatch.from_arrays([key, value], names=["k", "value"])

    return function


def with_key_and_time(keys: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    add_key = with_key(keys)

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in add_key(batches):
            time = pc.multiply(batch.column("value"), 1000).cast(pa.timestamp("us", "UTC"))
            yield batch.append_column("t", time)

    return function


class CountAndSumLater(KeyedProcessFunction):
    """Emits the count and the sum of a key so far, a second after each of its rows."""

    def open(self, runtime_context: FunctionContext) -> None:
        descriptor = ValueStateDescriptor("state", "c BIGINT, s BIGINT")
        self._state = runtime_context.get_state(descriptor)

    def process_element(self, value: Row, ctx: ProcessContext) -> None:
        count, total = self._state.value() or (0, 0)
        self._state.update((count + 1, total + value[1]))
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + TIMER_MS)  # type: ignore[operator]

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[Any]:
        count, total = self._state.value()
        yield ctx.get_current_key(), count, total


class CountAndSum(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", "c long, s long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        state = self._state.get() if self._state.exists() else None
        count, total = state or (0, 0)
        for row in rows:
            count += 1
            total += row.value
        self._state.update((count, total))
        yield Row(k=key[0], c=count, s=total)

    def close(self) -> None:
        pass
