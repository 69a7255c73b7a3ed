"""Functions of PySpark's mapInArrow contract, on the task's thread, without the JVM.

The function is called once per batch, with an iterator over that batch. As with Spark's partitions,
a program cannot rely on how rows are distributed over calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.common.time_zones import in_zone
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext, StreamOperator
from firesteel.operators import CoMapInArrowSpec, FilterSpec, MapInArrowSpec, MapInPandasSpec
from firesteel.text import text_of
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.jvm.session import session_zone
from taskexecutor.executor.columnar.schemas import declared, shown
from taskexecutor.executor.operators.python_rows.frames import FrameCollector, to_frame

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class MapInArrow(StreamOperator):
    computes = choose.PYTHON

    def __init__(self, spec: MapInArrowSpec) -> None:
        self._spec = spec

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        known = context.input_schemas[0] if context.input_schemas else None
        self._schema = context.output_schema or declared(self._spec.schema, known)
        self._zone = session_zone(context)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        _call(self, self._spec.function, in_zone(batch, self._zone), self._schema)


class CoMapInArrow(StreamOperator):
    computes = choose.PYTHON
    not_checkpointed = "state shared by its two functions: use co_process, which has managed state"

    inputs = 2

    def __init__(self, spec: CoMapInArrowSpec) -> None:
        self._spec = spec

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._schema = context.output_schema or declared(self._spec.schema, None)
        self._zone = session_zone(context)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        function = self._spec.first if input_index == 0 else self._spec.second
        _call(self, function, in_zone(batch, self._zone), self._schema)


class MapInPandas(StreamOperator):
    computes = choose.PYTHON

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


class Filter(StreamOperator):
    computes = choose.PYTHON

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


def _call(
    operator: StreamOperator,
    function: ArrowFunction,
    batch: pa.RecordBatch,
    schema: pa.Schema | None,
) -> None:
    name = operator.context.operator_name
    with operator.context.time("python"):
        results = function(iter((batch,)))
        if not isinstance(results, Iterator) and not hasattr(results, "__iter__"):
            raise FiresteelError(
                f"{name}: the function returned {type(results).__name__}; "
                "it must return an iterator of RecordBatch"
            )
        for result in results:
            if not isinstance(result, pa.RecordBatch):
                raise FiresteelError(
                    f"{name}: the function yielded {type(result).__name__}; "
                    "it must yield pyarrow.RecordBatch"
                )
            fitted = result if schema is None else fit(result, schema, name)
            if fitted.num_rows:
                operator.output.emit(fitted)


def fit(
    batch: pa.RecordBatch, schema: pa.Schema, name: str, did: str = "the function yielded"
) -> pa.RecordBatch:
    """Returns `batch` with exactly `schema`: columns are matched by name, and cast if no value is
    lost. Otherwise raises FiresteelError that shows both schemas.
    """
    if batch.schema.equals(schema):
        return batch
    if sorted(batch.schema.names) != sorted(schema.names):
        raise _mismatch(name, did, schema, batch.schema)
    columns = []
    for field in schema:
        column = batch.column(batch.schema.get_field_index(field.name))
        if column.type != field.type:
            if (zones := _zones(column.type, field.type)) is not None:
                raise _mismatch(
                    name, did, schema, batch.schema, f"; column {field.name!r}: {zones}"
                )
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise _mismatch(
                    name, did, schema, batch.schema, f"; column {field.name!r}: {text_of(error)}"
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _zones(got: pa.DataType, declared: pa.DataType) -> str | None:
    """Returns the reason if only one of two timestamps has a zone, at any depth: the instant would
    be ambiguous.
    """
    if not (pa.types.is_timestamp(got) and pa.types.is_timestamp(declared)):
        wrong = (_zones(*parts) for parts in zip(_parts(got), _parts(declared), strict=False))
        return next(filter(None, wrong), None)
    if (got.tz is None) == (declared.tz is None):
        return None
    if got.tz is None:
        return (
            "its times have no zone, and TIMESTAMP is an instant: add a zone, as in"
            " datetime.now(timezone.utc), or declare it TIMESTAMP_NTZ"
        )
    return "its times have a zone, and TIMESTAMP_NTZ has none: declare it TIMESTAMP"


def _parts(kind: pa.DataType) -> list[pa.DataType]:
    if not pa.types.is_nested(kind) or pa.types.is_union(kind):
        return []
    return [kind.field(index).type for index in range(kind.num_fields)]


def _mismatch(
    name: str, did: str, expected: pa.Schema, actual: pa.Schema, detail: str = ""
) -> FiresteelError:
    return FiresteelError(
        f"{name}: {did} another schema than it declares: "
        f"expected {shown(expected)}; got {shown(actual)}{detail}"
    )
