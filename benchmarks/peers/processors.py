"""A function per batch and a StatefulProcessor of PySpark: the same objects run on Spark and on
Firesteel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


def with_key(keys: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            value = batch.column("value")
            key = pc.subtract(value, pc.multiply(pc.divide(value, keys), keys))
            yield pa.RecordBatch.from_arrays([key, value], names=["k", "value"])

    return function


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
