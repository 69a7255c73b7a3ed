"""Aggregates over changelog input, with insertions and deletions.

A deleted row's contribution to a sum is subtracted, so sums are ordinary partial results.
`ValueCounts` holds the contributions to minima, maxima and distinct counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.column_names import column_index
from firesteel.errors import FiresteelError
from firesteel.operator import ColumnMemory
from firesteel.operators import AggregateExpression
from firesteel.row_kind import DELETE, ROW_KIND
from taskexecutor.executor.columnar.grouping.columns import as_array
from taskexecutor.executor.columnar.grouping.distinct_counts import DISTINCT
from taskexecutor.executor.columnar.grouping.grouping import Ints, group
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.columnar.grouping.merging import ROWS
from taskexecutor.executor.columnar.grouping.row_log import RowLog, taken
from taskexecutor.executor.columnar.grouping.value_counts import (
    COUNT,
    Missing,
    ValueCounts,
    present,
)
from taskexecutor.executor.numbers import as_numpy

CAN_BE_TAKEN_BACK = (
    "count, count_if, sum, avg, min, max, count(DISTINCT x), min_by, max_by, first, last, bool_and"
    " and bool_or"
)
_ENDS = {"min": "min", "max": "max", "first": "min", "last": "max"}
_VALID = "_valid"  # number of values of a sum that are not null
_PIECES = 16
# allowed number of outdated rows in the log, if greater than the number of keys
_OUTDATED_ROWS = 262_144


@dataclass(slots=True)
class Kept:
    """The state of the rows that some aggregates need."""

    # Maps partial columns to whether the sum is null without values.
    sums: dict[str, bool] = field(default_factory=dict)
    # Maps the partial columns of a value to the columns that read it: the end, least or greatest,
    # and the index of the value's column.
    ends: dict[tuple[str, ...], dict[str, tuple[str, int]]] = field(default_factory=dict)
    distinct: list[str] = field(default_factory=list)

    @property
    def values(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """The columns of each value, and the required ends."""
        found = {
            columns: tuple(dict.fromkeys(end for end, _ in asked.values()))
            for columns, asked in self.ends.items()
        }
        return found | {(name,): () for name in self.distinct}

    @property
    def summed(self) -> list[str]:
        """The columns of `Retraction.signed` that are partial columns, or count their values."""
        nullable = [name + _VALID for name, is_null in self.sums.items() if is_null]
        return [*self.sums, *self.distinct, *nullable]


def kept_of(aggregates: Sequence[AggregateExpression]) -> Kept:
    """Returns the state that the aggregates need. Raises FiresteelError for an aggregate that
    cannot be retracted.
    """
    kept = Kept()
    for item in aggregates:
        ordering = {how.partition(":")[2] for how in item.merge.values()}
        for name, how in item.merge.items():
            kind, _, other = how.partition(":")
            if name not in item.of_row or not (kind in _ENDS or kind in ("sum", DISTINCT)):
                raise FiresteelError(
                    f"aggregate({item.sql!r}): its input may delete rows, but this aggregate cannot"
                    f" be retracted; aggregates that can: {CAN_BE_TAKEN_BACK}"
                )
            if kind == "sum":
                kept.sums[name] = item.of_row[name].otherwise == "NULL"
            elif kind == DISTINCT:
                kept.distinct.append(name)
            elif other:
                end = _ENDS[kind]
                kept.ends[other, name] = {other: (end, 0), name: (end, 1)}
            elif name not in ordering:
                kept.ends[(name,)] = {name: (_ENDS[kind], 0)}
    return kept


class Retraction:
    """Converts insertions and deletions to partial rows whose columns are all sums, and these, once
    merged, to the partial columns of the aggregates.
    """

    def __init__(
        self,
        aggregates: Sequence[AggregateExpression],
        key_columns: tuple[str, ...],
        schema: pa.Schema,
        operator_name: str,
        memory: ColumnMemory,
    ) -> None:
        """`schema` is that of the rows, with their contributions to the partial columns."""
        self._kept = kept_of(aggregates)
        self._schema = schema
        self._key_columns = key_columns
        self._operator_name = operator_name
        self._keys = KeyIndex(memory)
        self._values = {
            columns: ValueCounts(ends, memory) for columns, ends in self._kept.values.items()
        }
        self.merges = dict.fromkeys([*self._kept.summed, ROWS], "sum")

    def columns(self, partials: Mapping[str, str]) -> dict[str, str]:
        """Returns descriptions of the partial rows, like `merging.columns_of_partials`. `partials`
        are those of the input.
        """
        return {
            name: partials.get(name) or f"values of {partials[name.removesuffix(_VALID)]}"
            for name in self._kept.summed
        }

    def signed(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Returns the partial rows: what each row adds to the sums, negated for deletions."""
        rows = pa.Table.from_batches(list(batches)).combine_chunks().to_batches()
        return [self._signed(batch) for batch in rows]

    def _signed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        goes = pc.equal(rows.column(ROW_KIND), DELETE)
        signs = np.where(as_numpy(goes), -1, 1)
        keys = [rows.column(column_index(rows.schema, name)) for name in self._key_columns]
        columns = dict(zip(self._key_columns, keys, strict=True))
        valid = {}
        for name, nullable in self._kept.sums.items():
            columns[name] = self._summand(name, rows.column(name), goes)
            if nullable:
                there = as_numpy(rows.column(name).is_valid())
                valid[name + _VALID] = pa.array(np.where(there, signs, 0))
        columns |= self._counted(rows, keys, signs) | valid
        columns[ROWS] = pa.array(signs)
        return pa.RecordBatch.from_pydict(columns)

    def _summand(self, name: str, values: pa.Array, goes: pa.Array) -> pa.Array:
        strange = values.slice(0, 0)
        if pa.types.is_floating(values.type):
            strange = values.filter(pc.invert(pc.is_finite(values)))
        if len(strange):
            raise FiresteelError(
                f"{self._operator_name}: cannot add the value {strange[0]}, which cannot be"
                " subtracted when its row is deleted; exclude such rows from the sum:"
                " sum(x) FILTER (WHERE NOT isnan(x) AND abs(x) < double('Infinity'))"
            )
        if pa.types.is_duration(values.type):
            numbers = as_array(values.view(pa.int64()))
            return self._summand(name, numbers, goes).view(values.type)
        filled = pc.fill_null(values, pa.scalar(0, values.type))
        return pc.if_else(goes, pc.negate_checked(filled), filled)

    def _counted(
        self, rows: pa.RecordBatch, keys: list[pa.Array], signs: Ints
    ) -> dict[str, pa.Array]:
        """Updates the values and returns the changes of the distinct counts."""
        found: dict[str, pa.Array] = {}
        if not self._values:
            return found
        numbers = self._numbers(keys)
        for columns, counts in self._values.items():
            value = [rows.column(name) for name in columns]
            there = present(value[0])
            chosen = [column.take(pa.array(there)) for column in value]
            changes = np.zeros(rows.num_rows, np.int64)
            try:
                changes[there] = counts.add(numbers[there], chosen, signs[there])
            except Missing as missing:
                row = rows.slice(int(there[missing.row]), 1).to_pylist()[0]
                raise FiresteelError(
                    f"{self._operator_name}: cannot delete a row that does not exist: {row}; an "
                    "upstream operator must have changed rows or their order"
                ) from None
            if columns[0] in self._kept.distinct:
                found[columns[0]] = pa.array(changes)
        return found

    def _numbers(self, keys: list[pa.Array]) -> Ints:
        groups = group(keys)
        first = pa.array(groups.first_rows())
        return self._keys.numbers([key.take(first) for key in keys])[groups.codes]

    def partials(self, merged: pa.RecordBatch) -> Partials:
        """Returns the partial columns of merged partial rows, one per key."""
        there = as_numpy(merged.column(ROWS))
        if (there < 0).any():
            key = merged.select(self._key_columns).slice(int(np.argmax(there < 0)), 1)
            raise FiresteelError(
                f"{self._operator_name}: more rows are deleted than exist for the key"
                f" {key.to_pylist()[0]}; an upstream operator must have changed rows or their order"
            )
        rows = merged.filter(pa.array(there > 0)) if not there.all() else merged
        columns = {name: rows.column(name) for name in (*self._key_columns, *self._kept.distinct)}
        for name, nullable in self._kept.sums.items():
            column = rows.column(name)
            if nullable and not (has := as_numpy(rows.column(name + _VALID)) > 0).all():
                column = pc.if_else(pa.array(has), column, pa.scalar(None, column.type))
            columns[name] = column
        if self._kept.ends:
            numbers = self._numbers([rows.column(name) for name in self._key_columns])
            for value, asked in self._kept.ends.items():
                for name, (end, place) in asked.items():
                    columns[name] = self._values[value].at_end(
                        end, numbers, place, self._schema.field(name).type
                    )
        return Partials(merged.select(self._key_columns), pa.RecordBatch.from_pydict(columns))

    @property
    def kept_values(self) -> list[tuple[str, ...]]:
        """The partial columns of each stored value."""
        return list(self._values)

    def frozen(self, columns: tuple[str, ...]) -> Callable[[], pa.Table | None]:
        """Returns a function that makes the current rows of these values in any thread: the key
        columns, the value's columns, and the value's count for the key.
        """
        keys, values = self._keys.frozen(), self._values[columns].frozen()

        def rows() -> pa.Table | None:
            found = values()
            if found is None:
                return None
            numbers, value, counts = found
            of_keys = [key.take(pa.array(numbers)) for key in keys() or []]
            names = [*self._key_columns, *(f"_{name}" for name in columns), COUNT]
            return pa.table([*of_keys, *value, pa.array(counts)], names=names)

        return rows

    def restore(self, columns: tuple[str, ...], rows: pa.Table) -> None:
        """Restores the rows of `frozen`, for values of which there are none."""
        *found, counts = (as_array(column) for column in rows.columns)
        keys = found[: len(self._key_columns)]
        values = found[len(self._key_columns) :]
        self._values[columns].restore(self._numbers(keys), values, as_numpy(counts))


class Partials(NamedTuple):
    keys: pa.RecordBatch  # every changed key
    rows: pa.RecordBatch  # the partial columns of keys that have rows


class Changes(NamedTuple):
    gone: pa.RecordBatch
    come: pa.RecordBatch


class LastResults:
    """A log of results, with the row of each key's latest result."""

    def __init__(self, key_columns: tuple[str, ...], memory: ColumnMemory) -> None:
        self._key_columns = key_columns
        self._memory = memory
        self._index = KeyIndex(memory)
        self._log = RowLog(_PIECES, memory)
        self._log_rows = 0
        self._places = np.empty(0, np.int64)  # row in the log, by key number; -1 without a result

    def replaced(self, keys: pa.RecordBatch, results: pa.RecordBatch) -> Changes:
        """Replaces the results of `keys`, which have changed, by `results`, which lack the keys
        that have none now. Returns the results to retract and to insert, without unchanged results.
        """
        asked = self._numbers(keys)
        having = self._numbers(results)
        before = self._places[asked]
        known = before >= 0
        old = taken(self._log.pieces, before[known]) if known.any() else results.slice(0, 0)
        stays = _equal(old, results)
        self._places[asked] = -1
        self._places[having] = np.arange(self._log_rows, self._log_rows + results.num_rows)
        self._log.add(results)
        self._log_rows += results.num_rows
        if self._log_rows > 2 * self._index.count + _OUTDATED_ROWS:
            self._rewrite()
        return Changes(
            old.filter(pa.array(~stays[: old.num_rows])),
            results.filter(pa.array(~stays[old.num_rows :])),
        )

    def _numbers(self, rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        columns = [rows.column(column_index(rows.schema, name)) for name in self._key_columns]
        numbers = self._index.numbers(columns)
        if self._index.count > len(self._places):
            room = max(self._index.count, 2 * len(self._places)) - len(self._places)
            self._places = np.concatenate((self._places, np.full(room, -1)))
        return numbers

    def _rewrite(self) -> None:
        """Rewrites the log without outdated rows."""
        valid = np.flatnonzero(self._places >= 0)
        rows = taken(self._log.pieces, self._places[valid])
        self._log, self._log_rows = RowLog(_PIECES, self._memory), len(valid)
        self._log.add(rows)
        self._places[valid] = np.arange(len(valid))


def _equal(old: pa.RecordBatch, new: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Returns whether each row has an equal row on the other side, for the old rows and then the
    new ones.
    """
    both = pa.concat_batches([old, new])
    if not old.num_rows or not new.num_rows:
        return np.zeros(both.num_rows, np.bool_)
    groups = group(both.columns)
    counts = np.bincount(groups.codes, minlength=groups.count)
    pairs: np.ndarray[tuple[int], np.dtype[np.bool_]] = counts[groups.codes] == 2
    return pairs
