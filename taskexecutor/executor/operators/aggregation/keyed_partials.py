"""The partials of all keys so far, one merged row per key; what a bundle adds, and which rows it
changes.

`DensePartials` is for the frequent case that is also the fastest: keys that are whole numbers close
to each other, and sums, least and greatest values of numbers. A key's row is its place in one array
per column.

`KeyedPartials` is for everything: a log of merged rows in Arrow, with the place of each key's
latest row. A bundle is merged by itself, joined with the rows it changes, and appended; the log is
written anew when most of it is old. So a bundle costs what it touches, whatever the number of keys,
and large bundles over many keys cost a few passes over columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from taskexecutor.executor.operators.aggregation.grouping import Groups, Ints, group, whole_numbers
from taskexecutor.executor.operators.aggregation.partials import (
    merge_column,
    merge_partials,
    single,
)

LOG_ROWS = 262_144  # the log may have this many old rows, or as many as there are keys
_CHUNKS = 16  # of the log, before they become one
_FEW = 8  # times as many keys as are looked for: that many known ones are not worth a pass over all of them
_SPARSE = 16  # a table of places may be this many times the number of keys


class DensePartials:
    """Gives up, for good, on what it is not made for; its rows go to KeyedPartials then."""

    def __init__(self, key_columns: tuple[str, ...], merges: Mapping[str, str]) -> None:
        self._key_columns = key_columns
        self._merges = merges
        self._schema: pa.Schema | None = None  # of what it returns
        self._low = 0  # the key at place 0
        self._columns: dict[str, np.ndarray[Any, Any]] = {}
        self._present = np.empty(0, np.bool_)
        self._changed = np.empty(0, np.bool_)  # all false, between bundles
        self._bound = 0.0  # no sum of whole numbers can be larger
        self.keys = 0

    def add(self, bundle: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
        """Merges partial rows; returns the new rows of the keys they change. None, and no change:
        it is not made for these.
        """
        keys = self._keys_of(bundle)
        if keys is None or not self._cover(keys):
            return None
        for batch, values in zip(bundle, keys, strict=True):
            places = values - self._low if self._low else values
            self._changed[places] = True
            for name, how in self._merges.items():
                _IN_PLACE[how].at(self._columns[name], places, batch.column(name).to_numpy())
        changed = np.flatnonzero(self._changed)
        self._changed[changed] = False
        self.keys += len(changed) - int(np.count_nonzero(self._present[changed]))
        self._present[changed] = True
        return self._rows(changed)

    def rows(self) -> pa.RecordBatch:
        """All keys' rows."""
        return self._rows(np.flatnonzero(self._present))

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
                if how not in _IN_PLACE or not fits or column.null_count:
                    return None
                if pa.types.is_int64(column.type):
                    numbers = column.to_numpy()
                    self._bound += len(numbers) * float(
                        max(abs(int(numbers.min())), abs(int(numbers.max())))
                    )
        if self._bound >= 2.0**62:  # someone has to look for overflow
            return None
        if self._schema is None:
            self._schema = bundle[0].select([*self._key_columns, *self._merges]).schema
        return keys

    def _cover(self, keys: list[Ints]) -> bool:
        """Makes room for these keys, unless that would be mostly empty."""
        assert self._schema is not None
        low, high = (
            min(int(values.min()) for values in keys),
            max(int(values.max()) for values in keys),
        )
        size = len(self._present)
        if size:
            if low >= self._low and high < self._low + size:
                return True
            low, high = min(low, self._low), max(high, self._low + size - 1)
        if high - low >= max(_SPARSE * (self.keys + sum(map(len, keys))), 65_536):
            return False
        room = (
            (high - low) // 2 if size else 0
        )  # keys that grow, as numbers given in turn do, do not move it each time
        at = slice(self._low - low, self._low - low + size) if size else slice(0, 0)

        def grown(column: np.ndarray[Any, Any], nothing: Any, kind: Any) -> np.ndarray[Any, Any]:
            larger = np.full(high - low + 1 + room, nothing, kind)
            larger[at] = column
            return larger

        for name, how in self._merges.items():
            kind = np.float64 if pa.types.is_float64(self._schema.field(name).type) else np.int64
            self._columns[name] = grown(
                self._columns.get(name, np.empty(0, kind)), _NOTHING[how], kind
            )
        self._present = grown(self._present, False, np.bool_)
        self._changed = grown(self._changed, False, np.bool_)
        self._low = low
        return True

    def _rows(self, places: Ints) -> pa.RecordBatch:
        assert self._schema is not None
        everything = len(places) == len(self._present)
        columns = [_as_keys(places + self._low, self._schema.field(0).type)]
        columns += [
            pa.array(self._columns[n].copy() if everything else self._columns[n][places])
            for n in self._merges
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


_IN_PLACE: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_NOTHING = {"sum": 0, "min": np.iinfo(np.int64).max, "max": np.iinfo(np.int64).min}


def _as_keys(values: Ints, kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(kind):
        return pa.array(values).cast(kind)
    return pa.array(values.astype(np.int32) if pa.types.is_date32(kind) else values).view(kind)


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
        if self._log_rows > 2 * self._index.count + LOG_ROWS:
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
            self._index = _HashIndex.of(
                [self.rows().column(key) for key in self._key_columns] if self._log else None
            )
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
    if (
        new.null_count
        or old.null_count
        or not (pa.types.is_int64(new.type) or pa.types.is_float64(new.type))
    ):
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
        room = (high - low) // 2 if self.count else 0
        table = np.full(high - low + 1 + room, -1, np.int64)
        if self.count:
            table[self._low - low : self._low - low + len(self._table)] = self._table
        self._low, self._table = low, table


class _HashIndex:
    """Any keys. Many at once are found by grouping them with those that are known, few at a time in
    a dictionary.
    """

    def __init__(self) -> None:
        self.count = 0
        self._known: list[
            list[pa.Array]
        ] = []  # keys in the order of their numbers, in pieces of all columns
        self._numbers: dict[Any, int] | None = (
            None  # made when it is first of use, and kept up to date from then on
        )

    @classmethod
    def of(cls, columns: list[pa.Array] | None) -> _HashIndex:
        """With these distinct keys, numbered in their order."""
        index = cls()
        if columns is not None:
            index.numbers(columns)
        return index

    def numbers(self, columns: list[pa.Array]) -> Ints:
        """Of distinct keys."""
        if len(columns[0]) * _FEW >= self.count:
            return self._by_groups(columns)
        if self._numbers is None:
            known = self._all_known()
            self._numbers = dict(zip(_hashable(known), range(self.count), strict=True))
        numbers = self._numbers
        found = np.array([numbers.get(key, -1) for key in _hashable(columns)], np.int64)
        return self._numbered(columns, found)

    def _by_groups(self, columns: list[pa.Array]) -> Ints:
        if not self.count:
            return self._numbered(columns, np.full(len(columns[0]), -1, np.int64))
        both = [
            pa.concat_arrays([known, new])
            for known, new in zip(self._all_known(), columns, strict=True)
        ]
        groups = group(both)
        numbers = np.full(groups.count, -1, np.int64)
        numbers[groups.codes[: self.count]] = np.arange(self.count)
        return self._numbered(columns, numbers[groups.codes[self.count :]])

    def _numbered(self, columns: list[pa.Array], found: Ints) -> Ints:
        """Gives numbers to the keys that have none (-1)."""
        new = np.flatnonzero(found < 0)
        if len(new):
            found[new] = np.arange(self.count, self.count + len(new))
            added = [column.take(pa.array(new)) for column in columns]
            if self._numbers is not None:
                self._numbers.update(
                    zip(_hashable(added), range(self.count, self.count + len(new)), strict=True)
                )
            self._known.append(added)
            self.count += len(new)
        return found

    def _all_known(self) -> list[pa.Array]:
        if len(self._known) > 1:
            self._known = [
                [pa.concat_arrays(list(pieces)) for pieces in zip(*self._known, strict=True)]
            ]
        return self._known[0]


def _hashable(columns: list[pa.Array]) -> Any:
    """Keys as Python values; NaN, which equals nothing in Python, and what cannot be hashed as
    texts.
    """
    plain = [_plain(column) for column in columns]
    return plain[0] if len(plain) == 1 else zip(*plain, strict=True)


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        return ["NaN" if value is not None and value != value else value for value in values]
    if pa.types.is_nested(column.type):
        return [repr(value) for value in values]
    return values
