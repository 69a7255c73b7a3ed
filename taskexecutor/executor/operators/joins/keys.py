"""The keys of joined rows: a key with a null in any column equals no other key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from taskexecutor.executor.columnar.grouping.grouping import Ints, group
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.numbers import as_numpy

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def columns_of(rows: pa.RecordBatch, names: Sequence[str]) -> list[pa.Array]:
    return [rows.column(column_index(rows.schema, name)) for name in names]


def without_key(rows: pa.RecordBatch, names: Sequence[str]) -> Flags:
    """Returns which rows have a null in their key."""
    nulls: Flags = np.zeros(rows.num_rows, np.bool_)
    for column in columns_of(rows, names):
        if column.null_count:
            nulls |= as_numpy(column.is_null())
    return nulls


def numbers_of(index: KeyIndex, rows: pa.RecordBatch, names: Sequence[str]) -> Ints:
    """Returns the number of each row's key. Numbers new keys."""
    keys = columns_of(rows, names)
    groups = group(keys)
    first = pa.array(groups.first_rows())
    return index.numbers([key.take(first) for key in keys])[groups.codes]
