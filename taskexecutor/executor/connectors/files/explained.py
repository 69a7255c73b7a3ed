"""Explains errors about rows by the content of the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from firesteel.common.file_parts import FilePart
from firesteel.connectors.file_source import CORRUPT_RECORD, MALFORMED_FORMATS, FileSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.readers.frames import first_malformed
from taskexecutor.executor.timing.watermarks import MissingTime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


@contextmanager
def explained(
    session: SparkSession, source: FileSource, schema: StructType, parts: Sequence[FilePart]
) -> Iterator[None]:
    """If a window finds a row without event time, the error names a row that does not fit the
    schema, if there is one.
    """
    try:
        yield
    except MissingTime as error:
        if source.malformed is not None or source.format not in MALFORMED_FORMATS:
            raise
        row = first_malformed(session, source, [part.path for part in parts], schema)
        if row is None:
            raise
        raise FiresteelError(
            f"{row['path']}: the row {row[CORRUPT_RECORD][:200]!r} does not fit the schema, so "
            "columns of it are null, and a window needs its event time;"
            ' FileSource(malformed="drop") or "side_output" continues without such rows'
        ) from error
