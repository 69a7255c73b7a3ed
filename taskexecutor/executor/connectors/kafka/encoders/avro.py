"""Rows as Avro records, with or without the id of their schema in a registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.connectors.kafka.formats import Avro, Confluent
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from taskexecutor.executor.columnar.jvm.calls import called
from taskexecutor.executor.columnar.jvm.engine import SparkEngine, engine_of
from taskexecutor.executor.columnar.schemas import to_spark
from taskexecutor.executor.connectors.kafka.encoders.registration import Registration
from taskexecutor.executor.connectors.kafka.encoders.spark import SparkEncoder

if TYPE_CHECKING:
    from pyspark.sql import Column

_BYTES = "FiresteelAvroBytes"
_NAME = "topLevelRecord"  # Spark's name of a record that it derives from columns


class AvroOfRows(SparkEncoder):
    def __init__(
        self, format: Avro | Confluent, columns: Sequence[str], *, topic: str, key: bool
    ) -> None:
        """`topic` is empty if rows have different topics."""
        super().__init__(columns)
        self._registration: Registration | None = None
        if isinstance(format, Confluent):
            self._registration = Registration(format=format, topic=topic, key=key)
        avro = format.format if isinstance(format, Confluent) else format
        assert isinstance(avro, Avro)
        self._avro = avro

    def expression(self, context: RuntimeContext, schema: pa.Schema) -> Callable[[Column], Column]:
        engine = engine_of(context.spark)
        session: Any = engine.session
        types = session._jvm.org.apache.spark.sql.types.DataType
        java = types.fromJson(to_spark(schema).json())
        text = self._avro.schema or engine.code.type(_BYTES).schema(java, _NAME)
        target = _target(engine, java, text, self._id(context, text), context.operator_name)
        kind = types.fromJson('"binary"')
        return lambda row: called(session, target, "bytes", kind, row)

    def _id(self, context: RuntimeContext, text: str) -> int:
        """Returns the schema's id in the registry, or -1."""
        if self._registration is None:
            return -1
        found = json.loads(text)
        record = ".".join(filter(None, (found.get("namespace"), found.get("name"))))
        return self._registration.id(context, text, "AVRO", record)


def _target(engine: SparkEngine, java: Any, text: str, id: int, operator: str) -> Any:
    from py4j.protocol import Py4JJavaError

    try:
        return engine.code.type(_BYTES)(java, text, id)
    except Py4JJavaError as error:
        raise FiresteelError(
            f"{operator}: the rows do not fit the Avro schema: {error.java_exception.getMessage()}"
        ) from None
