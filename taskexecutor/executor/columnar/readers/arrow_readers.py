"""Arrow's readers of a source's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.connectors.file_source import FileSource
from firesteel.operator import PlanMeter
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers.csv_blocks import CsvBlocks
from taskexecutor.executor.columnar.readers.csv_columns import CsvFormat
from taskexecutor.executor.columnar.readers.parquet_groups import ParquetGroups
from taskexecutor.executor.columnar.readers.parts import FileParts
from taskexecutor.executor.columnar.readers.pieces import PartReader
from taskexecutor.executor.columnar.schemas import to_arrow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class ArrowReaders:
    """The readers of one source: one for each set of columns given by the files' paths."""

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
        if columns not in self._readers:
            obstacle = choose.arrow_reads(self._source, self._schema, columns, self._engine)
            self._readers[columns] = None if obstacle else self._made(columns)
            self._meter.files_read_by(choose.SPARK if obstacle else choose.ARROW, obstacle)
        return self._readers[columns]

    def _made(self, columns: tuple[str, ...]) -> PartReader:
        names, engine = self._schema.names, self._engine
        in_files = pa.schema([field for field in self._schema if field.name not in columns])
        if self._source.format == "csv":
            zone = engine.setting("spark.sql.session.timeZone")
            return CsvBlocks(CsvFormat.of(in_files, self._source.options, zone), names, self._parts)
        rebase = engine.setting("spark.sql.parquet.datetimeRebaseModeInRead")
        return ParquetGroups(in_files, names, self._parts, corrected=rebase.upper() == "CORRECTED")
