"""Makes record batches of the rows that a test writes down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa


def batch_of(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> pa.RecordBatch:
    """Each row has its values in the order of the columns."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, type) for values, type in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
