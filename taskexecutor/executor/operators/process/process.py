"""The operators that run process functions of one and of two streams."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from firesteel.operators import CoProcessSpec, ProcessSpec
from taskexecutor.executor.operators.process.function_operator import FunctionOperator
from taskexecutor.executor.timing.clock import wall_clock_ms


class Process(FunctionOperator):
    """Runs a ProcessFunction or, with keys, a KeyedProcessFunction. `now_ms` is the wall clock."""

    def __init__(self, spec: ProcessSpec, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__(
            spec.function, spec.key_columns, spec.schema, spec.side_outputs, (spec.time,), now_ms
        )

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self._process(batch, 0, self._key_columns, "process_element", self._context)


class CoProcess(FunctionOperator):
    """Both inputs have the same keys. `now_ms` is the wall clock."""

    inputs = 2

    def __init__(self, spec: CoProcessSpec, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        keys = spec.first_key_columns
        super().__init__(spec.function, keys, spec.schema, spec.side_outputs, spec.times, now_ms)
        self._keys = keys, spec.second_key_columns

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        name = f"process_element{input_index + 1}"
        self._process(batch, input_index, self._keys[input_index], name, self._context)
