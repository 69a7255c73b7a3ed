"""Selects the reader of a source's files: Arrow where it reads what Spark would, or Spark for all
of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.connectors.file_source import FileSource
from firesteel.operator import PlanMeter
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers.csv_blocks import CsvBlocks
from taskexecutor.executor.columnar.readers.csv_columns import CsvFormat
from taskexecutor.executor.columnar.readers.parquet_groups import ParquetGroups
from taskexecutor.executor.columnar.readers.parts import FileParts
from taskexecutor.executor.columnar.readers.pieces import Differs, PartReader, is_plain
from taskexecutor.executor.columnar.schemas import to_arrow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ARROW_FORMATS = ("csv", "parquet")


class ArrowReaders:
    """Arrow's readers of one source: one for each set of columns given by the files' paths."""

    def __init__(
        self,
        engine: SparkEngine,
        source: FileSource,
        schema: StructType,
        parts: FileParts,
        meter: PlanMeter,
    ) -> None:
        self._engine = engine
        self._source = source
        self._schema = to_arrow(schema)
        self._parts = parts
        self._meter = meter
        self._readers: dict[tuple[str, ...], PartReader | None] = {}

    def reader(self, columns: tuple[str, ...]) -> PartReader | None:
        """Returns the reader for files whose paths give these columns; None if Spark reads all of
        them.
        """
        if self._source.format not in ARROW_FORMATS:
            return None
        if columns not in self._readers:
            try:
                reader = self._readers[columns] = self._made(columns)
                shown = reader.reader
            except Differs as reason:
                self._readers[columns] = None
                shown = f"Files are read by Spark: {reason}"
            self._meter.files_read_by(shown)
        return self._readers[columns]

    def _made(self, columns: tuple[str, ...]) -> PartReader:
        """Creates a reader. Raises Differs."""
        if self._engine.cores > 1 or not self._engine.is_local:
            raise Differs("a Spark job uses more cores")
        schema = self._schema
        if len({name.lower() for name in schema.names}) < len(schema):
            raise Differs("two columns have one name")
        for name in columns:
            if name not in schema.names or not is_plain(schema.field(name).type):
                raise Differs(f"folders give the column {name}")
        in_files = pa.schema([field for field in schema if field.name not in columns])
        if self._source.format == "csv":
            return self._of_csv(in_files)
        return self._of_parquet(in_files)

    def _of_csv(self, in_files: pa.Schema) -> CsvBlocks:
        names = self._schema.names
        if self._setting("spark.sql.legacy.timeParserPolicy").upper() == "LEGACY":
            raise Differs("spark.sql.legacy.timeParserPolicy is LEGACY")
        if self._setting("spark.sql.columnNameOfCorruptRecord") in names:
            raise Differs("malformed rows are returned in a column")
        zone = self._setting("spark.sql.session.timeZone")
        format = CsvFormat.of(in_files, self._source.options, zone)
        return CsvBlocks(format, names, self._parts)

    def _of_parquet(self, in_files: pa.Schema) -> ParquetGroups:
        if self._setting("spark.sql.files.ignoreCorruptFiles").lower() == "true":
            raise Differs("spark.sql.files.ignoreCorruptFiles skips unreadable files")
        rebase = self._setting("spark.sql.parquet.datetimeRebaseModeInRead")
        corrected = rebase.upper() == "CORRECTED"
        return ParquetGroups(
            in_files, self._source.options, self._schema.names, self._parts, corrected=corrected
        )

    def _setting(self, name: str) -> str:
        return str(self._engine.session.conf.get(name))
