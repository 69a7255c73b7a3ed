"""Splits a batch by key, with one pass of hashing and one stable sort, regardless of the number of
keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.column_names import column_index
from taskexecutor.executor.columnar.schemas import missing_column
from taskexecutor.executor.nested_keys import comparable
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.python_rows.rows import to_python

Key = tuple[Any, ...]


class _NotANumber(float):
    """A singleton, even after pickling, so that keys with NaN are equal: tuples compare their
    elements by identity first.
    """

    def __reduce__(self) -> str:
        return "_NAN"


_NAN = _NotANumber("nan")


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """The rows of each key are adjacent and in their order; keys are in the order of their first
    rows.
    """

    keys: list[Key]
    ends: list[int]  # key i has the rows ends[i - 1] <= row < ends[i]
    batch: pa.RecordBatch


def by_key(batch: pa.RecordBatch, key_columns: Sequence[str]) -> KeyedBatch:
    """Splits a batch by key. Raises FiresteelError if the batch lacks a key column."""
    codes, keys = _codes(batch, _positions(batch, key_columns))
    if len(keys) == 1:
        return KeyedBatch(keys, [batch.num_rows], batch)
    ends = np.cumsum(np.bincount(codes, minlength=len(keys)))
    if not (codes[1:] >= codes[:-1]).all():
        # NumPy sorts 16-bit words by radix, in linear time.
        narrow = codes.astype(np.uint16) if len(keys) <= 2**16 else codes
        batch = batch.take(pa.array(np.argsort(narrow, kind="stable")))
    return KeyedBatch(keys, ends.tolist(), batch)


def _positions(batch: pa.RecordBatch, key_columns: Sequence[str]) -> list[int]:
    positions = [column_index(batch.schema, column) for column in key_columns]
    if -1 in positions:
        missing = key_columns[positions.index(-1)]
        raise missing_column(f'key_by("{missing}")', missing, batch.schema.names)
    return positions


def _codes(
    batch: pa.RecordBatch, key_positions: Sequence[int]
) -> tuple[npt.NDArray[np.int64], list[Key]]:
    """Returns the index of each row's key in the list of keys."""
    first, *others = key_positions
    codes, values = _encoded(batch.column(first))
    keys: list[Key] = [(value,) for value in values]
    for position in others:
        more, values = _encoded(batch.column(position))
        both = pa.array(codes * len(values) + more).dictionary_encode()
        codes = as_numpy(both.indices).astype(np.int64)
        pairs = as_numpy(both.dictionary)
        before, last = (pairs // len(values)).tolist(), (pairs % len(values)).tolist()
        keys = [(*keys[b], values[v]) for b, v in zip(before, last, strict=True)]
    return codes, keys


def _encoded(column: pa.Array) -> tuple[npt.NDArray[np.int64], list[Any]]:
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64), [None]
    if pa.types.is_nested(kind):
        numbers: dict[Any, int] = {}
        codes = [numbers.setdefault(comparable(v, _NAN), len(numbers)) for v in column.to_pylist()]
        return np.array(codes, np.int64), list(numbers)
    if pa.types.is_floating(kind):
        column = pc.add(column, pa.scalar(0.0, kind))  # -0.0 is 0.0
    encoded = column.dictionary_encode(null_encoding="encode")
    values = to_python(encoded.dictionary)
    if pa.types.is_floating(kind):
        values = [_NAN if value != value else value for value in values]
    return as_numpy(encoded.indices).astype(np.int64), values
