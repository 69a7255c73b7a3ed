"""Count windows: window n of a key has `size` of its rows, in the order of arrival, from row n *
`slide` on. As in PyFlink's `count_window`.

A window fires when it is complete; windows that are incomplete when the input ends have no results.
A batch costs a few calls in Python, regardless of its number of rows.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from firesteel.operators import CountSpec, WindowApplySpec
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.columns import as_table, described
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.columnar.grouping.row_log import RowLog, taken
from taskexecutor.executor.numbers import as_numpy
from taskexecutor.executor.operators.columns import WINDOW_ID
from taskexecutor.executor.operators.windows.fired_rows import (
    MOST_ROWS,
    Keys,
    Results,
    ranks_within,
    with_window,
)

_PLACE, _COUNT = "_place", "_count"
_NONE = np.empty(0, np.int64)


class CountWindows(StreamOperator):
    """The state is the waiting rows, each with its position in its key's windows, and the number of
    rows that each key has had.

    If the slide exceeds the size, rows between two windows are dropped and not counted in
    positions: window n starts at position n * `step`.
    """

    computes = choose.GROUPING

    def __init__(self, spec: WindowApplySpec, results: Results) -> None:
        assert isinstance(spec.window, CountSpec)
        self._spec = spec
        self._size, self._slide = spec.window.size, spec.window.slide
        self._step = min(self._size, self._slide)
        self._results = results
        self._counts = _NONE  # by key number
        self._keys, self._places = _NONE, _NONE  # of each row in the log

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._results.setup(context, output)

    def initialize_state(self, state: OperatorState) -> None:
        schema = self.context.input_schemas[0]
        assert schema is not None
        self._schema: pa.Schema = schema
        keys, meaning = self._spec.key_columns, {"window": repr(self._spec.window)}
        self._memory = state.columns
        self._rows_state = state.keyed_rows("rows", keys, {**meaning, "input": described(schema)})
        self._counts_state = state.keyed_rows("counts", keys, meaning)
        self._known = Keys(keys, self._memory)
        self._log = RowLog(memory=self._memory)

    def open(self) -> None:
        counts = self._counts_state.restored()
        for batch in counts.to_batches() if counts is not None else ():
            numbers = self._numbers(batch.remove_column(batch.num_columns - 1))
            self._counts[numbers] = as_numpy(batch.column(batch.num_columns - 1))
        rows = self._rows_state.restored()
        for batch in rows.to_batches() if rows is not None else ():
            kept = batch.remove_column(batch.num_columns - 1)
            self._wait(kept, self._numbers(kept), as_numpy(batch.column(batch.num_columns - 1)))

    def snapshot_state(self, checkpoint_id: int) -> None:
        pieces, counts, schema = self._log.pieces, self._counts.copy(), self._schema
        alive = self._places >= self._begin()[self._keys]
        places, keys = self._places, self._known

        def rows() -> pa.Table | None:
            if not len(places):
                return None
            table = as_table(pieces).append_column(_PLACE, pa.array(places))
            return table.filter(pa.array(alive))

        columns = keys.frozen(schema)

        def counted() -> pa.Table | None:
            names = [*keys.columns, _COUNT]
            return pa.table([*columns, pa.array(counts)], names) if len(counts) else None

        self._rows_state.keep(rows)
        self._counts_state.keep(counted)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        numbers = self._numbers(batch)
        before = self._counts.copy()
        at = before[numbers] + ranks_within(numbers)
        np.add.at(self._counts, numbers, 1)
        inside = at % self._slide < self._size
        if not inside.all():
            batch, numbers, at = batch.filter(pa.array(inside)), numbers[inside], at[inside]
        if self._slide > self._size:
            at = at // self._slide * self._step + at % self._slide
        self._wait(batch, numbers, at)
        done, done_before = self._done(self._counts), self._done(before)
        if (done > done_before).any():
            self._fire(done_before, done)
            self._drop()

    def _numbers(self, batch: pa.RecordBatch) -> Ints:
        numbers = self._known.numbers(batch)
        more = self._known.count - len(self._counts)
        if more:
            self._counts = np.concatenate((self._counts, np.zeros(more, np.int64)))
        return numbers

    def _wait(self, batch: pa.RecordBatch, numbers: Ints, places: Ints) -> None:
        if not batch.num_rows:
            return
        self._log.add(batch)
        self._keys = np.concatenate((self._keys, numbers))
        self._places = np.concatenate((self._places, places))

    def _done(self, counts: Ints) -> Ints:
        """Returns the number of complete windows of each key."""
        return np.maximum((counts - self._size) // self._slide + 1, 0)

    def _begin(self) -> Ints:
        """Returns the position at which each key's next window starts."""
        begin: Ints = self._done(self._counts) * self._step
        return begin

    def _fire(self, first: Ints, after: Ints) -> None:
        """Fires the windows of each key from number `first` to before `after`."""
        fires = after > first
        begin = first * self._step
        mine = np.flatnonzero(fires[self._keys] & (self._places >= begin[self._keys]))
        mine = mine[np.lexsort((self._places[mine], self._keys[mine]))]
        keys = self._keys[mine]
        heads = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        fired = keys[heads]  # key numbers
        windows = (after - first)[fired]  # of each key
        # Windows of one key are in order; the first windows of all keys precede the second ones.
        of_key = np.repeat(np.arange(len(fired)), windows)
        turn = np.arange(len(of_key)) - np.repeat(np.cumsum(windows) - windows, windows)
        order = np.argsort(turn, kind="stable")
        of_key, turn = of_key[order], turn[order]
        for start, end in self._cuts(turn):
            keys_here, turns = of_key[start:end], turn[start:end]
            begins = heads[keys_here] + turns * self._step
            places = mine[(begins[:, None] + np.arange(self._size)).ravel()]
            ids = np.repeat(first[fired[keys_here]] + turns, self._size)
            table = as_table([taken(self._log.pieces, places)])
            self._results.run(with_window(table, {WINDOW_ID: pa.array(ids)}))

    def _cuts(self, turn: Ints) -> list[tuple[int, int]]:
        """Yields the windows that are computed together: at most one of each key, unless all may
        be.
        """
        most = max(1, MOST_ROWS // self._size)
        cuts = {*range(0, len(turn), most), len(turn)}
        if not self._results.together:
            cuts.update((np.flatnonzero(np.diff(turn)) + 1).tolist())
        return list(pairwise(sorted(cuts)))

    def _drop(self) -> None:
        """Drops rows that no window needs, once they outnumber the others."""
        alive = self._places >= self._begin()[self._keys]
        if np.count_nonzero(alive) * 2 > len(alive):
            return
        places = np.flatnonzero(alive)
        pieces, self._log = self._log.pieces, RowLog(memory=self._memory)
        if len(places):
            self._log.add(taken(pieces, places))
        self._keys, self._places = self._keys[places], self._places[places]

    def close(self) -> None:
        self._results.close()
