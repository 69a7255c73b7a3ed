"""Arrow columns and tables from their pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def as_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column in one piece, copied only if it has several."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def described(schema: pa.Schema | None) -> str:
    """All columns with their types."""
    return ", ".join(f"{field.name} {field.type}" for field in schema or ())


def as_table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches))
