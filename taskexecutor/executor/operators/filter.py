"""Filters rows by a function of the program, on the task's thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.common.time_zones import in_zone
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext, StreamOperator
from firesteel.operators import FilterSpec
from firesteel.text import text_of
from taskexecutor.executor.columnar.jvm.session import session_zone


class Filter(StreamOperator):
    def __init__(self, spec: FilterSpec) -> None:
        self._function = spec.function

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._zone = session_zone(context)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        with self.context.time("python"):
            try:
                mask = self._function(in_zone(batch, self._zone))
            except Exception as error:
                raise FiresteelError(
                    f"{self.context.operator_name}: the function, which is called with an Arrow "
                    f"RecordBatch, failed: {summary_of(error)}"
                ) from error
            mask = self._mask(mask, batch.num_rows)
            kept = batch.filter(mask)  # drops nulls
            if kept.num_rows:
                self.output.emit(kept)

    def _mask(self, mask: Any, rows: int) -> pa.Array:
        name = self.context.operator_name
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        elif not isinstance(mask, pa.Array):
            values = mask if isinstance(mask, list) else np.asarray(mask)
            if not isinstance(values, list) and values.ndim != 1:
                raise FiresteelError(
                    f"{name}: the function, which is called with an Arrow RecordBatch, returned "
                    f"{type(mask).__name__}; it must return one boolean per row"
                )
            try:
                mask = pa.array(values)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise FiresteelError(
                    f"{name}: the function must return one boolean per row: {text_of(error)}"
                ) from error
        if pa.types.is_null(mask.type):
            mask = mask.cast(pa.bool_())
        if not pa.types.is_boolean(mask.type):
            raise FiresteelError(
                f"{name}: the function returned {mask.type} values; "
                "it must return one boolean per row"
            )
        if len(mask) != rows:
            raise FiresteelError(
                f"{name}: the function returned {len(mask)} booleans for a batch of {rows} rows"
            )
        return mask
