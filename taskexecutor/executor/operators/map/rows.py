"""Functions of one row, on the task's thread, without the JVM: `map` and `flat_map`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from firesteel.common.error_report import summary_of
from firesteel.common.time_zones import in_zone
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext, StreamOperator
from firesteel.operators import MapRowsSpec
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.jvm.session import session_zone
from taskexecutor.executor.columnar.schemas import declared
from taskexecutor.executor.operators.python_rows.row_collector import RowCollector, clipped
from taskexecutor.executor.operators.python_rows.rows import rows_of
from taskexecutor.executor.operators.python_rows.slices import Slices


def results_of(declaration: Any, context: RuntimeContext, output: Output) -> RowCollector:
    """Returns the collector of the rows that a function returns. Raises FiresteelError if the
    program does not declare their schema.
    """
    known = context.input_schemas[0] if context.input_schemas else None
    schema = context.output_schema or declared(declaration, known)
    if schema is None:
        raise FiresteelError(
            f"{context.operator_name}: declare the schema of the rows that the function returns"
        )
    results = RowCollector(schema, output.emit, context.operator_name)
    results.begin("the function")
    return results


class MapRows(StreamOperator):
    computes = choose.PYTHON

    def __init__(self, spec: MapRowsSpec) -> None:
        self._spec = spec

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._name = context.operator_name
        self._zone = session_zone(context)
        self._results = results_of(self._spec.schema, context, output)
        self._slices = Slices(context)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        with self.context.time("python"):
            for part in self._slices.of(in_zone(batch, self._zone)):
                self._results.expect(part.num_rows, part.nbytes)
                called = self._flat(part) if self._spec.flat else self._one_each(part)
                while self._slices.timed(self._results.fill, called):
                    self._results.flush()
                self._results.flush()

    def _one_each(self, batch: pa.RecordBatch) -> Iterator[Any]:
        function = self._spec.function
        for row in rows_of(batch):
            try:
                result = function(row)
            except Exception as error:
                raise self._failed(row, error) from error
            if not isinstance(result, (tuple, dict)):
                raise FiresteelError(
                    f"{self._name}: the function returned {kind_of(result)} for {shown(row)};"
                    " it must return a Row, a tuple or a dictionary"
                    + (" (flat_map can drop rows)" if result is None else "")
                )
            yield result

    def _flat(self, batch: pa.RecordBatch) -> Iterator[Any]:
        function = self._spec.function
        for row in rows_of(batch):
            try:
                results = function(row)
                if not hasattr(results, "__iter__") or isinstance(results, (str, bytes, Row, dict)):
                    raise FiresteelError(
                        f"{self._name}: the function returned {kind_of(results)} for {shown(row)};"
                        " it must yield rows, or return a list of them"
                    )
                yield from results
            except FiresteelError:
                raise
            except Exception as error:
                raise self._failed(row, error) from error

    def _failed(self, row: Row, error: Exception) -> FiresteelError:
        return FiresteelError(
            f"{self._name}: the function failed for {shown(row)}: {summary_of(error)}"
        )


def kind_of(result: Any) -> str:
    return "None" if result is None else f"a {type(result).__name__}"


def shown(row: Row) -> str:
    return clipped(repr(row))
