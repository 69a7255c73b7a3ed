"""TableSource: rows that a program has in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from firesteel.column_names import check_valid_fields
from firesteel.connectors.source import EndOfSplit, Source, SourceReader, Split
from firesteel.errors import FiresteelError, InvalidProgram

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from firesteel.operator import RuntimeContext

_TIME_ZONE = "spark.sql.session.timeZone"
_JOB_DIR = "FIRESTEEL_JOB_DIR"  # the folder of the job's files in a slot's process


@dataclass(frozen=True, slots=True)
class TableSource(Source):
    """Emits the rows of an Arrow table in batches: see `Environment.from_collection`, `from_pandas`
    and `from_arrow`, which create it.

    A small table is part of the job, a large one is in a file that is shipped with the job. A
    position is the number of the next batch, so that each row is read exactly once.
    """

    schema: StructType
    batches: int
    # An Arrow IPC file; empty: the content is in `file`.
    content: bytes = field(default=b"", repr=False)
    file: str = ""  # the name of a shipped file
    # Whether timestamps without zone are local to spark.sql.session.timeZone, which slots know.
    localize: bool = False
    # How local times that occur twice are resolved.
    ambiguous: Literal["raise", "latest"] = "raise"

    @property
    def display_name(self) -> str:
        return "Collection"

    def output_schema(self) -> StructType:
        return self.schema

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Returns a split per batch."""
        return [{"batch": number} for number in range(self.batches)]

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        return _TableReader(self, context.config.get(_TIME_ZONE, "UTC"))


class _TableReader(SourceReader):
    def __init__(self, source: TableSource, time_zone: str) -> None:
        self._source = source
        self._time_zone = time_zone
        self._file: Any = None
        self._batch = 0
        self._emitted = False

    def open(self) -> None:
        import pyarrow as pa

        content = self._source.content
        if not content:
            path = Path(os.environ.get(_JOB_DIR, "")) / "files" / self._source.file
            try:
                content = pa.memory_map(str(path))
            except OSError as error:
                raise FiresteelError(
                    f"the file {self._source.file}, which was shipped with the job, cannot be"
                    f" opened: {error}"
                ) from error
        self._file = pa.ipc.open_file(content)

    def begin(self, split: Split) -> None:
        self._batch = split["batch"]
        self._emitted = False

    def poll(self) -> pa.RecordBatch | None:
        if self._emitted:
            raise EndOfSplit
        batch = self._file.get_batch(self._batch)
        self._emitted = True
        if not self._source.localize:
            return batch
        import pyarrow as pa

        table = spark_types(
            pa.Table.from_batches([batch]),
            self._source.schema,
            self._time_zone,
            ambiguous=self._source.ambiguous,
        )
        return table.combine_chunks().to_batches()[0]

    def position(self) -> bool:
        return self._emitted

    def restore(self, position: bool) -> None:
        self._emitted = position

    def close(self) -> None:
        self._file = None


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow types of a Spark schema. Raises InvalidProgram if there are none."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    check_valid_fields(schema)
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except (PySparkException, TypeError) as error:
        raise InvalidProgram(f"the schema {schema.simpleString()}: {error}") from error


def spark_types(
    table: pa.Table,
    schema: StructType,
    time_zone: str,
    *,
    ambiguous: Literal["raise", "latest"],
) -> pa.Table:
    """Converts the table to the Arrow types of a Spark schema. Timestamps without zone that become
    TIMESTAMP are local to `time_zone`.

    Raises InvalidProgram for values that do not fit.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql.pandas.types import _check_arrow_array_timestamps_localize
    from pyspark.sql.types import TimestampType

    columns = []
    target = arrow_schema(schema)
    for to, kind, column in zip(target, schema.fields, table.columns, strict=True):
        try:
            if isinstance(kind.dataType, TimestampType) and pa.types.is_timestamp(column.type):
                if column.type.unit == "ns":
                    column = pc.floor_temporal(column, unit="microsecond")
                if column.type.tz is None:
                    column = pc.assume_timezone(column, time_zone, ambiguous=ambiguous)
            else:
                if pa.types.is_nested(column.type):  # PySpark's function does not accept slices
                    column = column.take(pa.array(range(len(column)), pa.int64()))
                column = _check_arrow_array_timestamps_localize(
                    column, kind.dataType, True, time_zone
                )
            columns.append(column.cast(to.type))
        except (pa.ArrowException, ValueError, TypeError, NotImplementedError) as error:
            raise InvalidProgram(
                f"column {to.name!r} of {column.type} cannot be converted to"
                f" {kind.dataType.simpleString()}: {error}"
            ) from error
    return pa.Table.from_arrays(columns, schema=target)
