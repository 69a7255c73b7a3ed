"""Partitions rows by hashes of their keys, when they would exceed the memory together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.operator import ColumnMemory
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.exchange import UnsupportedKey
from taskexecutor.executor.exchange.partitioning import hash_columns

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # spreads hashes, as in Fibonacci hashing


class Divided(NamedTuple):
    rows: pa.RecordBatch  # ordered by part; rows of a part keep their order
    ends: Ints  # end of each part

    def of(self, part: int) -> pa.RecordBatch:
        begin = int(self.ends[part - 1]) if part else 0
        return self.rows.slice(begin, int(self.ends[part]) - begin)


def parts_of(size_bytes: int, memory: ColumnMemory) -> int:
    """Returns the number of parts into which rows of this size are divided to fit in memory."""
    most = memory.piece_bytes
    return 1 if most is None else max(1, -(-size_bytes // most))


def divided(
    batch: pa.RecordBatch, key_columns: Sequence[str], parts: int, memory: ColumnMemory
) -> Divided:
    """Divides the rows. All rows of a key are in the same part, across batches. Rows whose keys
    cannot be hashed are in one part.
    """
    keys = [batch.column(column_index(batch.schema, name)) for name in key_columns]
    try:
        hashes = hash_columns(keys).astype(np.uint64)
    except UnsupportedKey:
        hashes = np.zeros(batch.num_rows, np.uint64)
    # Mixes the hashes: those of one subtask's keys are correlated.
    of_row = (((hashes * _MULTIPLIER) >> np.uint64(33)) % np.uint64(parts)).astype(np.int64)
    rows = memory.kept(batch.take(pa.array(np.argsort(of_row, kind="stable"))))
    return Divided(rows, np.cumsum(np.bincount(of_row, minlength=parts)))
