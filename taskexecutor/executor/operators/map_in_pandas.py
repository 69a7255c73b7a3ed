"""Functions of PySpark's mapInPandas contract, on the task's thread: one call per batch, as in
`map_in_arrow`.
"""

from __future__ import annotations

import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext, StreamOperator
from firesteel.operators import MapInPandasSpec
from taskexecutor.executor.columnar.jvm.session import session_zone
from taskexecutor.executor.columnar.schemas import declared
from taskexecutor.executor.operators.stateful.frames import FrameCollector, to_frame


class MapInPandas(StreamOperator):
    def __init__(self, spec: MapInPandasSpec) -> None:
        self._spec = spec

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        known = context.input_schemas[0] if context.input_schemas else None
        schema = context.output_schema or declared(self._spec.schema, known)
        if schema is None:
            raise FiresteelError(
                f"{context.operator_name}: declare the schema of the rows that the function yields"
            )
        self._time_zone = session_zone(context)
        self._frames = FrameCollector(schema, output.emit, context.operator_name, self._time_zone)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        with self.context.time("python"):
            results = self._spec.function(iter((to_frame(batch, self._time_zone),)))
            if not hasattr(results, "__iter__"):
                raise FiresteelError(
                    f"{self.context.operator_name}: the function returned "
                    f"{type(results).__name__}; it must return an iterator of pandas.DataFrame"
                )
            results = iter(results)
            while self._frames.fill(results):
                self._frames.flush()
            self._frames.flush()
