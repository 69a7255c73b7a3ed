"""Counts distinct values per key, for a running aggregate: each value is looked at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskexecutor.executor.aggregation.columns import as_array
from taskexecutor.executor.aggregation.grouping import Ints, group, whole_numbers
from taskexecutor.executor.aggregation.key_index import KeyIndex
from taskexecutor.executor.aggregation.pair_set import PairSet

DISTINCT = "distinct"  # how lists of distinct values merge whose number matters only


class DistinctCounts:
    """Knows the values that each key has had.

    It replaces the lists of values in partial rows by the number of those that are new to the
    row's key. These numbers are added up like any count.
    """

    def __init__(self, key_columns: tuple[str, ...], merges: Mapping[str, str]) -> None:
        self._key_columns = key_columns
        self._keys = KeyIndex()
        self._values = {name: _Values() for name, how in merges.items() if how == DISTINCT}

    def replaced(self, bundle: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The rows with counts in place of lists."""
        if not self._values:
            return list(bundle)
        rows = pa.Table.from_batches(list(bundle)).combine_chunks()
        keys = [as_array(rows.column(name)) for name in self._key_columns]
        if keys:
            groups = group(keys)
            first = pa.array(groups.first_rows())
            numbers = self._keys.numbers([key.take(first) for key in keys])[groups.codes]
        else:
            numbers = np.zeros(rows.num_rows, np.int64)
        for name, values in self._values.items():
            counts = values.new(numbers, as_array(rows.column(name)))
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, pa.field(name, pa.int64()), pa.array(counts))
        batches: list[pa.RecordBatch] = rows.combine_chunks().to_batches()
        return batches


class _Values:
    """Those of one column."""

    def __init__(self) -> None:
        self._seen = PairSet()
        self._index = KeyIndex()  # of values that are no integers

    def new(self, keys: Ints, lists: pa.Array) -> Ints:
        """How many values of each list its key has not had before."""
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(lists)), lengths)
        values = lists.flatten()
        if not len(values):
            return np.zeros(len(lists), np.int64)
        numbers = whole_numbers(values)
        if numbers is None:
            groups = group([values])
            distinct = values.take(pa.array(groups.first_rows()))
            numbers = self._index.numbers([distinct])[groups.codes]
        new = self._seen.add(keys[rows], numbers)
        counts: Ints = np.bincount(rows[new], minlength=len(lists))
        return counts
