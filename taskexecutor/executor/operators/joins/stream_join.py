"""Joins two streams key by key: `join`, `interval_join` and `window_join`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.common.units import MIB
from firesteel.elements import MAX_TIMESTAMP_US, MAX_WATERMARK, MIN_TIMESTAMP_US, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import (
    ColumnMemory,
    OperatorState,
    Output,
    RuntimeContext,
    StreamOperator,
)
from firesteel.operators import JoinSpec
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.columns import described
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.joins.joined_columns import (
    NO_WINDOWS,
    JoinedColumns,
    numbers_of,
    without_key,
)
from taskexecutor.executor.operators.joins.rows_by_key import RowsByKey, restored
from taskexecutor.executor.operators.joins.time_bounds import time_bounds
from taskexecutor.executor.timing.clock import wall_clock_ms

BUNDLE_ROWS = 65_536  # waiting rows of both sides
LEAST_BYTES = 16 * MIB  # size of the rows below which none are searched for removal

_SIDES = ("left", "right")


class StreamJoin(StreamOperator):
    """Holds the rows of both streams, and joins each row with the rows of the other stream that
    have arrived before it. In outer joins, a row without a match is emitted on arrival and
    retracted at its first match. With bounds in event time, it is emitted once the watermark shows
    that it has no match. A semi join emits a row of the left stream at its first match.
    """

    computes = choose.GROUPING
    inputs = 2

    def __init__(self, spec: JoinSpec, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._spec = spec
        self._keys = spec.left_keys, spec.right_keys
        self._bounds = time_bounds(spec, now_ms)
        self.keeps_event_time = self._bounds.in_event_time
        # The sides whose unmatched rows are emitted when their time is over.
        self._expiring = [kept and not spec.retracts for kept in spec.keeps]
        delays_us = (
            self._bounds.delay_us(side) if expiring else 0
            for side, expiring in enumerate(self._expiring)
        )
        self._delay_us = max(spec.held_us, *delays_us)
        self._waiting: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
        self._waiting_rows = 0
        self._forget_at = LEAST_BYTES
        self._memory: ColumnMemory = IN_MEMORY
        self._clear()

    def _clear(self) -> None:
        self._index = KeyIndex(self._memory)
        left, right = (RowsByKey(self._memory, expiring=each) for each in self._expiring)
        self._sides = left, right

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._late = context.counter("numLateRecordsDropped")
        self._columns = JoinedColumns.of_inputs(self._spec, context)

    def initialize_state(self, state: OperatorState) -> None:
        self._memory = state.columns
        self._clear()
        meaning = {"how": self._spec.how, "within": str(self._spec.within)}
        self._states = tuple(
            state.keyed_rows(f"{name} rows", keys, {**meaning, "input": described(schema)})
            for name, keys, schema in zip(
                _SIDES, self._keys, self.context.input_schemas, strict=True
            )
        )

    def open(self) -> None:
        self._load([state.restored() for state in self._states])

    def _load(self, tables: list[pa.Table | None]) -> None:
        """Loads rows of both sides into an empty instance."""
        for side, table in enumerate(tables):
            for found in restored(table, self._memory) if table is not None else ():
                numbers = self._numbers(side, found.rows)
                self._sides[side].add(found.rows, numbers, found.times, found.alone)

    def snapshot_state(self, checkpoint_id: int) -> None:
        for state, make in zip(self._states, self._frozen(), strict=True):
            state.keep(make)

    def _frozen(self) -> list[Callable[[], pa.Table | None]]:
        watermark_us = self._watermark_us
        return [
            rows.frozen(self._bounds.horizon(side, watermark_us))
            for side, rows in enumerate(self._sides)
        ]

    @property
    def _watermark_us(self) -> int:
        """Returns the watermark. In a batch, event time jumps to its end."""
        found = self.context.timers.current_watermark_us
        return found if found == MAX_TIMESTAMP_US or not self._spec.whole else MIN_TIMESTAMP_US

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self._waiting[input_index].append(batch.replace_schema_metadata(None))
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= BUNDLE_ROWS:
            self.flush()

    def process_watermark(self, watermark: Watermark) -> None:
        self._forget()
        if watermark != MAX_WATERMARK:  # unmatched rows are emitted after the watermark
            delayed_us = max(watermark.timestamp_us - self._delay_us, MIN_TIMESTAMP_US)
            watermark = Watermark(delayed_us)
        self.output.emit_watermark(watermark)

    def flush(self) -> None:
        for side, batches in enumerate(self._waiting):
            if batches:
                bundle = pa.concat_batches(batches)
                batches.clear()
                for kind, rows in _changes(bundle):
                    if kind == INSERT:
                        self._join(side, rows)
                    else:
                        self._delete(side, rows)
        self._waiting_rows = 0
        self._forget()

    def _join(self, side: int, rows: pa.RecordBatch) -> None:
        times = self._bounds.times(side, rows, self.context.operator_name)
        rows, times = self._in_time(side, rows, times)
        rows, times = self._with_condition(side, rows, times)
        rows, times = self._with_keys(side, rows, times, INSERT)
        if not rows.num_rows:
            return
        numbers = self._numbers(side, rows)
        others, other_side = self._sides[1 - side], 1 - side
        alone = np.ones(rows.num_rows, np.bool_)
        for queries, places in others.find(numbers, *self._bounds.reach(side, times)):
            alone[queries] = False
            if self._spec.how == "semi":
                if other_side == 0:
                    self._emit_alone(0, others.take(others.matched(places)), INSERT)
                continue
            if self._spec.keeps[other_side]:
                matched = others.matched(places)
                if self._spec.retracts:
                    self._emit_alone(other_side, others.take(matched), DELETE)
            self._emit_pairs(side, rows.take(pa.array(queries)), places, times[queries], INSERT)
        if self._spec.keeps[side] and self._spec.retracts:
            self._emit_alone(side, rows.filter(pa.array(alone)), INSERT)
        if self._spec.how == "semi" and side == 0:
            self._emit_alone(0, rows.filter(pa.array(~alone)), INSERT)
        self._sides[side].add(rows, numbers, times, alone)

    def _delete(self, side: int, rows: pa.RecordBatch) -> None:
        """Deletes rows, in a join without time."""
        rows, times = self._with_keys(side, rows, np.zeros(rows.num_rows, np.int64), DELETE)
        if not rows.num_rows:
            return
        numbers = self._numbers(side, rows)
        mine, others, other_side = self._sides[side], self._sides[1 - side], 1 - side
        places = mine.equal(rows, numbers)
        if (places < 0).any():
            unknown = rows.slice(int(np.argmax(places < 0)), 1).to_pylist()[0]
            raise FiresteelError(
                f"{self.context.operator_name}: cannot delete a row of the {_SIDES[side]} stream "
                "that does"
                f" not exist: {unknown}; an upstream operator must have changed rows or their order"
            )
        if self._spec.keeps[side]:
            self._emit_alone(side, rows.filter(pa.array(mine.alone(places))), DELETE)
        mine.remove(places)
        for queries, found in others.find(numbers, times, times):
            self._emit_pairs(side, rows.take(pa.array(queries)), found, NO_WINDOWS, DELETE)
        if self._spec.keeps[other_side]:
            keys = np.unique(numbers)
            none = np.zeros(len(keys), np.int64)
            for queries, _ in mine.find(keys, none, none):
                keys[queries] = -1  # there is still a match
            keys = keys[keys >= 0]
            none = np.zeros(len(keys), np.int64)
            for _, found in others.find(keys, none, none):
                others.unmatched(found)
                self._emit_alone(other_side, others.take(found), INSERT)

    def _in_time(self, side: int, rows: pa.RecordBatch, times: Ints) -> tuple[pa.RecordBatch, Ints]:
        """Drops late rows, and rows whose matches are over; emits the latter as unmatched if the
        join keeps them.
        """
        passed = self._bounds.passed(times, self._watermark_us)
        late = self._bounds.late(side, rows, passed, self._watermark_us)
        gone = passed | late
        if not gone.any():
            return rows, times
        self._late.inc(int(late.sum()))
        if self._spec.keeps[side]:
            alone = passed & ~late
            self._emit_alone(side, rows.filter(pa.array(alone)), INSERT, times[alone])
        return rows.filter(pa.array(~gone)), times[~gone]

    def _with_condition(
        self, side: int, rows: pa.RecordBatch, times: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """Drops rows whose own condition is not true; emits them as unmatched if the join keeps
        them.
        """
        if not (column := self._spec.conditions[side]):
            return rows, times
        true = as_numpy(pc.fill_null(rows.column(column), False))
        if self._spec.keeps[side]:
            self._emit_alone(side, rows.filter(pa.array(~true)), INSERT, times[~true])
        return rows.filter(pa.array(true)), times[true]

    def _with_keys(
        self, side: int, rows: pa.RecordBatch, times: Ints, kind: str
    ) -> tuple[pa.RecordBatch, Ints]:
        """Drops rows whose key has a null, which equals no other key; emits them as unmatched if
        the join keeps them and does not hold them.
        """
        if self._spec.holds_null_keys and self._spec.keeps[side]:
            return rows, times
        nulls = without_key(rows, self._keys[side])
        if not nulls.any():
            return rows, times
        if self._spec.keeps[side]:
            self._emit_alone(side, rows.filter(pa.array(nulls)), kind, times[nulls])
        return rows.filter(pa.array(~nulls)), times[~nulls]

    def _emit_pairs(
        self, side: int, rows: pa.RecordBatch, places: Ints, windows: Ints, kind: str
    ) -> None:
        """Emits `rows` of this side, each joined with the other side's row of the given number."""
        both = [rows, self._sides[1 - side].take(places)]
        left, right = both if side == 0 else both[::-1]
        self.output.emit(self._columns.batch(left, right, windows, kind))

    def _emit_alone(
        self, side: int, rows: pa.RecordBatch, kind: str, windows: Ints = NO_WINDOWS
    ) -> None:
        if rows.num_rows:
            left, right = (rows, None) if side == 0 else (None, rows)
            self.output.emit(self._columns.batch(left, right, windows, kind))

    def _numbers(self, side: int, rows: pa.RecordBatch) -> Ints:
        return numbers_of(self._index, rows, self._keys[side])

    def _forget(self) -> None:
        """Emits unmatched rows whose time is over. Then removes deleted rows and those that no
        future row may join, once these may be half of all.
        """
        watermark_us = self._watermark_us
        for side, kept in enumerate(self._sides):
            for alone, times in kept.expired(self._bounds.horizon(side, watermark_us)):
                self._emit_alone(side, alone, INSERT, times)
        if self._size_bytes < self._forget_at:
            return
        if self._spec.within is None:
            rows, removed = (sum(r.count for r in self._sides), sum(r.removed for r in self._sides))
            if 2 * removed < rows:
                return
        tables = [make() for make in self._frozen()]
        self._clear()
        self._load(tables)
        self._forget_at = max(LEAST_BYTES, 2 * self._size_bytes)

    @property
    def _size_bytes(self) -> int:
        return sum(rows.size_bytes for rows in self._sides)

    def close(self) -> None:
        for batches in self._waiting:
            batches.clear()
        self._clear()


def _changes(bundle: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields runs of insertions and of deletions, in their order, without the column `row_kind`."""
    place = bundle.schema.get_field_index(ROW_KIND)
    if place < 0:
        yield INSERT, bundle
        return
    goes = as_numpy(pc.equal(bundle.column(place), DELETE))
    rows = bundle.remove_column(place)
    starts = np.flatnonzero(np.diff(goes, prepend=~goes[:1])).tolist()
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        yield DELETE if goes[start] else INSERT, rows.slice(start, end - start)
