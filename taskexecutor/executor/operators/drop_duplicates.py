"""Removes duplicates: keeps the first row of each key, forever, within a time, or until the
watermark has passed it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.elements import Watermark
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from firesteel.operators import DropDuplicatesSpec
from taskexecutor.executor.analysis.checks import check_time_column
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.columns import as_table
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.columnar.grouping.grouping import group as grouped
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex, hashable
from taskexecutor.executor.columnar.grouping.key_times import NEVER_US, KeyTimes, instants
from taskexecutor.executor.columnar.grouping.row_log import RowLog
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.columns import event_times
from taskexecutor.executor.operators.query_watermark import QueryOperator
from taskexecutor.executor.operators.registry import OperatorKind, alone

# Kept rows expire in groups; `within` spans this many groups.
_GROUPS = 16
_TIME = "_time"  # the last column of a snapshot
_AT_ONCE = 262_144  # rows restored at a time


class DropDuplicates(StreamOperator):
    """Without a time, numbers the keys: the first row of a new key is kept.

    Within a time, remembers the event times of each key's kept rows for as long as rows that are
    not late can be within the time of them. The rows of a batch are processed in the order of event
    time.
    """

    computes = choose.GROUPING
    keeps_event_time = True

    def __init__(self, spec: DropDuplicatesSpec) -> None:
        self._spec = spec
        self._within_us = spec.within_us
        self._kept: dict[Any, tuple[int, ...]] = {}  # event times, ascending
        self._group_us = max(1, spec.within_us // _GROUPS)
        self._ending: dict[int, list[Any]] = {}  # keys of kept rows, by group
        self._groups: list[int] = []  # a heap
        # The same in columns, for snapshots: the keys of kept rows and their times, by group.
        self._logs: defaultdict[int, RowLog] = defaultdict(RowLog)

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._late = context.counter("numLateRecordsDropped")

    def initialize_state(self, state: OperatorState) -> None:
        spec, schema = self._spec, self.context.input_schemas[0]
        types: list[pa.DataType] = []
        if schema is not None:
            types = [schema.field(column_index(schema, key)).type for key in spec.key_columns]
        meaning = {
            "types of the key": ", ".join(map(str, types)),
            "time": f"{spec.time_column} within {spec.within_us} us" if spec.within_us else "",
        }
        self._state = state.keyed_rows("rows", spec.key_columns, meaning)
        self._memory = state.columns
        self._known = KeyIndex(self._memory)

    def open(self) -> None:
        """Restores the kept rows."""
        restored = self._state.restored()
        if restored is None:
            return
        last = restored.num_columns - 1
        if not self._within_us:
            for batch in restored.to_batches(max_chunksize=_AT_ONCE):
                self._known.numbers(batch.columns[:last])
            return
        for batch in restored.combine_chunks().to_batches():
            keys = list(hashable(batch.columns[:last]))
            self._remember(batch.remove_column(last), keys, as_numpy(batch.column(last)))

    def _remember(self, kept: pa.RecordBatch, keys: list[Any], times: Ints) -> None:
        """Adds rows, given as key columns, that are not in `_kept`."""
        for key, time_us in zip(keys, times.tolist(), strict=True):
            self._kept[key] = tuple(sorted((*self._kept.get(key, ()), time_us)))
        self._note(kept, keys, times)

    def snapshot_state(self, checkpoint_id: int) -> None:
        if not self._within_us:
            self._state.keep(self._known_rows())
            return
        pieces = [piece for log in self._logs.values() for piece in log.pieces]
        self._state.keep(lambda: as_table(pieces) if pieces else None)

    def _known_rows(self) -> Callable[[], pa.Table | None]:
        keys, names = self._known.frozen(), [*self._spec.key_columns, _TIME]

        def rows() -> pa.Table | None:
            columns = keys()
            if columns is None:
                return None
            times = pa.array(np.zeros(len(columns[0]), np.int64))
            return pa.table([*columns, times], names=names)

        return rows

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not self._within_us:
            self._emit(batch, self._new_rows(batch))
            return
        times = event_times(batch, self._spec.time_column, self.context.operator_name)
        times = times + self._spec.time_shift_us
        late = times <= self.context.timers.current_watermark_us
        if late.any():
            self._late.inc(int(late.sum()))
            batch, times = batch.filter(pa.array(~late)), times[~late]
        self._emit(batch, self._first_rows(batch, times))

    def _emit(self, batch: pa.RecordBatch, first: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        if first.all():
            self.output.emit(batch)
        elif first.any():
            self.output.emit(batch.filter(pa.array(first)))

    def _new_rows(self, batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns the first row of each new key, and adds these keys."""
        columns = [
            batch.column(column_index(batch.schema, name)) for name in self._spec.key_columns
        ]
        new = np.zeros(batch.num_rows, np.bool_)
        if batch.num_rows:
            rows, known = grouped(columns).first_rows(), self._known.count
            first = pa.array(rows)
            numbers = self._known.numbers([column.take(first) for column in columns])
            new[rows[numbers >= known]] = True
        return new

    def _first_rows(
        self, batch: pa.RecordBatch, times: Ints
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns which rows to keep, and remembers them."""
        places = [column_index(batch.schema, name) for name in self._spec.key_columns]
        key_columns = batch.select(places)
        keys = list(hashable(key_columns.columns))
        first = np.zeros(len(keys), np.bool_)
        kept, within_us = self._kept, self._within_us
        instants = times.tolist()
        for row in np.argsort(times, kind="stable").tolist():
            key, time_us = keys[row], instants[row]
            earlier = kept.get(key)
            if earlier is None:
                kept[key] = (time_us,)
            elif time_us - earlier[-1] >= within_us:
                kept[key] = (*earlier, time_us)
            elif any(abs(time_us - other_us) < within_us for other_us in reversed(earlier)):
                continue
            else:
                kept[key] = tuple(sorted((*earlier, time_us)))
            first[row] = True
        chosen = np.flatnonzero(first)
        if len(chosen):  # copied, so that they do not hold the whole batch
            rows = key_columns.take(pa.array(chosen))
            self._note(rows, [keys[row] for row in chosen.tolist()], times[chosen])
        return first

    def _note(self, kept: pa.RecordBatch, keys: list[Any], times: Ints) -> None:
        """Adds kept rows to the groups in which they expire."""
        kept = kept.append_column(_TIME, pa.array(times))
        groups = (times + self._within_us) // self._group_us + 1
        for group in np.unique(groups).tolist():
            if group not in self._ending:
                self._ending[group] = []
                heapq.heappush(self._groups, group)
            mine = np.flatnonzero(groups == group)
            self._ending[group] += [keys[row] for row in mine.tolist()]
            self._logs[group].add(kept if len(mine) == len(keys) else kept.take(pa.array(mine)))

    def process_watermark(self, watermark: Watermark) -> None:
        """Forgets rows that no row after the watermark can be close to."""
        next_us = watermark.timestamp_us + 1
        while self._groups and self._groups[0] * self._group_us <= next_us:
            group = heapq.heappop(self._groups)
            del self._logs[group]
            for key in self._ending.pop(group):
                times = self._kept.pop(key, ())
                times = tuple(time_us for time_us in times if time_us + self._within_us > next_us)
                if times:
                    self._kept[key] = times
        self.output.emit_watermark(watermark)

    def close(self) -> None:
        self._known = KeyIndex()
        self._kept.clear()
        self._ending.clear()
        self._logs.clear()


class DropDuplicatesByWatermark(QueryOperator):
    """Numbers the keys, and forgets them by Spark's rules."""

    computes = choose.GROUPING

    def __init__(self, spec: DropDuplicatesSpec) -> None:
        super().__init__()
        self._spec = spec
        # The time at which a row without a time expires.
        self._null_us = NEVER_US if spec.time_is_key else 0

    def initialize_state(self, state: OperatorState) -> None:
        super().initialize_state(state)
        spec, schema = self._spec, self.context.input_schemas[0]
        types: list[pa.DataType] = []
        if schema is not None:
            types = [schema.field(column_index(schema, key)).type for key in spec.key_columns]
        meaning = {
            "types of the key": ", ".join(map(str, types)),
            "time": f"{spec.late_column} + {spec.expires_after_us} us",
        }
        self._state = state.keyed_rows("rows", spec.key_columns, meaning)
        self._memory = state.columns
        self._known, self._times = KeyIndex(self._memory), KeyTimes(self._memory)

    def open(self) -> None:
        restored = self._state.restored()
        batches = restored.to_batches(max_chunksize=_AT_ONCE) if restored is not None else []
        for batch in batches:
            numbers = self._known.numbers(batch.columns[:-1])
            self._times.set(numbers, as_numpy(batch.column(batch.num_columns - 1)))
        self.expire()

    def snapshot_state(self, checkpoint_id: int) -> None:
        super().snapshot_state(checkpoint_id)
        keys, names = self._known.frozen(), [*self._spec.key_columns, _TIME]
        live = np.flatnonzero(self._times.live())
        times = self._times.of(live)

        def rows() -> pa.Table | None:
            columns = keys()
            if columns is None:
                return None
            numbers = pa.array(live)
            return pa.table(
                [*(column.take(numbers) for column in columns), pa.array(times)], names=names
            )

        self._state.keep(rows)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        times = batch.column(column_index(batch.schema, self._spec.late_column))
        late = instants(times) <= self._watermark_us
        if late.any():
            self._late.inc(int(late.sum()))
            batch, times = batch.filter(pa.array(~late)), times.filter(pa.array(~late))
        if not batch.num_rows:
            return
        columns = [
            batch.column(column_index(batch.schema, name)) for name in self._spec.key_columns
        ]
        rows, known = grouped(columns).first_rows(), self._known.count
        first = pa.array(rows)
        numbers = self._known.numbers([column.take(first) for column in columns])
        new = numbers >= known
        new[~new] = ~self._times.live(numbers[~new])
        rows = rows[new]
        self._times.set(numbers[new], self._expiries(times.take(pa.array(rows))))
        self.output.emit(batch if len(rows) == batch.num_rows else _rows_of(batch, rows))

    def _expiries(self, times: pa.Array) -> Ints:
        after_us = self._spec.expires_after_us
        if after_us is None:
            return np.full(len(times), NEVER_US)
        expiries = instants(times, self._null_us)
        return np.where(expiries == NEVER_US, NEVER_US, expiries + after_us)

    def expire(self) -> None:
        self._times.expire(self._watermark_us)
        if not self._times.wasteful:
            return
        live, known = np.flatnonzero(self._times.live()), self._known.frozen()()
        times, self._times = self._times.of(live), KeyTimes(self._memory)
        self._known = KeyIndex(self._memory)
        for start in range(0, len(live), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            assert known is not None
            numbers = self._known.numbers([column.take(pa.array(live[some])) for column in known])
            self._times.set(numbers, times[some])
        self._times.expire(self._watermark_us)

    def close(self) -> None:
        self._known, self._times = KeyIndex(), KeyTimes(IN_MEMORY)


def _rows_of(batch: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
    """Returns these rows in the order of arrival."""
    chosen = np.zeros(batch.num_rows, np.bool_)
    chosen[rows] = True
    return batch.filter(pa.array(chosen))


def _analyze(step: AnalysisStep, spec: DropDuplicatesSpec) -> AnalyzedOutput:
    for column in filter(None, (spec.time_column, spec.late_column)):
        if step.input_schema is not None:
            check_time_column(step, "drop_duplicates", column, step.input_schema)
    return AnalyzedOutput(schema=step.input_schema)


def _create(spec: DropDuplicatesSpec) -> StreamOperator:
    return DropDuplicatesByWatermark(spec) if spec.late_column else DropDuplicates(spec)


KINDS = (OperatorKind(DropDuplicatesSpec, _analyze, alone(_create)),)
