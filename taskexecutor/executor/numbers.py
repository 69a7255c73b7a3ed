"""Converts Arrow columns to NumPy arrays without Arrow's own conversion, which imports pandas
first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def as_numpy(column: pa.Array | pa.ChunkedArray) -> Any:
    """Returns the same array as `column.to_numpy(zero_copy_only=False)`. Numbers without nulls
    share the column's memory.
    """
    if column.null_count == 0:
        kind = column.type
        if pa.types.is_boolean(kind):
            return _flags(_in_one_piece(column))
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return _numbers(_in_one_piece(column))
    return column.to_numpy(zero_copy_only=False)


def _in_one_piece(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _numbers(column: pa.Array) -> Any:
    width = column.type.bit_width // 8
    kind = "f" if pa.types.is_floating(column.type) else "i"
    kind = "u" if pa.types.is_unsigned_integer(column.type) else kind
    dtype = np.dtype(f"{kind}{width}")
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * width)


def _flags(column: pa.Array) -> Any:
    if not len(column):
        return np.empty(0, np.bool_)
    start, skipped = divmod(column.offset, 8)
    packed = np.frombuffer(column.buffers()[1], np.uint8, offset=start)
    end = skipped + len(column)
    return np.unpackbits(packed, count=end, bitorder="little")[skipped:].view(np.bool_)
