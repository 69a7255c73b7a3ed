"""Rows as JSON or CSV, written by Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.connectors.kafka.formats import Csv, Json
from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.kafka.encoders.spark import SparkEncoder

if TYPE_CHECKING:
    from pyspark.sql import Column


class TextOfRows(SparkEncoder):
    def __init__(self, format: Json | Csv, columns: Sequence[str]) -> None:
        super().__init__(columns)
        self._format = format

    def expression(self, context: RuntimeContext, schema: pa.Schema) -> Callable[[Column], Column]:
        from pyspark.sql import functions as sql

        write = sql.to_json if isinstance(self._format, Json) else sql.to_csv
        options = dict(self._format.options)
        return lambda row: write(row, options).cast("binary")
