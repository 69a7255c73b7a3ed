"""The keyed half of an aggregation without windows: the partials of all keys so far, and the changed keys' results.

State is a log of merged rows in Arrow, with the place of each key's latest row. A bundle of partials is merged by itself, joined
with the rows it changes, and appended; the log is written anew when most of it is old. So a bundle costs what it touches,
whatever the number of keys, and large bundles over many keys cost a few passes over columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.elements import Watermark
from firesteel.operator import StreamOperator
from firesteel.plan.specs import RunningAggregateSpec
from taskexecutor.executor.operators.grouping import Groups, Ints, whole_numbers
from taskexecutor.executor.operators.partials import merge_column, merge_partials, merges_of, single
from taskexecutor.executor.operators.window_contents import all_of, finished

BUNDLE_ROWS = 262_144  # partial rows that wait at most, or twice the number of keys if that is more
_CHUNKS = 16  # of the log, before they become one
_SPARSE = 16  # a table of places may be this many times the number of keys


class RunningAggregate(StreamOperator):
    """Emits, per flush, one row for each key that the bundle changed: a stream of upserts by key."""

    def __init__(self, spec: RunningAggregateSpec) -> None:
        self._spec = spec
        self._state = KeyedPartials(spec.key_columns, merges_of(spec.aggregates))
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= max(BUNDLE_ROWS, 2 * self._state.keys):
            self.flush()

    def process_watermark(self, watermark: Watermark) -> None:
        self.flush()
        self.output.emit_watermark(watermark)

    def flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        changed = self._state.add(all_of(waiting))
        self.output.emit(finished(self.context, self._spec.aggregates, self._spec.key_columns, changed, {}))

    def finish(self) -> None:
        self.flush()

    def close(self) -> None:
        self._waiting = []


class KeyedPartials:
    """One merged partial row per key."""

    def __init__(self, key_columns: tuple[str, ...], merges: Mapping[str, str]) -> None:
        self._key_columns = key_columns
        self._merges = merges
        self._names = [*key_columns, *merges]
        self._log: list[pa.RecordBatch] = []
        self._log_rows = 0
        self._places = np.empty(0, np.int64)  # in the log, by the number of the key
        self._index: _DenseIndex | _HashIndex = _DenseIndex()

    @property
    def keys(self) -> int:
        return self._index.count

    def add(self, table: pa.Table) -> pa.RecordBatch:
        """Merges partial rows; returns the new rows of the keys they change."""
        bundle = merge_partials(table, self._key_columns, self._merges)
        known = self._index.count
        numbers = self._numbers(bundle)
        old = np.flatnonzero(numbers < known)
        if len(old):
            bundle = self._joined(bundle, old, self._read(self._places[numbers[old]]))
        if self._index.count > len(self._places):
            grown = np.empty(max(self._index.count, 2 * len(self._places)), np.int64)
            grown[: len(self._places)] = self._places
            self._places = grown
        self._places[numbers] = np.arange(self._log_rows, self._log_rows + bundle.num_rows)
        self._log.append(bundle)
        self._log_rows += bundle.num_rows
        if self._log_rows > 2 * self._index.count + BUNDLE_ROWS:
            self._log = [self.rows()]
            self._log_rows = self._index.count
            self._places = np.arange(self._log_rows)
        elif len(self._log) > _CHUNKS:
            self._log = _one_batch(self._log)
        return bundle

    def rows(self) -> pa.RecordBatch:
        """All keys' rows."""
        return self._read(self._places[: self._index.count])

    def _numbers(self, bundle: pa.RecordBatch) -> Ints:
        """The number of each row's key; new keys get new numbers, from the present count on."""
        columns = [bundle.column(key) for key in self._key_columns]
        if isinstance(self._index, _DenseIndex):
            numbers = self._index.numbers(columns)
            if numbers is not None:
                return numbers
            self._index = _HashIndex.of([self.rows().column(key) for key in self._key_columns] if self._log else None)
        return self._index.numbers(columns)

    def _read(self, places: Ints) -> pa.RecordBatch:
        self._log = _one_batch(self._log)
        return self._log[0].take(pa.array(places))

    def _joined(self, bundle: pa.RecordBatch, changed: Ints, old: pa.RecordBatch) -> pa.RecordBatch:
        """`old` are the present rows of the bundle's rows `changed`, in the same order."""
        columns: dict[str, pa.Array] | None = None
        result = [bundle.column(key) for key in self._key_columns]
        groups = Groups(np.concatenate([np.arange(bundle.num_rows), changed]), bundle.num_rows)
        for name, how in self._merges.items():
            new = bundle.column(name)
            added = _added(new, changed, old.column(name)) if how == "sum" else None
            if added is None:
                if columns is None:
                    both = pa.Table.from_batches([bundle, old.select(bundle.schema.names)])
                    columns = {each: single(both.column(each)) for each in self._merges}
                added = merge_column(how, columns[name], groups, columns)
            result.append(added)
        return pa.RecordBatch.from_arrays(result, schema=bundle.schema)


def _added(new: pa.Array, changed: Ints, old: pa.Array) -> pa.Array | None:
    """The frequent case, row by row: sums of numbers none of which is null or near its limits."""
    if new.null_count or old.null_count or not (pa.types.is_int64(new.type) or pa.types.is_float64(new.type)):
        return None
    sums = np.array(new.to_numpy(zero_copy_only=False))
    olds = old.to_numpy(zero_copy_only=False)
    if pa.types.is_int64(new.type) and max(np.abs(sums).max(), np.abs(olds).max()) >= 2**62:
        return None
    if len(changed) == len(sums):  # all of them, in order
        sums += olds
    else:
        sums[changed] += olds
    return pa.array(sums)


def _one_batch(log: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return log if len(log) < 2 else [pa.concat_batches(log)]


class _DenseIndex:
    """Keys that are whole numbers close to each other: their numbers in a table."""

    def __init__(self) -> None:
        self.count = 0
        self._low = 0
        self._table = np.empty(0, np.int64)

    def numbers(self, columns: list[pa.Array]) -> Ints | None:
        """Of distinct keys. None: these keys are not of this kind."""
        values = whole_numbers(columns[0]) if len(columns) == 1 else None
        if values is None:
            return None
        low, high = int(values.min()), int(values.max())
        if self.count:
            low, high = min(low, self._low), max(high, self._low + len(self._table) - 1)
        if high - low >= max(_SPARSE * (self.count + len(values)), 65_536):
            return None
        self._cover(low, high)
        found: Ints = self._table[values - self._low]
        new = np.flatnonzero(found < 0)
        if len(new):
            found[new] = np.arange(self.count, self.count + len(new))
            self._table[values[new] - self._low] = found[new]
            self.count += len(new)
        return found

    def _cover(self, low: int, high: int) -> None:
        if self.count and low == self._low and high < self._low + len(self._table):
            return
        room = (high - low) // 2 if self.count else 0  # keys that grow, as numbers given in turn do, do not move it each time
        table = np.full(high - low + 1 + room, -1, np.int64)
        if self.count:
            table[self._low - low : self._low - low + len(self._table)] = self._table
        self._low, self._table = low, table


class _HashIndex:
    """Any keys: their numbers in a dictionary."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    @classmethod
    def of(cls, columns: list[pa.Array] | None) -> _HashIndex:
        """With these keys, numbered in their order."""
        index = cls()
        if columns is not None:
            index.numbers(columns)
        return index

    @property
    def count(self) -> int:
        return len(self._numbers)

    def numbers(self, columns: list[pa.Array]) -> Ints:
        numbers = self._numbers
        found = [numbers.setdefault(key, len(numbers)) for key in _hashable(columns)]
        return np.array(found, np.int64)


def _hashable(columns: list[pa.Array]) -> Any:
    """Keys as Python values; NaN, which equals nothing in Python, and what cannot be hashed as texts."""
    plain = [_plain(column) for column in columns]
    return plain[0] if len(plain) == 1 else zip(*plain, strict=True)


def _plain(column: pa.Array) -> list[Any]:
    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        return ["NaN" if value is not None and value != value else value for value in values]
    if pa.types.is_nested(column.type):
        return [repr(value) for value in values]
    return values
