"""Builds Arrow columns and tables from pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def as_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Returns the column as one array, copied only if it has several chunks."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def described(schema: pa.Schema | None) -> str:
    """Describes all columns with their types."""
    return ", ".join(f"{field.name} {field.type}" for field in schema or ())


def as_table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches))


# Arrow's own conversions from and to NumPy import pandas, which takes longer than many jobs.


def numbers_in(column: pa.Array) -> Any:
    """Returns the values of an integer column. Values are less than 2^63; values at nulls are
    undefined.
    """
    width = column.type.bit_width // 8
    kind = np.dtype(f"i{width}")
    if not len(column):
        return np.empty(0, kind)
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * width)


def column_of(numbers: Any) -> pa.Array:
    """Returns a column of 64-bit integers."""
    values = np.ascontiguousarray(numbers, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
