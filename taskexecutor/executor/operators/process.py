"""The operator that runs a ProcessFunction or, with keys, a KeyedProcessFunction."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from firesteel.operators import ProcessSpec
from taskexecutor.executor.operators.function_operator import FunctionOperator
from taskexecutor.executor.timing.clock import wall_clock_ms


class Process(FunctionOperator):
    """`now_ms` is the wall clock."""

    def __init__(self, spec: ProcessSpec, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__(
            spec.function, spec.key_columns, spec.schema, spec.side_outputs, (spec.time,), now_ms
        )

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self._process(batch, 0, self._key_columns, "process_element", self._context)
