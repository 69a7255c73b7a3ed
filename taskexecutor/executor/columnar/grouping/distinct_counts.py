"""Counts distinct values per key for a running aggregate. Each value is looked up once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.operator import ColumnMemory
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar.grouping.columns import as_array
from taskexecutor.executor.columnar.grouping.dense_partials import as_keys
from taskexecutor.executor.columnar.grouping.grouping import Ints, group, whole_numbers
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.columnar.grouping.pair_set import PairSet
from taskexecutor.executor.numbers import as_numpy

_VALUE = "_value"
DISTINCT = "distinct"  # the merge of lists of distinct values of which only the number matters


class DistinctCounts:
    """Remembers the values that each key has had.

    In partial rows, replaces lists of values by the number of values that are new to the row's key.
    These numbers are added up like other counts.
    """

    def __init__(
        self,
        key_columns: tuple[str, ...],
        merges: Mapping[str, str],
        memory: ColumnMemory = IN_MEMORY,
    ) -> None:
        self._key_columns = key_columns
        self._memory = memory
        self._keys = KeyIndex(memory)
        self._values = {name: _Values(memory) for name, how in merges.items() if how == DISTINCT}

    def replaced(self, bundle: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Returns the rows with counts in place of lists."""
        if not self._values:
            return list(bundle)
        rows = pa.Table.from_batches(list(bundle)).combine_chunks()
        keys = [as_array(rows.column(name)) for name in self._key_columns]
        numbers = self._numbers(keys, rows.num_rows)
        for name, values in self._values.items():
            counts = values.new(numbers, as_array(rows.column(name)))
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, pa.field(name, pa.int64()), pa.array(counts))
        batches: list[pa.RecordBatch] = rows.combine_chunks().to_batches()
        return batches

    def _numbers(self, keys: list[pa.Array], rows: int) -> Ints:
        if not keys:
            return np.zeros(rows, np.int64)
        groups = group(keys)
        first = pa.array(groups.first_rows())
        return self._keys.numbers([key.take(first) for key in keys])[groups.codes]

    @property
    def names(self) -> Sequence[str]:
        """Names of the columns whose values are remembered."""
        return tuple(self._values)

    def frozen(self, name: str) -> Callable[[], pa.Table | None]:
        """Returns a function that makes the current values of a column in any thread: the key
        columns and the value.
        """
        keys, values = self._keys.frozen(), self._values[name].frozen()

        def rows() -> pa.Table | None:
            found = values()
            if found is None:
                return None
            numbers, column = found
            of_keys = keys() or []
            columns = [key.take(numbers) for key in of_keys]
            return pa.table([*columns, column], names=[*self._key_columns, _VALUE])

        return rows

    def only(self, choose: Callable[[pa.Table], pa.Table]) -> DistinctCounts:
        """Returns the values of some keys: those of the rows, as `frozen` makes them, that `choose`
        returns.
        """
        chosen = DistinctCounts(
            self._key_columns, dict.fromkeys(self._values, DISTINCT), self._memory
        )
        for name in self._values:
            if (rows := self.frozen(name)()) is not None:
                chosen.restore(name, choose(rows))
        return chosen

    def restore(self, name: str, rows: pa.Table) -> None:
        """Restores the values of a column that has none."""
        *keys, values = (as_array(column) for column in rows.columns)
        self._values[name].add(self._numbers(keys, rows.num_rows), values)


class _Values:
    """The values of one column."""

    def __init__(self, memory: ColumnMemory) -> None:
        self._seen = PairSet(memory)
        self._index = KeyIndex(memory)  # of values other than integers
        self._kind: pa.DataType | None = None
        self._indexed = False

    def frozen(self) -> Callable[[], tuple[pa.Array, pa.Array] | None]:
        """Returns a function that makes the key number and the value of each pair."""
        (keys, numbers), index, kind = self._seen.frozen(), self._index.frozen(), self._kind
        indexed = self._indexed

        def pairs() -> tuple[pa.Array, pa.Array] | None:
            if kind is None:
                return None
            if not indexed:
                return pa.array(keys), as_keys(numbers, kind)
            found = index()
            assert found is not None
            return pa.array(keys), found[0].take(pa.array(numbers))

        return pairs

    def new(self, keys: Ints, lists: pa.Array) -> Ints:
        """Returns how many values of each list are new to its key."""
        lengths = as_numpy(pc.fill_null(pc.list_value_length(lists), 0))
        rows = np.repeat(np.arange(len(lists)), lengths)
        values = lists.flatten()
        if not len(values):
            return np.zeros(len(lists), np.int64)
        new = self.add(keys[rows], values)
        counts: Ints = np.bincount(rows[new], minlength=len(lists))
        return counts

    def add(self, keys: Ints, values: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Adds the values. Returns whether each value is new to its key."""
        self._kind = values.type
        numbers = whole_numbers(values)
        if numbers is None:
            self._indexed = True
            groups = group([values])
            distinct = values.take(pa.array(groups.first_rows()))
            numbers = self._index.numbers([distinct])[groups.codes]
        return self._seen.add(keys, numbers)
