"""Evaluates functions of repeated texts once per distinct text.

select("auction", split(url, '/')[3] AS folder)

If a bundle passes only a few text columns to Spark, a deterministic plan returns the same result
for rows with the same texts. Therefore the plan runs over new texts only, and its results are
copied to each row. Errors are raised for the same rows as without this optimization.

Distinct texts are numbered across bundles, and the plan's results are kept by number. When they use
too much memory, all are dropped. How often texts repeat is only known once the distinct ones have
been found. If they hardly repeat, the next bundles are not searched.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.common.units import MIB
from taskexecutor.executor.columnar.grouping.columns import column_of, numbers_in

Numbers = npt.NDArray[np.int64]

_LEAST_ROWS = 1_024  # minimum rows of a bundle that is searched
_REPEATED = 2  # minimum average occurrences of a new text in a bundle
_LONGEST_PAUSE = 64  # bundles
_MOST_TEXTS = 1 << 16  # number of distinct texts in each column
_MOST_BYTES = 8 * MIB  # of distinct texts, of results, and of a batch's results
_UNKNOWN, _LEFT_OUT = -2, -1


class Repeats:
    """The results of one plan by text."""

    def __init__(self, columns: Sequence[str], schema: pa.Schema, *, filtered: bool) -> None:
        """`columns` are the names of all columns that the plan reads. `schema` is that of its
        results; if `filtered`, their last column holds the numbers of the kept rows.
        """
        self._columns = list(columns)
        self._schema = schema
        self._filtered = filtered
        self._misses = 0
        self._pause = 0
        self.forget()

    def values(
        self,
        batches: Sequence[pa.RecordBatch],
        evaluated: Callable[[pa.RecordBatch], Generator[pa.RecordBatch, None, None]],
    ) -> tuple[list[pa.Array], Numbers] | None:
        """Returns the plan's result columns for distinct texts, and each row's index in them,
        negative for filtered rows. Returns None if the plan should run over the rows instead.

        `evaluated` returns the plan's results for the rows of a batch.
        """
        rows = sum(batch.num_rows for batch in batches)
        kinds = [batches[0].schema.field(name).type for name in self._columns] if batches else []
        if rows < _LEAST_ROWS or not kinds or not all(map(_is_text, kinds)):
            return None
        if self._pause:
            self._pause -= 1
            return None
        found = self._found(batches, rows, evaluated)
        if found is not None:
            self._misses = 0
            return found
        self.forget()
        self._misses += 1
        self._pause = min(1 << self._misses, _LONGEST_PAUSE)
        return None

    def forget(self) -> None:
        """Drops all results."""
        self._texts = [_Numbered() for _ in self._columns]
        self._pairs = [_Numbered() for _ in self._columns[1:]]  # of the columns up to the next one
        self._places: Numbers = np.empty(0, np.int64)  # index of the result, by number
        self._given: pa.Table = pa.Table.from_batches([_empty(self._schema)])
        self._longest = 0  # maximum bytes of a result row

    def _found(
        self,
        batches: Sequence[pa.RecordBatch],
        rows: int,
        evaluated: Callable[[pa.RecordBatch], Generator[pa.RecordBatch, None, None]],
    ) -> tuple[list[pa.Array], Numbers] | None:
        numbers = self._numbers(batches, rows)
        if numbers is None:
            return None
        last = (self._pairs or self._texts)[-1]
        more = len(last.values) - len(self._places)
        self._places = np.concatenate([self._places, np.full(more, _UNKNOWN, np.int64)])
        occurs = np.zeros(len(self._places), np.bool_)
        occurs[numbers] = True
        new = np.flatnonzero(occurs & (self._places == _UNKNOWN))
        if len(new) * _REPEATED > rows:
            return None
        most_rows = max(batch.num_rows for batch in batches)
        if len(new):
            with closing(evaluated(self._texts_of(new))) as given:
                if not self._add(new, given, most_rows):
                    return None
        if self._longest * most_rows > _MOST_BYTES:
            return None
        values = [column.chunk(0) for column in self._given.columns]
        return values[: -1 if self._filtered else None], self._places[numbers]

    def _numbers(self, batches: Sequence[pa.RecordBatch], rows: int) -> Numbers | None:
        """Returns the numbers of each row's texts."""
        kinds = [batches[0].schema.field(name).type for name in self._columns]
        numbers: Numbers | None = None
        for place, name in enumerate(self._columns):
            texts, codes = _encoded([batch.column(name) for batch in batches])
            if len(texts) * _REPEATED > rows and not pa.types.is_dictionary(kinds[place]):
                return None
            own = self._texts[place].numbers(texts)
            if own is None:
                return None
            if numbers is None:
                numbers = own[codes]
                continue
            pairs, codes = _encoded([column_of(numbers * _MOST_TEXTS + own[codes])])
            both = self._pairs[place - 1].numbers(pairs)
            if both is None:
                return None
            numbers = both[codes]
        return numbers

    def _texts_of(self, numbers: Numbers) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        for pairs, texts in zip(reversed(self._pairs), reversed(self._texts[1:]), strict=True):
            numbers, own = np.divmod(numbers_in(pairs.values)[numbers], _MOST_TEXTS)
            columns.append(texts.values.take(column_of(own)))
        columns.append(self._texts[0].values.take(column_of(numbers)))
        return pa.record_batch(columns[::-1], self._columns)

    def _add(self, numbers: Numbers, given: Iterable[pa.RecordBatch], rows: int) -> bool:
        """Adds results. Returns False if they are too large to be kept, or to be copied to this
        many rows.
        """
        batches: list[pa.RecordBatch] = []
        size_bytes = self._given.nbytes
        for batch in given:
            batches.append(batch)
            size_bytes += batch.nbytes
            self._longest = max(self._longest, sum(map(_longest, batch.columns)))
            if size_bytes > _MOST_BYTES or rows * self._longest > _MOST_BYTES:
                return False
        before = self._given.num_rows
        added = pa.Table.from_batches(batches, self._schema)
        self._given = pa.concat_tables([self._given, added]).combine_chunks()  # into one chunk
        if self._filtered:
            self._places[numbers] = _LEFT_OUT
            places = added.column(added.num_columns - 1).combine_chunks()
            numbers = numbers[numbers_in(places)]
        self._places[numbers] = before + np.arange(len(numbers))
        return True


class _Numbered:
    """Distinct values and their numbers, which never change."""

    def __init__(self) -> None:
        self.values: Any = None  # an array
        self._last: pa.Array | None = None  # the last requested values
        self._numbers: Numbers = np.empty(0, np.int64)  # numbers of the last requested values

    def numbers(self, values: pa.Array) -> Numbers | None:
        """Returns the numbers of values; None if there are too many."""
        if self._last is not None and values.equals(self._last):
            return self._numbers
        if self.values is None:
            numbers = np.arange(len(values), dtype=np.int64)
            self.values = values
        else:
            known = pc.index_in(values, value_set=self.values)
            numbers = numbers_in(known).astype(np.int64)
            new = _nulls(known)
            numbers[new] = len(self.values) + np.arange(len(new))
            if len(new):
                self.values = pa.concat_arrays([self.values, values.take(column_of(new))])
        if len(self.values) > _MOST_TEXTS or self.values.nbytes > _MOST_BYTES:
            return None
        self._last, self._numbers = values, numbers
        return numbers


def _encoded(chunks: Sequence[pa.Array]) -> tuple[pa.Array, Numbers]:
    """Returns the distinct values of a column, possibly with others, and each row's index in
    them.
    """
    column = pa.chunked_array(chunks)
    if pa.types.is_dictionary(column.type):
        first = column.chunk(0).dictionary
        if not all(chunk.dictionary.equals(first) for chunk in column.chunks):
            column = column.cast(column.type.value_type)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode(null_encoding="encode")
    values = column.chunk(0).dictionary
    codes = [numbers_in(chunk.indices).astype(np.int64) for chunk in column.chunks]
    if any(chunk.indices.null_count for chunk in column.chunks):
        for chunk, numbers in zip(column.chunks, codes, strict=True):
            numbers[_nulls(chunk.indices)] = len(values)
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return values, np.concatenate(codes)


def _nulls(column: pa.Array) -> Numbers:
    """Returns the indices of nulls."""
    places: Numbers = numbers_in(pc.indices_nonzero(column.is_null())).astype(np.int64)
    return places


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _longest(column: pa.Array) -> int:
    return (pc.max(pc.binary_length(column)).as_py() or 0) if _is_text(column.type) else 0
