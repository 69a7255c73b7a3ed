"""Folders of partitioned files, with the names that Spark writes and reads: `a=1/b=x%2Fy`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from firesteel.common.time_zones import in_zone
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.checks import named_columns

NULL = "__HIVE_DEFAULT_PARTITION__"
# The characters that Spark escapes in names of columns and in values.
_ESCAPED = re.compile(r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_ROW = "\x00row"
_NESTED = "partition_by: column {name!r} is {kind}, which cannot name a folder"


def without_partitions(schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """Returns the columns that the files contain. Raises FiresteelError if there are none, or a
    column of `partition_by` is missing or cannot name folders.
    """
    columns = named_columns("FileSink: column of partition_by", partition_by, schema)
    for name in columns:
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise FiresteelError(f"FileSink: {_NESTED.format(name=name, kind=kind)}")
    rest = [field for field in schema if field.name not in columns]
    if not rest:
        raise FiresteelError(
            f"FileSink: partition_by names all columns ({', '.join(columns)}), so the files would"
            " contain none"
        )
    return pa.schema(rest)


def partitions_of(
    batch: pa.RecordBatch, partition_by: Sequence[str], zone: str
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the rows of each folder, in order and without the columns of the partition. Times
    are in `zone`, that of the session.
    """
    columns = named_columns("FileSink: column of partition_by", partition_by, batch.schema)
    keys = in_zone(batch.select(list(columns)), zone)
    rest = batch.select([name for name in batch.schema.names if name not in columns])
    numbered = pa.table([*keys.columns, pa.array(range(batch.num_rows))], [*columns, _ROW])
    groups = numbered.group_by(list(columns), use_threads=False).aggregate([(_ROW, "list")])
    for group in groups.to_batches():
        rows = group.column(f"{_ROW}_list")
        for index in range(group.num_rows):
            values = {name: group.column(name)[index].as_py() for name in columns}
            yield _folder(values), rest.take(rows[index].values)


def _folder(values: dict[str, Any]) -> str:
    return "/".join(f"{_escaped(name)}={_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    """Returns the value as Spark casts it to a string, escaped."""
    match value:
        case None | "":
            return NULL
        case bool():
            text = "true" if value else "false"
        case datetime():
            text = f"{value:%Y-%m-%d %H:%M:%S.%f}".rstrip("0").rstrip(".")
        case _:
            text = str(value)
    return _escaped(text)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)
