"""Avro records, with or without the id of their schema in a registry.

PySpark contains the classes with which Spark reads Avro files, but not the expression behind
`from_avro`: FiresteelAvroRows calls the same classes. See docs/decisions/0054.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.connectors.kafka.formats import Avro, Confluent
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from taskexecutor.executor.columnar.jvm.calls import called
from taskexecutor.executor.columnar.jvm.engine import SparkEngine, engine_of
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.connectors.kafka import unreadable
from taskexecutor.executor.connectors.kafka.clients import resolved
from taskexecutor.executor.connectors.kafka.decoders.values import Rows, Values, chosen
from taskexecutor.executor.connectors.kafka.record_plan import RecordPlan
from taskexecutor.executor.connectors.kafka.records import VALUE
from taskexecutor.executor.connectors.kafka.registry import RegistryClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

HEAD = 5  # bytes before a framed record: zero, and the id of its schema
_VALUES = pa.schema([pa.field(VALUE, pa.binary())])
_ROWS = "FiresteelAvroRows"


class AvroValues(Values):
    """One row per value, or an error. `columns` lets changes of tables use the rows of Avro."""

    def __init__(self, format: Avro | Confluent) -> None:
        self._registered = format if isinstance(format, Confluent) else None
        avro = format.format if isinstance(format, Confluent) else format
        assert isinstance(avro, Avro)
        self._avro = avro
        self._plan: RecordPlan | None = None
        self._registry: RegistryClient | None = None
        self._known: set[int] = set()  # ids of schemas that the rows know

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def open(self, context: RuntimeContext) -> None:
        engine = engine_of(context.spark)
        kind = avro_type(engine, self._avro)
        self._schema = to_arrow(kind)
        reader = self._avro.schema
        rows: Any = engine.code.type(_ROWS)(reader, self._registered is not None)
        self._rows = rows
        if self._registered is not None:
            registry = self._registered.registry
            self._registry = RegistryClient(
                registry, resolved(registry.properties), lambda: context.cancelled
            )
        else:
            rows.addWriter(0, self._avro.writer_schema or reader)
        session: Any = engine.session
        java = session._jvm.org.apache.spark.sql.types.DataType.fromJson(_result(kind).json())

        def read(frame: DataFrame) -> DataFrame:
            return frame.select(called(session, rows, "row", java, frame[VALUE]).alias("row"))

        self._plan = RecordPlan(context, _VALUES, read)

    def rows(self, values: pa.BinaryArray) -> Rows:
        assert self._plan is not None
        if not len(values):
            return Rows(_no_rows(self._schema))
        problems: dict[int, str] = {}
        if self._registry is not None:
            problems = {id: self._learn(id) for id in ids_of(values)}
        found = self._plan.run([pa.RecordBatch.from_arrays([values], schema=_VALUES)]).column(0)
        record, error = found.flatten()
        errors = {
            place: _error(error[place].as_py(), values[place].as_py(), problems)
            for place in np.flatnonzero(error.is_valid().to_numpy(zero_copy_only=False)).tolist()
        }
        return chosen(pa.RecordBatch.from_arrays(record.flatten(), schema=self._schema), errors)

    def _learn(self, id: int) -> str:
        """Makes the schema known to the rows. Returns why that is not possible."""
        assert self._registry is not None
        if id in self._known:
            return ""
        if problem := self._registry.problem(id, "AVRO"):
            return problem
        schema = self._registry.schema(id)
        assert schema is not None
        self._rows.addWriter(id, schema.text)
        self._known.add(id)
        return ""

    def close(self) -> None:
        if self._plan is not None:
            self._plan.close()


def _error(reason: str, value: bytes, problems: Mapping[int, str]) -> str:
    framed = len(value) >= HEAD and not value[0]
    problem = problems.get(int.from_bytes(value[1:HEAD])) if framed else None
    return f"{problem or reason}: {unreadable.shown(value)}"


def avro_type(engine: SparkEngine, avro: Avro) -> StructType:
    """Returns Spark's type of the reader's schema. Raises FiresteelError."""
    from py4j.protocol import Py4JJavaError
    from pyspark.sql.types import StructType, _parse_datatype_json_string

    if avro.schema is None:
        raise FiresteelError(
            "a source needs the reader's schema of Avro records: Avro(schema), as JSON text"
        )
    try:
        found = engine.code.type(_ROWS).type(avro.schema)
    except Py4JJavaError as error:
        raise FiresteelError(
            f"Avro: schema is invalid: {error.java_exception.getMessage()}"
        ) from None
    kind = _parse_datatype_json_string(found.json())
    if not isinstance(kind, StructType):
        raise FiresteelError(
            f"Avro: the schema is of a {kind.simpleString()}; only records have columns"
        )
    return kind


def ids_of(values: pa.BinaryArray) -> list[int]:
    """Returns the distinct ids of the schemas of framed records."""
    framed = pc.equal(pc.binary_slice(values, 0, 1), b"\0")
    heads = pc.unique(pc.binary_slice(values.filter(framed), 1, HEAD))
    return [int.from_bytes(head) for head in heads.to_pylist() if len(head) == HEAD - 1]


def _result(kind: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField("row", kind), StructField("error", StringType())])


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
