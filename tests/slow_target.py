"""A target of an operator's output that takes its time."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa


class SlowTarget:
    """As a chained operator that takes `row_s` seconds for each row."""

    def __init__(self, row_s: float) -> None:
        self._row_s = row_s
        self.sizes: list[int] = []  # rows of each batch

    def batch(self, batch: pa.RecordBatch) -> None:
        self.sizes.append(batch.num_rows)
        time.sleep(batch.num_rows * self._row_s)

    def event(self, event: Any) -> None: ...

    def finished(self) -> None: ...
