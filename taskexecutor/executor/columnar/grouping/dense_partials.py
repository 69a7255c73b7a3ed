"""Partial results of all keys in arrays, for integer keys in a dense range.

This is the most frequent case and the fastest one: a key's offset is its index in the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.operator import ColumnMemory
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar.grouping.columns import as_table
from taskexecutor.executor.columnar.grouping.grouping import Ints, whole_numbers
from taskexecutor.executor.numbers import as_numpy

SPARSE = 16  # maximum table size per key
SMALL_TABLE = 65_536  # table size that is allowed for any number of keys
_AT_ONCE = 1_048_576  # table entries that are scanned for keys at a time

_UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_NEUTRAL = {"sum": 0, "min": np.iinfo(np.int64).max, "max": np.iinfo(np.int64).min}


class DensePartials:
    """Sums, minima and maxima of numbers per integer key.

    `add` refuses other input; the owner then moves the rows to KeyedPartials.
    """

    def __init__(
        self,
        key_columns: tuple[str, ...],
        merges: Mapping[str, str],
        memory: ColumnMemory = IN_MEMORY,
    ) -> None:
        self._memory = memory
        self._key_columns = key_columns
        self._merges = merges
        self._schema: pa.Schema | None = None  # of the returned rows
        self._low = 0  # the key at index 0
        self._columns: dict[str, np.ndarray[Any, Any]] = {}
        self._present = np.empty(0, np.bool_)
        self._changed = np.empty(0, np.bool_)  # all False between bundles
        self._bound = 0.0  # an upper bound of all integer sums
        self.keys = 0

    @property
    def row_bytes(self) -> int:
        return 8 * (1 + len(self._merges))

    def add(self, bundle: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
        """Merges partial rows and returns the new rows of the keys that they change. Returns None,
        without a change, if it refuses them.
        """
        if len(bundle) > 1:  # each batch would cost as much as many rows
            bundle = as_table(bundle).combine_chunks().to_batches()
        keys = self._keys_of(bundle)
        if keys is None or not self._cover(keys):
            return None
        for batch, values in zip(bundle, keys, strict=True):
            places = values - self._low if self._low else values
            self._changed[places] = True
            for name, how in self._merges.items():
                _UFUNCS[how].at(self._columns[name], places, as_numpy(batch.column(name)))
        changed = np.flatnonzero(self._changed)
        self._changed[changed] = False
        self.keys += len(changed) - int(np.count_nonzero(self._present[changed]))
        self._present[changed] = True
        return self._rows(changed)

    def rows(self) -> pa.RecordBatch:
        """Returns the rows of all keys."""
        return self._rows(np.flatnonzero(self._present))

    def parts(self, most: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of all keys, at most `most` at a time."""
        for first in range(0, len(self._present), _AT_ONCE):
            present = np.flatnonzero(self._present[first : first + _AT_ONCE]) + first
            for start in range(0, len(present), most):
                yield self._rows(present[start : start + most])

    def frozen(self) -> Callable[[], list[pa.RecordBatch]]:
        """Returns a function that makes the current rows, in any thread."""
        now = DensePartials(self._key_columns, self._merges, self._memory)
        now._schema, now._low = self._schema, self._low
        now._present = self._copied(self._present)
        now._columns = {name: self._copied(column) for name, column in self._columns.items()}
        return lambda: [] if now._schema is None else now._all_rows()

    def _copied(self, column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        copy: np.ndarray[Any, Any] = self._memory.empty(len(column), column.dtype)
        copy[:] = column
        return copy

    def _all_rows(self) -> list[pa.RecordBatch]:
        """Returns the rows of all keys, in pieces if not all state may be in memory."""
        if self._memory.piece_bytes is None:
            return [self.rows()]
        batches = []
        for start in range(0, len(self._present), SMALL_TABLE):
            found = np.flatnonzero(self._present[start : start + SMALL_TABLE]) + start
            batches.append(self._memory.kept(self._rows(found)))
        return batches

    def _keys_of(self, bundle: Sequence[pa.RecordBatch]) -> list[Ints] | None:
        keys: list[Ints] = []
        for batch in bundle:
            values = (
                whole_numbers(batch.column(self._key_columns[0]))
                if len(self._key_columns) == 1
                else None
            )
            if values is None:
                return None
            keys.append(values)
            for name, how in self._merges.items():
                column = batch.column(name)
                fits = pa.types.is_int64(column.type) or (
                    how == "sum" and pa.types.is_float64(column.type)
                )
                if how not in _UFUNCS or not fits or column.null_count:
                    return None
                if how == "sum" and pa.types.is_int64(column.type):
                    numbers = as_numpy(column)
                    self._bound += len(numbers) * float(
                        max(abs(int(numbers.min())), abs(int(numbers.max())))
                    )
        if self._bound >= 2.0**62:  # a sum might overflow, which KeyedPartials checks
            return None
        if self._schema is None:
            self._schema = bundle[0].select([*self._key_columns, *self._merges]).schema
        return keys

    def _cover(self, keys: list[Ints]) -> bool:
        """Makes room for these keys. Returns False if most of the room would be unused."""
        assert self._schema is not None
        low = min(int(values.min()) for values in keys)
        high = max(int(values.max()) for values in keys)
        size = len(self._present)
        if size:
            if low >= self._low and high < self._low + size:
                return True
            low, high = min(low, self._low), max(high, self._low + size - 1)
        if high - low >= max(SPARSE * (self.keys + sum(map(len, keys))), SMALL_TABLE):
            return False
        # Reserve, so that ascending keys do not move the arrays with each bundle.
        room = (high - low) // 2 if size else 0
        at = slice(self._low - low, self._low - low + size) if size else slice(0, 0)

        def grown(column: np.ndarray[Any, Any], neutral: Any, kind: Any) -> np.ndarray[Any, Any]:
            larger: np.ndarray[Any, Any] = self._memory.full(high - low + 1 + room, neutral, kind)
            larger[at] = column
            return larger

        for name, how in self._merges.items():
            kind = np.float64 if pa.types.is_float64(self._schema.field(name).type) else np.int64
            self._columns[name] = grown(
                self._columns.get(name, np.empty(0, kind)), _NEUTRAL[how], kind
            )
        self._present = grown(self._present, False, np.bool_)
        self._changed = grown(self._changed, False, np.bool_)
        self._low = low
        return True

    def _rows(self, places: Ints) -> pa.RecordBatch:
        assert self._schema is not None
        everything = len(places) == len(self._present)
        columns = [as_keys(places + self._low, self._schema.field(0).type)]
        columns += [
            pa.array(self._columns[n].copy() if everything else self._columns[n][places])
            for n in self._merges
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def as_keys(values: Ints, kind: pa.DataType) -> pa.Array:
    """Returns a column of the values: the inverse of `whole_numbers`."""
    if pa.types.is_integer(kind):
        return pa.array(values).cast(kind)
    return pa.array(values.astype(np.int32) if pa.types.is_date32(kind) else values).view(kind)
